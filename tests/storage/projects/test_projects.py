"""Projects, annotators, and finding items."""

from __future__ import annotations

import pytest

from core.errors import Conflict, InvalidInput, NotFound
from storage.database.store import Store
from storage.labeling.pool import ItemFilter
from storage.projects.annotators import annotator_named, annotator_statistics, list_annotators, remove_annotator
from storage.projects.projects import (
    ProjectSettings,
    archive_project,
    create_project,
    get_project,
    list_projects,
    restore_project,
    update_project,
)
from tests.storage.pools import add_items, event, make_pool


def test_a_project_is_made_found_changed_and_archived(store: Store) -> None:
    made = create_project(store, "Birds", "audio", ["a", "b"], guidelines="Listen.", settings=ProjectSettings(seed=3))
    assert get_project(store, "Birds") == get_project(store, made.id) == made
    changed = update_project(store, made.id, name="Owls", guidelines="Listen twice.")
    assert (changed.name, changed.guidelines, changed.settings.seed) == ("Owls", "Listen twice.", 3)
    assert changed.revision > made.revision
    archive_project(store, made.id)
    assert list_projects(store) == [] and len(list_projects(store, include_archived=True)) == 1
    with pytest.raises(Conflict, match="archived"):
        update_project(store, made.id, name="x")
    restored = restore_project(store, made.id)
    assert restored.archived_at is None and list_projects(store) == [restored]
    assert update_project(store, made.id, name="Birds").name == "Birds"


def test_restoring_a_project_lets_people_label_again(store: Store) -> None:
    made = make_pool(store)
    archive_project(store, made.project_id)
    assert made.pool.next_to_label(annotator=made.ann, limit=1) == []
    assert not made.pool.label(made.items[0], made.classes[0], annotator=made.ann).accepted
    before = get_project(store, made.project_id)
    restored = restore_project(store, made.project_id)
    assert restored.revision > before.revision, "pages read the project again"
    assert len(made.pool.next_to_label(annotator=made.ann, limit=1)) == 1
    assert made.pool.label(made.items[0], made.classes[0], annotator=made.ann).accepted
    assert restore_project(store, made.project_id).archived_at is None, "restoring an active project is allowed"
    with pytest.raises(NotFound, match="There is no project"):
        restore_project(store, 999_999)


def test_a_taken_or_invalid_project_name_is_refused_and_nothing_is_created(store: Store) -> None:
    create_project(store, "Birds", "audio")
    for name, kind, error in [
        ("Birds", "audio", "already a project named 'Birds'"),
        ("Films", "video", "audio or image"),
        ("", "audio", "is empty"),
        ("a\x00", "audio", "NUL"),
        ("x" * 201, "audio", "201 characters; at most 200"),
    ]:
        with pytest.raises((Conflict, InvalidInput), match=error):
            create_project(store, name, kind)
    with pytest.raises(Conflict, match="already a class named 'a'"):
        create_project(store, "Frogs", "audio", ["a", "a"])
    assert [row.name for row in list_projects(store)] == ["Birds"]
    with pytest.raises(NotFound, match="There is no project 'Frogs'"):
        get_project(store, "Frogs")


@pytest.mark.parametrize(
    "bad", [{"labels_per_item": 0}, {"hidden_share": 2.0}, {"batch_size": 0}, {"lease_seconds": 1}]
)
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="use "):
        ProjectSettings(**bad)  # type: ignore[arg-type]


def test_annotators_by_name_and_by_sign_in(store: Store) -> None:
    ann = annotator_named(store, " Ann ")
    assert annotator_named(store, "Ann") == ann
    signed_in = annotator_named(store, "Ann", subject="oidc|1")
    assert (signed_in.name, signed_in.id != ann.id) == ("Ann (2)", True)
    assert annotator_named(store, "Another display name", subject="oidc|1") == signed_in
    remove_annotator(store, ann.id)
    with pytest.raises(Conflict, match="The annotator Ann was removed"):
        annotator_named(store, "Ann")
    assert [row.name for row in list_annotators(store)] == ["Ann (2)"]


def test_statistics_leave_out_undone_labels(store: Store) -> None:
    made = make_pool(store)
    for item, seconds in zip(made.items, [1.0, 3.0, 2.0, 50.0], strict=False):
        made.pool.label(item, made.classes[0], annotator=made.ann, seconds=seconds)
    made.pool.undo(annotator=made.ann)
    made.pool.apply([event(made.items[5], "skip"), event(made.items[6], "flag")], annotator=made.ann)
    made.pool.label(made.items[0], made.classes[0], annotator=made.bob, seconds=float("nan"))
    [ann, bob] = annotator_statistics(store, made.project_id)
    assert (ann.n_labels, ann.n_skips, ann.n_flags, ann.n_undone, ann.median_seconds) == (3, 1, 1, 1, 2.0)
    assert (bob.n_labels, bob.median_seconds) == (1, None)


def test_items_are_found_by_state_class_annotator_and_name(store: Store) -> None:
    made = make_pool(store, 6)
    robin, wren, _ = made.classes
    odd = add_items(store, made.project_id, ["100%_Ünder", "test"], held_out=False)
    made.pool.label(made.items[0], robin, annotator=made.ann)
    made.pool.label(made.items[1], wren, annotator=made.bob)
    made.pool.apply([event(made.items[2], "skip"), event(made.items[3], "flag")], annotator=made.ann)

    def found(**conditions) -> list[int]:
        which = ItemFilter(**conditions)
        rows = [row.id for row in made.pool.items(which)]
        assert made.pool.count_items(which) == len(rows)
        return rows

    assert found(state="labeled") == made.items[:2]
    assert found(state="skipped") == [made.items[2]]
    assert found(state="flagged") == [made.items[3]]
    assert found(state="waiting") == [*made.items[3:], *odd]
    assert found(class_id=wren) == [made.items[1]]
    assert found(annotator=made.ann) == [made.items[0]]
    assert found(search="100%_") == [odd[0]], "wildcards of the database are literal characters"
    assert found(search="BIRDS 4") == [made.items[4]]
    assert found(search="üNDER") == [odd[0]], "upper and lower case beyond ASCII too"
    assert [row.id for row in made.pool.items(order="newest", limit=2)] == [made.items[1], made.items[0]]
    assert [row.id for row in made.pool.items(limit=2, offset=3)] == made.items[3:5]
    with pytest.raises(NotFound, match="Item 999999 is not in this project"):
        made.pool.item(999_999)
