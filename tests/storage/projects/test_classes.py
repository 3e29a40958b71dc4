"""Changes of classes after labels exist; labels and history are kept."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from core.errors import Conflict, InvalidInput, NotFound
from storage.database.schema import ClassEvent
from storage.database.store import Store
from storage.projects.class_rows import KEYS
from storage.projects.classes import (
    add_class,
    list_classes,
    merge_classes,
    rename_class,
    restore_class,
    retire_class,
    style_class,
    unmerge_class,
)
from storage.projects.projects import archive_project, create_project
from tests.storage.pools import make_pool


def event_kinds(store: Store, project_id: int) -> list[str]:
    """The kinds of the stored class events, oldest first."""
    query = select(ClassEvent.kind).where(ClassEvent.project_id == project_id).order_by(ClassEvent.id)
    with store.read() as connection:
        return list(connection.execute(query).scalars())


ODD = [
    "a/b",
    "..",
    "CON",
    "**bold** ![](http://x)",
    " leading",
    "=1+1",
    "e\u0301",
    "é",
    "'; DROP TABLE classes;--",
    "🦉" * 400,
]


@pytest.mark.parametrize("name", ODD)
def test_any_name_is_kept_exactly(store: Store, name: str) -> None:
    project = create_project(store, "odd", "image", [name])
    assert [row.name for row in list_classes(store, project.id)] == [name]


@pytest.mark.parametrize("name", ["", "   ", "a\x00b", "\udc80", "x" * 1_001])
def test_names_that_cannot_be_kept_are_refused_and_nothing_is_made(store: Store, name: str) -> None:
    made = make_pool(store, 0)
    before = event_kinds(store, made.project_id)
    with pytest.raises(InvalidInput, match="The class name"):
        add_class(store, made.project_id, name)
    assert event_kinds(store, made.project_id) == before


def test_keys_and_colors_are_given_out_in_order_without_those_of_actions(store: Store) -> None:
    project = create_project(store, "many", "image", [f"class {number}" for number in range(36)])
    rows = list_classes(store, project.id)
    assert "".join(row.key or "-" for row in rows) == "1234567890bdhijkmopqtvwy------------"
    assert "c" not in KEYS and "r" not in KEYS
    assert [row.color for row in rows[:3]] == ["#4477AA", "#EE6677", "#228833"]
    assert len({row.color for row in rows}) == 36


def test_a_merge_counts_together_and_can_be_undone(store: Store) -> None:
    made = make_pool(store)
    robin, wren, owl = made.classes
    for item, class_id in zip(made.items, [robin, robin, wren, owl], strict=False):
        made.pool.label(item, class_id, annotator=made.ann)
    merge_classes(store, made.project_id, robin, wren, by=made.ann)
    merge_classes(store, made.project_id, wren, owl, by=made.ann)
    assert made.pool.counts().per_class == {owl: 4}
    assert made.pool.snapshot().class_names == ("owl",)
    unmerge_class(store, made.project_id, wren)
    assert made.pool.counts().per_class == {wren: 3, owl: 1}, "robin follows wren, as merged before"
    unmerge_class(store, made.project_id, robin)
    assert made.pool.counts().per_class == {robin: 2, wren: 1, owl: 1}
    assert event_kinds(store, made.project_id)[3:] == ["merge", "merge", "unmerge", "unmerge"]
    assert made.pool.history(made.items[0])[0].class_id == robin


def test_a_merge_can_turn_a_tie_and_undoing_it_turns_it_back(store: Store) -> None:
    made = make_pool(store, labels_per_item=3)
    robin, wren, owl = made.classes
    item = made.items[0]
    made.pool.label(item, robin, annotator=made.ann)
    made.pool.label(item, owl, annotator=made.bob)
    from storage.projects.annotators import annotator_named

    cay = annotator_named(store, "Cay").id
    made.pool.label(item, wren, annotator=cay)
    made.pool.undo(annotator=made.bob)
    made.pool.label(item, owl, annotator=made.bob)
    assert made.pool.item(item).class_id == owl, "three classes, one label each: the newest"
    merge_classes(store, made.project_id, robin, wren)
    assert made.pool.item(item).class_id == wren
    unmerge_class(store, made.project_id, robin)
    assert made.pool.item(item).class_id == owl


def test_invalid_changes_are_refused(store: Store) -> None:
    made = make_pool(store)
    robin, wren, owl = made.classes
    project = made.project_id
    with pytest.raises(InvalidInput, match="merged with itself"):
        merge_classes(store, project, robin, robin)
    merge_classes(store, project, robin, wren)
    with pytest.raises(Conflict, match="is already merged into another one; merge active classes only"):
        merge_classes(store, project, owl, robin)
    with pytest.raises(Conflict, match="already merged"):
        retire_class(store, project, robin)
    with pytest.raises(Conflict, match="already a class named 'wren'"):
        rename_class(store, project, owl, "wren")
    with pytest.raises(NotFound, match="There is no class 999 in this project"):
        rename_class(store, project, 999, "x")
    add_class(store, project, "robin")
    with pytest.raises(Conflict, match="already a class named 'robin'"):
        unmerge_class(store, project, robin)
    archive_project(store, project)
    with pytest.raises(Conflict, match="is archived"):
        add_class(store, project, "late")


def test_retired_classes_keep_their_labels_and_leave_training(store: Store) -> None:
    made = make_pool(store)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    retire_class(store, made.project_id, made.classes[0])
    snapshot = made.pool.snapshot()
    assert snapshot.class_names == ("wren", "owl") and not snapshot.labeled.any()
    assert not snapshot.eligible[snapshot.item_ids == made.items[0]].any()
    assert made.pool.item(made.items[0]).class_id == made.classes[0]
    restore_class(store, made.project_id, made.classes[0])
    assert made.pool.snapshot().labeled.sum() == 1


def test_keys_and_colors_can_be_changed_but_a_key_has_one_class(store: Store) -> None:
    made = make_pool(store)
    changed = style_class(store, made.project_id, made.classes[0], key="q", color="#aabbcc")
    assert (changed.key, changed.color) == ("q", "#AABBCC")
    with pytest.raises(Conflict, match="The key 'q' belongs to 'robin'"):
        style_class(store, made.project_id, made.classes[1], key="q")
    with pytest.raises(InvalidInput, match="is not a color"):
        style_class(store, made.project_id, made.classes[1], color="url(x)")
    assert style_class(store, made.project_id, made.classes[0], key="").key is None
