"""The rules of the projections, case by case: which label counts, which items wait, and who is served them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select, update

from storage.database.schema import Item, ItemState, Project, QueueCursor
from storage.database.store import Store
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.labeling.projections import DerivedState, derive
from storage.projects.projects import ProjectSettings, get_project
from tests.storage.labeling.test_rebuild import check_sequence
from tests.storage.pools import add_items, event, make_pool

ANN, BOB, CAY = 1, 2, 3
ROBIN, WREN, OWL = 11, 12, 13
OWN = {ROBIN: ROBIN, WREN: WREN, OWL: OWL}


@dataclass
class Event:
    sequence: int
    kind: str
    annotator_id: int
    class_id: int | None = None
    undoes: str | None = None

    @property
    def uuid(self) -> str:
        return f"event {self.sequence}"


def log(*steps: tuple[Any, ...]) -> list[Event]:
    return [Event(number, *one) for number, one in enumerate(steps, start=1)]


def test_without_events_nothing_is_known():
    assert derive([], {}) == DerivedState({}, None, False, False, False, None)
    assert DerivedState() == DerivedState({}, None, False, False, False, None)
    assert DerivedState().n_labels == 0


def test_the_newest_label_of_each_annotator_is_current():
    found = derive(log(("label", ANN, ROBIN), ("label", BOB, WREN), ("label", ANN, OWL)), OWN)
    assert found.labels == {ANN: (OWL, 3), BOB: (WREN, 2)}
    assert found.n_labels == 2


def test_the_majority_counts_and_a_tie_goes_to_the_newest_label():
    majority = derive(log(("label", ANN, ROBIN), ("label", BOB, ROBIN), ("label", CAY, WREN)), OWN)
    assert (majority.class_id, majority.sequence) == (ROBIN, 2)
    tie = derive(log(("label", ANN, ROBIN), ("label", BOB, WREN)), OWN)
    assert (tie.class_id, tie.sequence) == (WREN, 2)
    other = derive(log(("label", BOB, WREN), ("label", ANN, ROBIN)), OWN)
    assert (other.class_id, other.sequence) == (ROBIN, 2)


def test_merged_classes_count_as_one_and_the_label_stays_as_given():
    events = log(("label", ANN, ROBIN), ("label", BOB, WREN), ("label", CAY, OWL))
    assert derive(events, OWN).class_id == OWL
    found = derive(events, {ROBIN: ROBIN, WREN: ROBIN, OWL: OWL})
    assert (found.class_id, found.sequence) == (WREN, 2)
    assert found.labels == {ANN: (ROBIN, 1), BOB: (WREN, 2), CAY: (OWL, 3)}
    assert derive(events, {}).class_id == OWL, "a class without an entry counts as itself"


def test_a_decision_counts_more_than_any_labels():
    found = derive(log(("label", ANN, ROBIN), ("decide", BOB, WREN), ("label", CAY, ROBIN)), OWN)
    assert (found.class_id, found.sequence, found.decided, found.n_labels) == (WREN, 2, True, 2)
    twice = derive(log(("decide", ANN, ROBIN), ("decide", BOB, OWL)), OWN)
    assert (twice.class_id, twice.sequence, twice.n_labels) == (OWL, 2, 0)


def test_a_skip_takes_the_annotators_label_away_and_a_later_label_ends_it():
    skipped = derive(log(("label", ANN, ROBIN), ("skip", ANN)), OWN)
    assert (skipped.labels, skipped.skipped, skipped.class_id) == ({}, True, None)
    again = derive(log(("skip", ANN), ("label", BOB, WREN)), OWN)
    assert (again.skipped, again.class_id) == (False, WREN)
    decided = derive(log(("skip", ANN), ("decide", BOB, WREN)), OWN)
    assert (decided.skipped, decided.decided) == (False, True)


def test_the_newest_flag_or_unflag_counts():
    assert derive(
        log(
            ("flag", ANN),
        ),
        OWN,
    ).flagged
    assert not derive(log(("flag", ANN), ("unflag", BOB)), OWN).flagged
    assert not derive(log(("label", ANN, ROBIN), ("note", ANN)), OWN).flagged


def test_undone_events_are_ignored():
    found = derive(log(("label", ANN, ROBIN), ("label", ANN, WREN), ("undo", ANN, None, "event 2")), OWN)
    assert (found.labels, found.class_id) == ({ANN: (ROBIN, 1)}, ROBIN)


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_a_long_sequence_gives_what_an_independent_replay_gives(sqlite_store: Store, wanted: int):
    steps: list[tuple[Any, ...]] = [
        ("label", 0, 0, 0), ("label", 0, 1, 1), ("label", 0, 2, 1), ("merge", 1, 2), ("label", 1, 0, 1),
        ("undo", 1), ("decide", 2, 0, 0), ("skip", 3, 1), ("label", 3, 2, 0), ("unmerge", 1), ("undo", 2),
        ("flag", 0, 0), ("undo one", 1, 1), ("again", 2, 0), ("retire", 0), ("label", 1, 1, 0), ("label", 1, 1, 2),
    ]  # fmt: skip
    check_sequence(sqlite_store, steps, wanted)


def queue_of(pool: Pool, annotator: int) -> list[int]:
    pool.release(annotator=annotator)
    return [row.id for row in pool.next_to_label(annotator=annotator, holder="tab", limit=50)]


def test_an_item_with_an_undone_label_is_offered_again_only_to_the_same_annotator(sqlite_store: Store):
    """The annotator's position in the queue is behind the item, which still waits for a second label."""
    made = make_pool(sqlite_store, 8, labels_per_item=2)
    order = queue_of(made.pool, made.ann)
    first = event(order[0], class_id=made.classes[0])
    made.pool.apply([first], annotator=made.ann)
    for item in order[1:4]:
        made.pool.label(item, made.classes[0], annotator=made.ann)
    assert queue_of(made.pool, made.ann) == order[4:]
    made.pool.release(annotator=made.ann)
    for item in order[1:6]:
        made.pool.label(item, made.classes[1], annotator=made.bob)
    assert queue_of(made.pool, made.bob) == [order[0], *order[6:]]
    made.pool.release(annotator=made.bob)
    made.pool.apply([event(order[0], "undo", undoes=first.uuid)], annotator=made.ann)
    assert queue_of(made.pool, made.ann) == [order[0], *order[4:]]
    made.pool.release(annotator=made.ann)
    assert queue_of(made.pool, made.bob) == [order[0], *order[6:]]


