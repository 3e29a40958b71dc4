"""Deleting projects and items for good, duplicating a setup, test items and disk use."""

from __future__ import annotations

import pytest
from sqlalchemy import func, insert, select

from core.errors import Conflict, Forbidden, InvalidInput, NotFound
from storage.database.schema import METADATA, Item, Setting
from storage.database.store import Store
from storage.labeling.held_out import move_to_pool, move_to_test
from storage.labeling.pool import ItemFilter, Pool
from storage.projects import audit, deletion
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, merge_classes, style_class
from storage.projects.disk_use import disk_use
from storage.projects.projects import ProjectSettings, get_project, update_project
from storage.projects.roles import Actor, acting_as, set_role
from storage.projects.setups import duplicate_setup
from storage.rounds import comparisons, simulations
from storage.rounds.log import RoundLog
from tests.app import sample_store


@pytest.fixture
def project(store):
    """A project with labels, notes, a lease, a merge, a finished round, a comparison, a simulation and a member."""
    made = sample_store.audio_project(store, "Birds", 6)
    pool, ann = Pool(store, made.id), annotator_named(store, "Ann").id
    items, known = pool.items(), list_classes(store, made.id)
    pool.label(items[0].id, known[0].id, annotator=ann, suggested_class_id=known[1].id, suggestion="shown")
    pool.next_to_label(annotator=ann, holder="tab")
    merge_classes(store, made.id, known[3].id, known[2].id, by=ann)
    sample_store.finish_round(store, made, 3)
    row = RoundLog(store, made.id).latest("finished")
    comparisons.request(store, row.id, ["uniform"])
    simulations.cancel(store, simulations.request(store, made.id, {}, {}))
    set_role(store, made.id, ann, "owner")
    return made


def counts(store) -> dict[str, int]:
    with store.read() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in METADATA.sorted_tables
        }


def with_shared_item(store, project):
    """Another project that also has the bytes of the first item."""
    other = sample_store.audio_project(store, "Other", 0)
    first = Pool(store, project.id).items()[0]
    sample_store.add_items(store, other, [("same.wav", store.media.read(first.sha256))])
    return other, first.sha256


def settings_of_projects(store: Store) -> list[str]:
    kinds = ("comparison/", "round-names/", "shared-media/")
    with store.read() as connection:
        keys = connection.execute(select(Setting.key).order_by(Setting.key)).scalars().all()
    return [key for key in keys if key.startswith(kinds)]


def test_a_deleted_project_leaves_no_row_and_no_file_except_those_of_others(store, project):
    before = counts(store)
    other, shared = with_shared_item(store, project)
    with store.write() as connection:
        for start in ("round-names/{}", "round-names/{}0", "shared-media/{}/x", "shared-media/{}0/x"):
            connection.execute(insert(Setting).values(key=start.format(project.id), value={}))
    with_other = counts(store)
    plan = deletion.plan_deletion(store, project.id)
    assert (plan.items, plan.events, plan.rounds, plan.media_removed, plan.media_shared) == (6, 1, 1, 5, 1)
    row = deletion.request_deletion(store, project.id, "Birds")
    assert get_project(store, project.id).archived_at is not None
    done = deletion.run_deletion(store, row.id)
    assert done.finished and done.counts["items"] == 6 and done.counts["label_events"] == 1
    with pytest.raises(NotFound):
        get_project(store, project.id)
    after = counts(store)
    kept = {"annotators", "audit_entries", "deletions", "settings", "winnow_version"}
    left = {name: n - (with_other[name] - before[name]) for name, n in after.items() if n and name not in kept}
    assert {name: n for name, n in left.items() if n} == {}
    assert settings_of_projects(store) == [f"round-names/{project.id}0", f"shared-media/{project.id}0/x"]
    files = [path.name for path in store.media.root.glob("??/*")]
    assert files == [shared]
    assert list((store.home / "artifacts").glob("??/*")) == []
    assert Pool(store, other.id).counts().total == 1 and Pool(store, other.id).rebuild() == 0


def test_a_deletion_needs_the_exact_name_an_owner_and_no_running_work(store, project):
    before = counts(store)
    for typed in ("birds", "", "Birds "):
        with pytest.raises(InvalidInput, match="not the project's name"):
            deletion.request_deletion(store, project.id, typed)
    set_role(store, project.id, annotator_named(store, "Ed").id, "editor")
    with acting_as(Actor(annotator_named(store, "Ed").id)), pytest.raises(Forbidden, match="owner"):
        deletion.request_deletion(store, project.id, "Birds")
    from core.config import RoundConfig

    asked = RoundLog(store, project.id).request(RoundConfig())
    with pytest.raises(Conflict, match="round of this project is running"):
        deletion.request_deletion(store, project.id, "Birds")
    RoundLog(store, project.id).cancel(asked.id)
    changed = {"annotators": 1, "memberships": 1, "audit_entries": 1, "rounds": 1}
    assert counts(store) == {name: n + changed.get(name, 0) for name, n in before.items()}


