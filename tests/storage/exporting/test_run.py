"""Exports: every row with its provenance, safe, exact, all or nothing, and the import of an export."""

from __future__ import annotations

import csv
import json
import uuid
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from core.config import RoundConfig
from core.errors import InvalidInput, NotFound
from core.types import Selection
from storage.database.store import Store
from storage.exporting.formats import is_formula
from storage.exporting.reasons import PICK_COLUMNS
from storage.exporting.rows import COLUMNS, ExportOptions
from storage.exporting.run import FORMATS, export_project
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, locator, run_import
from storage.importing.tables.readers import read_table
from storage.labeling.pool import Pool
from storage.projects.classes import add_class, merge_classes, retire_class
from storage.projects.projects import ProjectSettings, create_project
from storage.rounds.log import RoundLog
from tests.storage.export_shop import START, Shop, picked_round, standing
from tests.storage.made_media import wav, write_files

pytestmark = pytest.mark.usefixtures("examined_here")


def test_every_row_has_its_provenance(shop, tmp_path):
    picked_round(shop, 3)
    shop.label(3, 0, "cleo", seconds=2.0)
    report = export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert report.rows == 4 and [set(row) for row in rows] == [set(COLUMNS)] * 4
    assert [row["name"] for row in rows] == ["=1+1.png", "b.png", "c.png", "d.png"]
    last = rows[3]
    assert (last["label"], last["annotator"], last["at"]) == ("cat", "cleo", START.isoformat())
    assert (last["round"], last["strategy"], last["pick_order"], last["pick_score"]) == (1, "bico", 1, 0.5)
    first = rows[0]
    assert first["label"] == "-dog" and first["annotator"] == "bob"  # a tie: the newest
    assert [other["annotator"] for other in first["other_labels"]] == ["ann"]
    other = first["other_labels"][0]
    assert (other["suggestion"], other["suggested_label"], other["suggested_confidence"]) == ("shown", "-dog", 0.75)
    assert (rows[2]["label"], rows[2]["source"], rows[2]["annotator"]) == ("..", "decide", "bob")


REASON = {
    "confidence": 0.4375, "entropy": 1.25, "outer_before": 1.0625, "outer_after": 0.71875, "nearest_distance": 3.5,
    "stands_for": 7, "gradient_rank": 1, "first_gradient_rank": 12,
}  # fmt: skip
HINDSIGHT = {
    "label_probability": 0.125, "n_neighbors": 20, "n_changed": 6, "n_changed_to_label": 4, "mean_shift": 0.25,
    "confidence_gain": -0.03125,
}  # fmt: skip


def cell_as(text: str, like: object) -> object:
    """A CSV cell converted to the type of the value in JSONL."""
    if like is None:
        return None if text == "" else text
    if isinstance(like, bool):
        return {"true": True, "false": False}[text]
    return type(like)(text)


def test_the_whole_reason_of_a_pick_and_its_hindsight_are_exported_in_every_table(shop, tmp_path):
    """Exact in JSONL and Parquet, the same in the CSV; rows that no round chose have none of it."""
    picked_round(shop, 3, guess=1, nearest_labeled=shop.items[0], **REASON)
    shop.label(3, 0, "cleo")
    log = RoundLog(shop.store, shop.project)
    log.set_hindsight(log.latest().id, 1, {**HINDSIGHT, "row": 3, "guess": 1, "guess_was_wrong": True, "round": 2})
    for format_ in ("jsonl", "parquet", "csv"):
        export_project(shop.store, shop.project, tmp_path / format_, ExportOptions(format=format_))
    rows = [json.loads(line) for line in (tmp_path / "jsonl" / "labels.jsonl").read_text().splitlines()]
    expected = {f"pick_{name}": value for name, value in REASON.items()}
    expected |= {f"hindsight_{name}": value for name, value in HINDSIGHT.items()} | {"hindsight_round": 2}
    expected |= {"pick_order": 1, "pick_score": 0.5, "pick_guess": "-dog", "pick_guess_was_wrong": True}
    expected |= {"pick_nearest_sha256": rows[0]["sha256"], "pick_nearest_name": "=1+1.png"}
    assert set(expected) == set(PICK_COLUMNS)
    assert {name: rows[3][name] for name in PICK_COLUMNS} == expected
    assert all(rows[0][name] is None for name in PICK_COLUMNS)
    exact = parquet.read_table(tmp_path / "parquet" / "labels.parquet").to_pylist()
    assert [{name: row[name] for name in PICK_COLUMNS} for row in exact] == [
        {name: row[name] for name in PICK_COLUMNS} for row in rows
    ]
    said = [row.values for row in read_table(tmp_path / "csv" / "labels.csv")]
    for row, cells in zip(rows, said, strict=True):
        assert {name: cell_as(cells[name], row[name]) for name in PICK_COLUMNS} == {n: row[n] for n in PICK_COLUMNS}