def test_a_changed_label_moves_no_place_in_the_queue(sqlite_store: Store):
    made = make_pool(sqlite_store, 6, labels_per_item=2)
    order = queue_of(made.pool, made.ann)
    for item in order[:3]:
        made.pool.label(item, made.classes[0], annotator=made.ann)
    assert queue_of(made.pool, made.ann) == order[3:]

    def cursor() -> int:
        with sqlite_store.read() as connection:
            return connection.execute(select(QueueCursor.item_id)).scalar_one()

    before = cursor()
    made.pool.label(order[0], made.classes[1], annotator=made.ann)
    assert cursor() == before == order[3]


def test_an_item_that_waits_again_is_served_to_all(sqlite_store: Store):
    """After a skip an item does not wait; after its undo it waits again, before the queue position of every
    annotator."""
    made = make_pool(sqlite_store, 6, labels_per_item=2)
    order = queue_of(made.pool, made.ann)
    skip = event(order[0], "skip")
    made.pool.apply([skip], annotator=made.ann)
    made.pool.release(annotator=made.ann)
    assert queue_of(made.pool, made.bob) == order[1:]
    made.pool.release(annotator=made.bob)
    made.pool.apply([event(order[0], "undo", undoes=skip.uuid)], annotator=made.ann)
    assert queue_of(made.pool, made.bob) == order