def test_an_interrupted_deletion_continues_and_removes_the_same(store, project, monkeypatch):
    """A run that ends after any block: the next one finishes, and no file is left behind."""
    monkeypatch.setattr(deletion, "BLOCK", 2)
    row = deletion.request_deletion(store, project.id, "Birds")

    class Killed(BaseException):
        pass

    def die(store, names):
        if names:
            raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(deletion, "remove_unreferenced", die)
        for _ in range(2):  # dies after the first block, and again before it continues
            with pytest.raises(Killed):
                deletion.run_deletion(store, row.id)
    assert Pool(store, project.id).counts().total == 4
    with pytest.raises(Conflict, match="has not finished"):
        deletion.request_deletion(store, project.id, "Birds")
    assert [one.id for one in deletion.unfinished_deletions(store)] == [row.id]
    done = deletion.run_deletion(store, row.id)
    assert done.finished and done.counts["items"] == 6
    assert list(store.media.root.glob("??/*")) == [] and deletion.unfinished_deletions(store) == []
    assert deletion.run_deletion(store, row.id) == done


def test_items_are_deleted_with_their_events_and_the_rest_stays_consistent(store, project):
    pool = Pool(store, project.id)
    gone = [item.id for item in pool.items()[:2]]
    hashes = {item.id: item.sha256 for item in pool.items()}
    row = deletion.request_deletion(store, project.id, "Birds", [*gone, 10**9])
    assert row.item_ids == gone
    deletion.run_deletion(store, row.id)
    assert [item.id for item in pool.items()] == sorted(set(hashes) - set(gone))
    assert pool.history(gone[0]) == [] and pool.rebuild() == 0 and pool.counts().labeled == 0
    assert {path.name for path in store.media.root.glob("??/*")} == {hashes[i] for i in hashes if i not in gone}
    assert RoundLog(store, project.id).latest("finished") is not None
    assert get_project(store, project.id).archived_at is None


def test_media_stay_while_an_import_runs(store, project):
    """The files of the import may not have a row yet."""
    from storage.importing.runs import start

    other = sample_store.audio_project(store, "Other", 0)
    start(store, other.id, "a folder", {}, [])
    n_files = len(list(store.media.root.glob("??/*")))
    row = deletion.request_deletion(store, project.id, "Birds")
    deletion.run_deletion(store, row.id)
    assert len(list(store.media.root.glob("??/*"))) == n_files


def test_the_audit_log_says_who_deleted_what(store, project):
    ann = annotator_named(store, "Ann").id
    with acting_as(Actor(ann)):
        row = deletion.request_deletion(store, project.id, "Birds")
    deletion.run_deletion(store, row.id)
    finished, requested = audit.list_entries(store, project.id)[:2]
    assert (requested.kind, requested.annotator_id, requested.detail["project"]) == ("request_deletion", ann, "Birds")
    assert (finished.kind, finished.annotator_id) == ("finish_deletion", ann)
    assert finished.detail["deleted"]["items"] == 6


def test_a_duplicated_setup_has_the_classes_and_settings_and_nothing_else(store, project):
    style_class(store, project.id, list_classes(store, project.id)[0].id, key="q", color="#010203")
    update_project(store, project.id, settings=ProjectSettings(batch_size=7), guidelines="Listen.")
    made = duplicate_setup(store, project.id, "Birds 2")
    assert (made.kind, made.guidelines, made.settings.batch_size) == ("audio", "Listen.", 7)
    names = ("name", "key", "color", "position")

    def shown(project_id):
        return [[getattr(row, name) for name in names[:3]] for row in list_classes(store, project_id)]

    assert shown(made.id) == shown(project.id)
    assert Pool(store, made.id).counts().total == 0
    with pytest.raises(Conflict, match="already a project"):
        duplicate_setup(store, project.id, "Birds")


def test_a_labeled_item_becomes_a_test_item_with_a_warning_and_returns(store, project):
    pool = Pool(store, project.id)
    labeled, other = pool.items()[0].id, pool.items()[1].id
    move = move_to_test(store, project.id, [labeled, other])
    assert (move.moved, move.unchanged) == (2, 0) and "1 of the items were labeled" in move.warnings[0]
    snapshot = pool.snapshot()
    row = list(snapshot.item_ids).index(labeled)
    assert snapshot.held_out[row] and snapshot.held_out_labels[row] == 0 and snapshot.labels[row] == -1
    assert not pool.item(other).waiting and pool.rebuild() == 0 and pool.counts().held_out == 2
    back = move_to_pool(store, project.id, [labeled, other])
    assert back.moved == 2 and "may train" in back.warnings[0]
    assert pool.item(other).waiting and pool.snapshot().labels[row] == 0
    assert move_to_pool(store, project.id, [other]).unchanged == 1
    with pytest.raises(NotFound, match="1 of 2 items"):
        move_to_test(store, project.id, [other, 10**9])
    assert pool.items(ItemFilter(state="held_out")) == []


def test_disk_use_counts_media_once_and_names_the_shared_part(store, project):
    _, shared = with_shared_item(store, project)
    use = disk_use(store, project.id)
    sizes = {path.name: path.stat().st_size for path in store.media.root.glob("??/*")}
    assert (use.media_files, use.media_bytes, use.shared_bytes) == (6, sum(sizes.values()), sizes[shared])
    arrays = list((store.home / "artifacts").glob("??/*"))
    assert (use.artifact_files, use.artifact_bytes) == (len(arrays), sum(path.stat().st_size for path in arrays))
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(Item)).scalar_one() == 7
