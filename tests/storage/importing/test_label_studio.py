"""Exports of Label Studio 1.23, and round trips through it. The fixtures were exported by that program."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from core.errors import InvalidInput
from storage.database.schema import Annotator, Item, LabelEvent
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.importing.open import open_source
from storage.importing.preview import ClassRules, preview
from storage.importing.reading import ReadingOptions
from storage.importing.run import ImportOptions, locator, run_import
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.storage.made_media import picture, write_files

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "label_studio"
USER = "Label Studio user 1"

pytestmark = pytest.mark.usefixtures("examined_here")


def events(store, project: int) -> list[tuple[str, str, str | None, str]]:
    """(item, kind, class, annotator) of all events, in order."""
    names = {row.id: row.name for row in list_classes(store, project)} | {None: None}
    query = (
        select(Item.name, LabelEvent.kind, LabelEvent.class_id, Annotator.name.label("who"))
        .join(Item, Item.id == LabelEvent.item_id)
        .join(Annotator, Annotator.id == LabelEvent.annotator_id)
        .where(LabelEvent.project_id == project)
        .order_by(LabelEvent.sequence)
    )
    with store.read() as connection:
        return [(row.name, row.kind, names[row.class_id], row.who) for row in connection.execute(query)]


def counting(store, project: int) -> dict[str, str | None]:
    names = {row.id: row.name for row in list_classes(store, project)} | {None: None}
    return {item.name: names[item.class_id] for item in Pool(store, project).items()}


@pytest.mark.parametrize("name", ["export.json", "export-min.json", "export.csv"])
@pytest.mark.parametrize("root", ["uploads", "."])
def test_every_export_of_label_studio_is_read_with_its_uploads(sqlite_store, name, root):
    """The data key is `photo`, the control tag `animal`; files are stored with eight digits before their names."""
    project = create_project(sqlite_store, "animals", "image").id
    source = open_source(FIXTURES / name, reading=ReadingOptions(media_root=str(FIXTURES / root)))
    seen = preview(source, ClassRules({}, "ask"), kind="image")
    assert seen.n_problems == 0 and seen.new_classes == ["cat", "dog"]
    report = run_import(sqlite_store, project, source)
    found = {name.rpartition("-")[2]: label for name, label in counting(sqlite_store, project).items()}
    expected = {"animal_0.png": "dog", "animal_1.png": "dog", "animal_2.png": "cat", "animal_3.png": "dog",
                "animal_4.png": "cat"}  # fmt: skip
    if name == "export.json":  # the others leave skipped tasks out
        assert report.skipped == 1 and found.pop("animal_5.png") is None
    assert found == expected and report.labels == 6
    kinds = Counter((kind, label, who) for _, kind, label, who in events(sqlite_store, project) if kind == "label")
    assert kinds == {("label", "cat", USER): 3, ("label", "dog", USER): 3}
    again = run_import(sqlite_store, project, source)
    assert (again.imported, again.labels, again.skipped) == (0, 0, 0)


def test_without_the_uploads_the_first_row_says_why(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "animals", "image").id
    with pytest.raises(InvalidInput, match=r"row 1 \(/data/upload/1/448b089a-animal_0.png\): There is no such file"):
        (tmp_path / "export.json").write_bytes((FIXTURES / "export.json").read_bytes())
        run_import(sqlite_store, project, open_source(tmp_path / "export.json"))


@pytest.fixture
def shop(sqlite_store, tmp_path) -> int:
    project = create_project(sqlite_store, "pets", "image").id
    files = {f"{label}/{n}.png": picture(seed=10 * k + n) for k, label in enumerate(("cat", "dog")) for n in range(3)}
    run_import(sqlite_store, project, open_source(write_files(tmp_path / "in", files)), ImportOptions(annotator="ann"))
    return project


def through_label_studio(tasks: list[dict], change: dict[str, str]) -> list[dict]:
    """Tasks in the form in which Label Studio exports them (recorded in round-trip/back.json): results keep their ids,
    annotations get an owner, times and ids, and `meta` is kept. `change` maps names to new choices."""
    for number, task in enumerate(tasks, 1):
        for annotation in task["annotations"]:
            annotation |= {"id": number, "completed_by": 1, "updated_by": None, "updated_at": "2026-11-17T22:24:17.5Z",
                           "created_at": "2026-11-17T22:24:17.1Z", "unique_id": f"u{number}"}  # fmt: skip
            new = change.get(task["data"]["name"])
            if new:
                annotation["result"][0]["value"]["choices"] = [new]
                annotation |= {"updated_by": 1, "updated_at": "2026-11-17T22:30:00Z"}
    return tasks


def test_labels_changed_in_label_studio_take_precedence_and_others_keep_their_events(sqlite_store, shop, tmp_path):
    """`meta` stays in the tasks, and a label that a person changed is a new label of that person."""
    export_project(sqlite_store, shop, tmp_path / "out", ExportOptions(format="label-studio"))
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert all("winnow" in task["meta"] for task in tasks)
    before = events(sqlite_store, shop)
    changed = through_label_studio(tasks, {"cat/0.png": "dog", "dog/1.png": "cat"})
    back = tmp_path / "back.json"
    back.write_text(json.dumps(changed))
    report = run_import(sqlite_store, shop, open_source(back, locate=locator(sqlite_store)))
    assert (report.imported, report.labels) == (0, 2)
    assert events(sqlite_store, shop)[len(before) :] == [
        ("cat/0.png", "label", "dog", USER), ("dog/1.png", "label", "cat", USER),
    ]  # fmt: skip
    found = counting(sqlite_store, shop)
    assert found["cat/0.png"] == "dog" and found["dog/1.png"] == "cat" and found["cat/1.png"] == "cat"
    again = run_import(sqlite_store, shop, open_source(back, locate=locator(sqlite_store)))
    assert again.labels == 0


def test_a_label_changed_back_is_one_more_event(sqlite_store, shop, tmp_path):
    export_project(sqlite_store, shop, tmp_path / "out", ExportOptions(format="label-studio"))
    text = (tmp_path / "out" / "tasks.json").read_text()
    for number, label in enumerate(("dog", "cat", "dog")):
        tasks = through_label_studio(json.loads(text), {"cat/0.png": label})
        tasks[0]["annotations"][0]["updated_at"] = f"2026-11-17T22:3{number}:00Z"
        (tmp_path / "back.json").write_text(json.dumps(tasks))
        run_import(sqlite_store, shop, open_source(tmp_path / "back.json", locate=locator(sqlite_store)))
    assert counting(sqlite_store, shop)["cat/0.png"] == "dog"


def test_a_correction_of_two_labels_is_a_decision(sqlite_store, shop, tmp_path):
    """Otherwise the two earlier labels would outvote the correction."""
    pool = Pool(sqlite_store, shop)
    item = next(item for item in pool.items() if item.name == "cat/0.png")
    from storage.projects.annotators import annotator_named

    pool.label(item.id, item.class_id, annotator=annotator_named(sqlite_store, "bob").id)
    export_project(sqlite_store, shop, tmp_path / "out", ExportOptions(format="label-studio"))
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    (tmp_path / "back.json").write_text(json.dumps(through_label_studio(tasks, {"cat/0.png": "dog"})))
    run_import(sqlite_store, shop, open_source(tmp_path / "back.json", locate=locator(sqlite_store)))
    assert counting(sqlite_store, shop)["cat/0.png"] == "dog"
    assert events(sqlite_store, shop)[-1] == ("cat/0.png", "decide", "dog", USER)


def test_what_another_person_adds_in_label_studio_is_their_label(sqlite_store, shop, tmp_path):
    export_project(sqlite_store, shop, tmp_path / "out", ExportOptions(format="label-studio"))
    tasks = through_label_studio(json.loads((tmp_path / "out" / "tasks.json").read_text()), {})
    result = [{"id": "aB3xYz91Qw", "from_name": "label", "to_name": "image", "type": "choices",
               "value": {"choices": ["cat"]}}]  # fmt: skip
    tasks[0]["annotations"].append(
        {"id": 99, "completed_by": 2, "created_at": "2026-11-18T08:00:00Z", "result": result}
    )
    tasks[1]["annotations"].append({"id": 98, "completed_by": 2, "was_cancelled": True, "result": []})
    (tmp_path / "back.json").write_text(json.dumps(tasks))
    report = run_import(sqlite_store, shop, open_source(tmp_path / "back.json", locate=locator(sqlite_store)))
    assert (report.labels, report.skipped) == (1, 1)
    assert [event[1:] for event in events(sqlite_store, shop)[-2:]] == [
        ("label", "cat", "Label Studio user 2"), ("skip", None, "Label Studio user 2"),
    ]  # fmt: skip


def test_several_choices_are_refused_with_their_number(tmp_path):
    result = {"value": {"choices": ["cat", "dog"]}, "from_name": "a", "to_name": "b", "type": "choices"}
    task = {"id": 1, "data": {"image": "x.png"}, "annotations": [{"id": 1, "completed_by": 1, "result": [result]}]}
    write_files(tmp_path, {"x.png": picture(), "tasks.json": json.dumps([task]).encode()})
    entry = next(iter(open_source(tmp_path / "tasks.json").entries()))
    assert "2 choices" in entry.problem


def test_paths_of_local_files_are_found_below_the_media_root(sqlite_store, tmp_path):
    address = "/data/local-files/?d=project%201/pets/a%20b.png"
    task = {"id": 1, "data": {"picture": address}, "annotations": []}
    write_files(tmp_path, {"files/pets/a b.png": picture(), "tasks.json": json.dumps([task]).encode()})
    reading = ReadingOptions(media_root=str(tmp_path / "files"))
    entry = next(iter(open_source(tmp_path / "tasks.json", reading=reading).entries()))
    assert entry.problem == "" and entry.place.path.endswith("files/pets/a b.png")


@pytest.mark.parametrize("name", ["back.json", "back-min.json", "back.csv"])
def test_a_recorded_round_trip_through_the_real_program(sqlite_store, name):
    """Label Studio 1.23.2 loaded `export/`; there `cat/0.png` was changed to dog and `dog/1.png` was skipped."""
    project = create_project(sqlite_store, "pets", "image").id
    run_import(sqlite_store, project, open_source(FIXTURES / "round-trip" / "export"))
    before = events(sqlite_store, project)
    assert len(before) == 6 and {who for *_, who in before} == {"ann"}
    back = FIXTURES / "round-trip" / name
    report = run_import(sqlite_store, project, open_source(back, locate=locator(sqlite_store)))
    new = events(sqlite_store, project)[len(before) :]
    assert report.imported == 0 and ("cat/0.png", "label", "dog", USER) in new
    if name == "back.json":  # the others have no ids of results and no skipped tasks: each row is a vote of its person
        assert new == [("cat/0.png", "label", "dog", USER), ("dog/1.png", "skip", None, USER)]
    expected = {f"{label}/{n}.png": label for label in ("cat", "dog") for n in range(3)} | {"cat/0.png": "dog"}
    assert counting(sqlite_store, project) == expected
    again = run_import(sqlite_store, project, open_source(back, locate=locator(sqlite_store)))
    assert (again.labels, again.skipped) == (0, 0)