def test_a_prediction_of_a_merged_class_is_compared_as_it_counts_now(shop, tmp_path):
    picked_round(shop, 3, guess=1)
    shop.label(3, 0, "cleo")
    merge_classes(shop.store, shop.project, shop.classes[1], shop.classes[0])
    export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="jsonl"))
    last = json.loads((tmp_path / "out" / "labels.jsonl").read_text().splitlines()[-1])
    assert (last["pick_guess"], last["label"], last["pick_guess_was_wrong"]) == ("cat", "cat", False)


def test_the_manifest_says_what_is_inside(shop, tmp_path):
    import hashlib

    export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="csv", media=True))
    said = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert said["counts"]["rows"] == 3 and said["counts"]["labels"] == {"-dog": 2, "..": 1}
    assert [row["name"] for row in said["classes"]] == ["cat", "-dog", "a/b", ".."]
    assert said["project"]["settings"]["labels_per_item"] == 2
    table = (tmp_path / "out" / "labels.csv").read_bytes()
    assert said["files"]["labels.csv"] == {"sha256": hashlib.sha256(table).hexdigest(), "n_bytes": len(table)}
    assert said["counts"]["media_files"] == len(list((tmp_path / "out" / "media").iterdir())) == 3


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("zipped", [False, True])
def test_export_and_import_give_everything_back(shop, tmp_path, format_, zipped):
    """For every format, into another project and (with the files) into another store."""
    target = tmp_path / ("out.zip" if zipped else "out")
    export_project(shop.store, shop.project, target, ExportOptions(format=format_, media=True))
    expected = standing(shop.store, shop.project)
    with Store.open(home=tmp_path / "other") as other:
        project = create_project(other, "back", "image", settings=ProjectSettings(labels_per_item=2)).id
        source = open_source(target)
        report = run_import(other, project, source)
        source.close()
        assert (report.imported, report.n_refused) == (3, 0)
        assert standing(other, project) == expected


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet", "label-studio"])
def test_an_export_without_files_can_be_imported_where_the_bytes_are(shop, tmp_path, format_):
    store = shop.store
    export_project(store, shop.project, tmp_path / "out", ExportOptions(format=format_))
    project = create_project(store, "back", "image", settings=ProjectSettings(labels_per_item=2)).id
    run_import(store, project, open_source(tmp_path / "out", locate=locator(store)))
    assert standing(store, project) == standing(store, shop.project)
    with pytest.raises(InvalidInput, match="has no file with its hash"):
        run_import(store, project, open_source(tmp_path / "out"))


def test_an_export_imported_where_it_came_from_changes_nothing(shop, tmp_path):
    before = standing(shop.store, shop.project)
    export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="jsonl", media=True))
    report = run_import(shop.store, shop.project, open_source(tmp_path / "out"))
    assert (report.imported, report.labels) == (0, 0)
    assert standing(shop.store, shop.project) == before


words = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), min_size=1, max_size=12)
nasty = st.sampled_from(
    ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "＝x", "'x", " =x", "a,b;c", 'q"q', "a\r\nb", "..", "CON"]
)
names = st.one_of(words, nasty)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(names, min_size=3, max_size=3),
    st.lists(names.filter(str.strip), min_size=2, max_size=2, unique=True),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(["ann", "=bob"]), names), max_size=6),
    st.lists(names, max_size=2),
    st.sampled_from(FORMATS),
)
@pytest.mark.slow
def test_any_names_labels_and_notes_survive_the_round_trip(
    sqlite_store, tmp_path_factory, item_names, class_names, given_labels, other_names, format_
):
    """Every format returns any text that people type exactly."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "in").mkdir()
    shop = Shop(sqlite_store, folder / "in", item_names, class_names, other_names=other_names)
    for second, (item, class_, who, note) in enumerate(given_labels):
        shop.label(item, class_, who, START + timedelta(seconds=second), note=note)
    export_project(sqlite_store, shop.project, folder / "out", ExportOptions(format=format_, media=True))
    back = create_project(sqlite_store, f"back {uuid.uuid4()}", "image", settings=ProjectSettings(labels_per_item=2)).id
    run_import(sqlite_store, back, open_source(folder / "out"), ImportOptions(classes="add"))
    assert standing(sqlite_store, back) == latest_labels(standing(sqlite_store, shop.project))


def latest_labels(found: set[tuple]) -> set[tuple]:
    """The labels without those that the same person replaced later, which are not part of an export."""
    labels = [one for one in found if len(one) > 3]
    last: dict[tuple, tuple] = {}
    for one in sorted(labels, key=lambda one: one[4]):
        last[one[0], one[3]] = one
    return set(last.values()) | {one for one in found if len(one) == 3}


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", "＋1", "－1", "＠x", " =1", "\u200b=1"]
)
def test_cells_that_a_spreadsheet_would_run_are_neutralized(cell):
    """Characters that begin a formula, also after white space and in full width."""
    assert is_formula(cell)
    assert not is_formula("1=1") and not is_formula("cat")


def test_the_csv_is_safe_and_the_exact_values_are_imported(shop, tmp_path):
    """No text cell of the file starts with a formula character; JSONL and Parquet are exact."""
    export_project(shop.store, shop.project, tmp_path / "csv", ExportOptions(format="csv"))
    with open(tmp_path / "csv" / "labels.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["name"] == "'=1+1.png" and rows[0]["label"] == "'-dog"
    assert set(rows[0]["guarded_cells"].split()) == {"name", "label", "note"}
    for row in rows:
        assert not any(cell and cell[0] in "=+-@\t\r" for cell in row.values())
    export_project(shop.store, shop.project, tmp_path / "pq", ExportOptions(format="parquet"))
    exact = parquet.read_table(tmp_path / "pq" / "labels.parquet").to_pylist()
    assert (exact[0]["name"], exact[0]["label"], exact[0]["note"]) == ("=1+1.png", "-dog", "@note\nwith lines")
    assert exact[0]["at"] == START + timedelta(seconds=1)


def test_class_folders_are_named_by_us_and_load_by_their_metadata(shop, tmp_path):
    """The layout of Hugging Face datasets: a split folder, media below it, file_name relative to metadata.parquet."""
    shop.label(3, 0)
    export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="folders"))
    folder = tmp_path / "out" / "train"
    rows = parquet.read_table(folder / "metadata.parquet").to_pylist()
    assert next(iter(rows[0])) == "file_name"
    for row in rows:
        assert (folder / row["file_name"]).is_file()
        assert ".." not in row["file_name"].split("/")
    assert {path.name for path in folder.iterdir()} == {"metadata.parquet", "cat", "class-1-dog", "class-2"}
    said = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {row["name"]: row["folder"] for row in said["classes"]}[".."] == "class-2"


def test_pseudo_labels_are_exported_only_above_the_confidence_and_never_imported_as_labels(shop, tmp_path):
    store, project = shop.store, shop.project
    with pytest.raises(NotFound, match="no round has finished"):
        export_project(store, project, tmp_path / "no", ExportOptions(pseudo_above=0.5))
    log = RoundLog(store, project)
    row = log.request(RoundConfig())
    log.start(row.id)
    guesses = np.full((4, 4), 0.1, np.float32)
    guesses[3] = (0.02, 0.9, 0.05, 0.03)
    empty = Selection(item_ids=np.array([], np.int64), scores=np.array([], np.float32), strategy="bico")
    log.finish(row.id, arrays={"item_ids": np.array(shop.items), "probabilities": guesses}, selection=empty, metrics={})
    for confidence, n_rows in ((0.95, 3), (0.5, 4)):
        target = tmp_path / f"out{n_rows}"
        report = export_project(
            store, project, target, ExportOptions(format="jsonl", pseudo_above=confidence, media=True)
        )
        assert report.rows == n_rows
    last = json.loads((tmp_path / "out4" / "labels.jsonl").read_text().splitlines()[-1])
    assert (last["label"], last["source"], last["round"]) == ("-dog", "pseudo", 1)
    assert last["confidence"] == pytest.approx(0.9)
    back = create_project(store, "back", "image").id
    run_import(store, back, open_source(tmp_path / "out4"))
    assert Pool(store, back).counts().labeled == 3


def test_test_items_are_exported_with_their_labels_on_request(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "p", "audio").id
    write_files(tmp_path / "in", {"train/dog/a.wav": wav(1), "test/cat/b.wav": wav(2)})
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    assert export_project(sqlite_store, project, tmp_path / "a").rows == 1
    options = ExportOptions(format="folders", held_out=True)
    assert export_project(sqlite_store, project, tmp_path / "b", options).sources == {"label": 1, "truth": 1}
    back = create_project(sqlite_store, "back", "audio").id
    report = run_import(sqlite_store, back, open_source(tmp_path / "b"))
    assert (report.imported, report.held_out, report.labels) == (2, 1, 1)


def test_merged_labels_count_as_their_successor_and_retired_ones_stay(shop, tmp_path):
    store, project = shop.store, shop.project
    added = add_class(store, project, "hound")
    merge_classes(store, project, shop.classes[1], added.id)
    retire_class(store, project, shop.classes[3])
    export_project(store, project, tmp_path / "out", ExportOptions(format="jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert [(row["label"], row["label_given"]) for row in rows] == [("hound", "-dog"), ("hound", "-dog"), ("..", None)]


def test_label_studio_tasks_have_its_own_form_and_foreign_tasks_can_be_read(shop, tmp_path):
    export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="label-studio", media=True))
    tasks = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert [len(task["annotations"]) for task in tasks] == [2, 1, 2]
    choice = tasks[0]["annotations"][0]["result"][0]
    assert choice["type"] == "choices" and choice["value"]["choices"] == ["-dog"]
    for task in tasks:
        del task["meta"]
        task["data"]["image"] = f"media/{task['data']['sha256']}.png"
    (tmp_path / "out" / "tasks.json").write_text(json.dumps(tasks, indent=1))
    back = create_project(shop.store, "back", "image", settings=ProjectSettings(labels_per_item=2)).id
    report = run_import(shop.store, back, open_source(tmp_path / "out" / "tasks.json"), ImportOptions(classes="add"))
    assert (report.imported, report.labels) == (3, 5)


def test_an_empty_project_exports_an_empty_table(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "p", "audio").id
    for format_ in FORMATS:
        assert export_project(sqlite_store, project, tmp_path / format_, ExportOptions(format=format_)).rows == 0
        source = open_source(tmp_path / format_)
        assert list(source.entries()) == []


def test_exports_work_on_every_database(store, tmp_path):
    project = create_project(store, "p", "audio").id
    write_files(tmp_path / "in", {f"{k % 2}/{k}.wav": wav(k) for k in range(6)})
    run_import(store, project, open_source(tmp_path / "in"))
    export_project(store, project, tmp_path / "out", ExportOptions(format="parquet", media=True))
    back = create_project(store, "back", "audio").id
    run_import(store, back, open_source(tmp_path / "out"))
    assert standing(store, back) == standing(store, project)