def test_projects_without_the_setting_need_one_label_per_item(sqlite_store: Store):
    assert ProjectSettings().labels_per_item == 1
    made = make_pool(sqlite_store, 2)
    with sqlite_store.write() as connection:
        connection.execute(update(Project).values(settings={}))
    with sqlite_store.read() as connection:
        assert projections.labels_per_item(connection, made.project_id) == 1
    assert get_project(sqlite_store, made.project_id).settings.labels_per_item == 1
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert made.pool.rebuild() == 0
    assert made.pool.counts().waiting == 1


def test_a_rebuild_counts_what_differed(sqlite_store: Store):
    made = make_pool(sqlite_store, 4)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    made.pool.label(made.items[1], made.classes[0], annotator=made.ann)
    with sqlite_store.write() as connection:
        connection.execute(update(ItemState).where(ItemState.item_id == made.items[0]).values(n_labels=7))
    assert made.pool.rebuild() == 1
    assert made.pool.rebuild() == 0
    with sqlite_store.write() as connection:
        connection.execute(
            update(projections.CurrentLabel)
            .where(projections.CurrentLabel.item_id == made.items[1])
            .values(class_id=made.classes[2])
        )
    assert made.pool.rebuild() == 1
    assert made.pool.own_state(made.items[1], made.ann).class_id == made.classes[0]


@pytest.mark.parametrize(
    ("fields", "waits"),
    [({}, True), ({"held_out": True}, False), ({"condition": "unreadable"}, False)],
)
def test_new_items_wait_unless_they_are_held_out_or_unreadable(sqlite_store: Store, fields, waits):
    made = make_pool(sqlite_store, 0)
    [item] = add_items(sqlite_store, made.project_id, ["new"], **fields)
    with sqlite_store.read() as connection:
        row = connection.execute(select(ItemState.__table__)).one()
        sha256 = connection.execute(select(Item.sha256)).scalar_one()
    assert (row.item_id, row.waiting, row.n_labels, row.class_id, row.sequence) == (item, waits, 0, None, None)
    assert (row.decided, row.skipped, row.flagged) == (False, False, False)
    assert row.shuffle == int(sha256[:8], 16) % 2**31
    assert made.pool.rebuild() == 0


def test_positions_in_the_queue_are_31_bits_of_the_hash():
    assert projections.shuffle_of("00000005" + "f" * 56) == 5
    assert projections.shuffle_of("80000005" + "0" * 56) == 5
    assert projections.shuffle_of("7fffffff" + "0" * 56) == 2**31 - 1


@pytest.mark.parametrize("wanted", [1, 2])
def test_another_number_of_labels_changes_what_waits(sqlite_store: Store, wanted: int):
    made = make_pool(sqlite_store, 5, labels_per_item=2)
    held_out = add_items(sqlite_store, made.project_id, ["test"], held_out=True)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    made.pool.apply([event(made.items[1], "skip")], annotator=made.ann)
    made.pool.apply([event(made.items[2], "decide", made.classes[0])], annotator=made.ann)
    with sqlite_store.write() as connection:
        projections.refresh_waiting(connection, made.project_id, wanted)
        query = select(ItemState.item_id).where(ItemState.waiting).order_by(ItemState.item_id)
        waiting = list(connection.execute(query).scalars())
        assert connection.execute(select(QueueCursor)).all() == []
    assert waiting == ([made.items[0]] if wanted == 2 else []) + made.items[3:]
    assert held_out[0] not in waiting


def test_the_queue_begins_at_its_very_first_position(sqlite_store: Store):
    made = make_pool(sqlite_store, 3, labels_per_item=2)
    with sqlite_store.write() as connection:
        connection.execute(update(ItemState).where(ItemState.item_id == made.items[1]).values(shuffle=0))
    assert queue_of(made.pool, made.ann)[0] == made.items[1]


def test_places_in_the_queue_of_another_project_stay(sqlite_store: Store):
    one, other = (make_pool(sqlite_store, 3, name, labels_per_item=2) for name in ("one", "other"))
    for made in (one, other):
        queue_of(made.pool, made.ann)
    with sqlite_store.write() as connection:
        projections.refresh_waiting(connection, one.project_id, 3)
        left = connection.execute(select(QueueCursor.project_id)).scalars().all()
    assert left == [other.project_id]
