"""Who may do what: one test for each cell of the table in docs/people.md, and the rules about members."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jobs.prediction_jobs import run_prediction
from app.jobs.requests import PredictionRequest
from core.config import RoundConfig
from core.errors import Conflict, Forbidden, InvalidInput, NotFound
from core.types import ignore
from storage.exporting.run import export_project
from storage.importing import watches
from storage.importing.runs import start as start_import
from storage.labeling.held_out import move_to_pool, move_to_test
from storage.labeling.pool import Pool
from storage.labeling.test_sets import draw_test_set
from storage.projects import audit, roles
from storage.projects.annotators import annotator_named
from storage.projects.classes import add_class, list_classes, style_class
from storage.projects.deletion import plan_deletion, request_deletion
from storage.projects.projects import (
    ProjectSettings,
    archive_project,
    create_project,
    get_project,
    list_projects,
    restore_project,
    update_project,
)
from storage.projects.roles import ROLES, Actor, acting_as, set_role
from storage.projects.setups import duplicate_setup
from storage.rounds import simulations
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, event, make_pool

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "people.md").read_text()


def read(made: Made, folder: Path) -> None:
    pool = Pool(made.store, made.project_id)
    assert get_project(made.store, made.project_id).id in {row.id for row in list_projects(made.store)}
    assert pool.items() and pool.history(made.items[0]) == [] and list_classes(made.store, made.project_id)
    assert RoundLog(made.store, made.project_id).list() == []


def lease(made: Made, folder: Path) -> None:
    pool = Pool(made.store, made.project_id)
    assert pool.next_to_label(annotator=made.ann, holder="tab")
    pool.release(annotator=made.ann, holder="tab")


def label(made: Made, folder: Path) -> None:
    apply(made, "label", class_id=made.classes[0])
    apply(made, "flag")


def predict(made: Made, folder: Path) -> None:
    """Request predictions: if the role permits it, the error is that there is no model yet."""
    request = PredictionRequest(project_id=made.project_id, target=str(folder / "out.jsonl"), item_ids=(1,))
    with pytest.raises(InvalidInput, match="No finished round"):
        run_prediction(made.store, request, ignore)


def decide(made: Made, folder: Path) -> None:
    apply(made, "decide", class_id=made.classes[0])


def apply(made: Made, kind: str, **fields: object) -> None:
    """A refused event is not stored; its reason is raised here, so that all rows of the table are tested alike."""
    given = event(made.items[0], kind, **fields)
    answer = Pool(made.store, made.project_id).apply([given], annotator=made.ann)[0]
    stored = {row.uuid for row in Pool(made.store, made.project_id).history(made.items[0])}
    assert (given.uuid in stored) == answer.accepted
    if not answer.accepted:
        raise Forbidden(answer.reason)


def change_classes(made: Made, folder: Path) -> None:
    add_class(made.store, made.project_id, "lark")
    style_class(made.store, made.project_id, made.classes[0], color="#112233")


def change_settings(made: Made, folder: Path) -> None:
    update_project(made.store, made.project_id, settings=ProjectSettings(batch_size=3))


def bring_in(made: Made, folder: Path) -> None:
    start_import(made.store, made.project_id, "a folder", {}, [])
    watches.start(made.store, made.project_id, new_folder(folder))
    watches.stop(made.store, made.project_id)


def new_folder(parent: Path) -> Path:
    """A folder beside that of the store."""
    (parent / "incoming").mkdir(exist_ok=True)
    return parent / "incoming"


def stop_watching(made: Made, folder: Path) -> None:
    watches.stop(made.store, made.project_id)


def put_first(made: Made, folder: Path) -> None:
    Pool(made.store, made.project_id).put_first(made.items[:2])


def request_round(made: Made, folder: Path) -> None:
    row = RoundLog(made.store, made.project_id).request(RoundConfig())
    RoundLog(made.store, made.project_id).cancel(row.id)


def simulate(made: Made, folder: Path) -> None:
    number = simulations.request(made.store, made.project_id, {}, {})
    simulations.cancel(made.store, number)
    simulations.remove(made.store, number)


def export(made: Made, folder: Path) -> None:
    export_project(made.store, made.project_id, folder / "out")


def archive(made: Made, folder: Path) -> None:
    archive_project(made.store, made.project_id)
    restore_project(made.store, made.project_id)


def duplicate(made: Made, folder: Path) -> None:
    duplicate_setup(made.store, made.project_id, "copy")


def move_test_items(made: Made, folder: Path) -> None:
    assert move_to_test(made.store, made.project_id, made.items[:1]).moved == 1
    assert move_to_pool(made.store, made.project_id, made.items[:1]).moved == 1
    assert draw_test_set(made.store, made.project_id, 1).draw.n_items == 1


def delete_items(made: Made, folder: Path) -> None:
    assert plan_deletion(made.store, made.project_id, made.items[:1]).items == 1
    name = get_project(made.store, made.project_id).name
    assert request_deletion(made.store, made.project_id, name, made.items[:1]).item_ids == made.items[:1]


def give_role(made: Made, folder: Path) -> None:
    set_role(made.store, made.project_id, made.bob, "viewer")


VERBS: dict[str, Callable[[Made, Path], None]] = {
    "see items, media, labels, history, rounds, picks and predictions": read,
    "get items from the queue and release them": lease,
    "label, skip, flag, write notes, undo": label,
    "predict files and items with the model of a round, on the server": predict,
    "decide in a review": decide,
    "change classes": change_classes,
    "change the settings and the guidelines": change_settings,
    "import and watch folders": bring_in,
    "put items first in the queue": put_first,
    "request and cancel rounds and comparisons": request_round,
    "run and remove simulations": simulate,
    "export": export,
    "duplicate the setup, as a new project": duplicate,
    "move items to the test items and back, draw test items": move_test_items,
    "archive and restore the project": archive,
    "delete items or the project": delete_items,
    "give and remove roles": give_role,
}


def table() -> dict[tuple[str, str], bool]:
    """(what, role) -> whether docs/people.md says yes."""
    lines = [line for line in PAGE.splitlines() if re.search(r"\| (yes|no) \|", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        (what, role): answer == "yes" for what, *answers in cells for role, answer in zip(ROLES, answers, strict=True)
    }


def test_the_table_has_one_row_for_each_tested_action():
    assert {what for what, _ in table()} == set(VERBS)


@pytest.fixture
def made(sqlite_store) -> Made:
    """A project whose owner is Olga; Ann gets the role of the test."""
    made = make_pool(sqlite_store, 4)
    set_role(sqlite_store, made.project_id, annotator_named(sqlite_store, "Olga").id, "owner")
    return made


@pytest.mark.parametrize(("what", "role"), sorted(table()))
def test_a_cell_of_the_table_holds(made, tmp_path, what, role):
    set_role(made.store, made.project_id, made.ann, role)
    with acting_as(Actor(made.ann)):
        if table()[what, role]:
            VERBS[what](made, tmp_path)
        else:
            with pytest.raises(Forbidden, match=f"is {role}"):
                VERBS[what](made, tmp_path)


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
@pytest.mark.parametrize("role", ROLES)
def test_the_cells_of_a_role_hold_on_postgresql(store, tmp_path, role):
    for number, what in enumerate(sorted(VERBS)):
        made = make_pool(store, 4, name=f"birds {number}")
        set_role(store, made.project_id, annotator_named(store, "Olga").id, "owner")
        set_role(store, made.project_id, made.ann, role)
        folder = tmp_path / str(number)
        folder.mkdir()
        with acting_as(Actor(made.ann)):
            if table()[what, role]:
                VERBS[what](made, folder)
            else:
                with pytest.raises(Forbidden, match=f"is {role}"):
                    VERBS[what](made, folder)


@pytest.mark.parametrize("what", sorted(VERBS))
def test_nobody_else_sees_a_project_that_has_members(made, tmp_path, what):
    for actor in (Actor(made.bob), Actor(None)):
        with acting_as(actor), pytest.raises((NotFound, Forbidden), match="There is no project"):
            VERBS[what](made, tmp_path)
        with acting_as(actor):
            assert list_projects(made.store) == []


@pytest.mark.parametrize("what", sorted(VERBS))
def test_in_a_project_without_members_everyone_is_an_owner(sqlite_store, tmp_path, what):
    """The rule for stores of versions before roles, and for work on one machine."""
    made = make_pool(sqlite_store, 4)
    with acting_as(Actor(made.ann)):
        if what == "give and remove roles":
            set_role(made.store, made.project_id, made.ann, "owner")
        else:
            VERBS[what](made, tmp_path)


@pytest.mark.parametrize("what", sorted(VERBS))
def test_the_operator_may_do_everything(made, tmp_path, what):
    VERBS[what](made, tmp_path)


def test_a_watch_that_runs_can_only_be_stopped_by_an_editor(made, tmp_path):
    watches.start(made.store, made.project_id, new_folder(tmp_path))
    set_role(made.store, made.project_id, made.ann, "annotator")
    with acting_as(Actor(made.ann)), pytest.raises(Forbidden):
        stop_watching(made, tmp_path)
    assert watches.get(made.store, made.project_id).status == "active"


def test_the_lower_of_token_role_and_membership_counts(made, tmp_path):
    set_role(made.store, made.project_id, made.ann, "editor")
    with acting_as(Actor(made.ann, "annotator")):
        label(made, tmp_path)
        with pytest.raises(Forbidden, match="is annotator"):
            change_classes(made, tmp_path)
        with pytest.raises(Forbidden, match="Creating a project"):
            create_project(made.store, "Another", "audio")
    set_role(made.store, made.project_id, made.ann, "viewer")
    with acting_as(Actor(made.ann, "owner")), pytest.raises(Forbidden, match="is viewer"):
        label(made, tmp_path)


def test_a_project_with_members_keeps_an_owner(sqlite_store):
    made = make_pool(sqlite_store, 1)
    with pytest.raises(Conflict, match="no owner"):
        set_role(made.store, made.project_id, made.bob, "editor")
    assert roles.list_members(made.store, made.project_id) == []
    set_role(made.store, made.project_id, made.ann, "owner")
    set_role(made.store, made.project_id, made.bob, "editor")
    with pytest.raises(Conflict, match="no owner"):
        set_role(made.store, made.project_id, made.ann, None)
    assert [(row.name, row.role) for row in roles.list_members(made.store, made.project_id)] == [
        ("Ann", "owner"),
        ("Bob", "editor"),
    ]
    with pytest.raises(InvalidInput, match="no role 'admin'"):
        set_role(made.store, made.project_id, made.bob, "admin")  # type: ignore[arg-type]


def test_a_change_of_roles_is_in_the_audit_log(made):
    with acting_as(Actor(annotator_named(made.store, "Olga").id)):
        set_role(made.store, made.project_id, made.ann, "editor")
    entry = audit.list_entries(made.store, made.project_id)[0]
    assert (entry.kind, entry.detail) == ("set_role", {"annotator": made.ann, "role": "editor"})
    assert entry.annotator_id == annotator_named(made.store, "Olga").id


def test_with_an_identity_provider_a_new_project_belongs_to_its_creator(store):
    ann, bob = (annotator_named(store, name).id for name in ("Ann", "Bob"))
    with acting_as(Actor(ann, owns_new=True)):
        made = create_project(store, "Birds", "audio", ["wren"])
        copy = duplicate_setup(store, made.id, "Birds again")
        for project in (made, copy):
            assert [(row.name, row.role) for row in roles.list_members(store, project.id)] == [("Ann", "owner")]
    entry = audit.list_entries(store, made.id)[0]
    assert (entry.kind, entry.annotator_id, entry.detail) == ("set_role", ann, {"annotator": ann, "role": "owner"})
    with acting_as(Actor(bob, owns_new=True)):
        assert list_projects(store) == []
    with acting_as(Actor(ann, owns_new=True)):
        set_role(store, made.id, bob, "viewer")
    with acting_as(Actor(bob, owns_new=True)):
        assert [row.name for row in list_projects(store)] == ["Birds"]


def test_without_an_identity_provider_a_new_project_is_open(sqlite_store):
    with acting_as(Actor(annotator_named(sqlite_store, "Ann").id)):
        made = create_project(sqlite_store, "Birds", "audio")
    assert roles.list_members(sqlite_store, made.id) == []
    with acting_as(Actor(None, owns_new=True)):  # nobody has signed in
        made = create_project(sqlite_store, "More birds", "audio")
    assert roles.list_members(sqlite_store, made.id) == []


def test_removing_someone_who_is_no_member_changes_nothing(made):
    before = audit.list_entries(made.store, made.project_id)
    assert set_role(made.store, made.project_id, made.bob, None) is None
    assert audit.list_entries(made.store, made.project_id) == before
