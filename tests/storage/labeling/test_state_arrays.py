"""Item states in memory: equal to the store after every change, and updated at a cost that does not grow."""

from __future__ import annotations

import dataclasses
import sqlite3
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, func, select, update

from storage.database.schema import Item, ItemState, LabelEvent, Project
from storage.database.store import Store
from storage.labeling import state_arrays
from storage.labeling.browsing.kept_values import labels_of
from storage.labeling.held_out import move_to_pool, move_to_test
from storage.labeling.item_rows import ItemFilter
from storage.labeling.pool import Pool, _counts
from storage.labeling.state_arrays import NO_ID, item_states
from storage.media.checks import set_condition
from storage.projects.deletion import request_deletion, run_deletion
from storage.projects.projects import get_project, update_project
from tests.storage.labeling.test_rebuild import perform, step
from tests.storage.pools import Made, add_items, make_pool
from tests.storage.pools import event as made_event


def simply_read(store: Store, project_id: int) -> list[tuple[Any, ...]]:
    """The reference: the same values by one plain query."""
    query = (
        select(
            Item.id, ItemState.shuffle, Item.held_out, ItemState.class_id, LabelEvent.annotator_id, ItemState.waiting,
            ItemState.skipped, ItemState.flagged, LabelEvent.at,
        )
        .join(ItemState, ItemState.item_id == Item.id)
        .outerjoin(LabelEvent, LabelEvent.sequence == ItemState.sequence)
        .where(Item.project_id == project_id)
        .order_by(Item.id)
    )  # fmt: skip
    with store.read() as connection:
        rows = [tuple(NO_ID if value is None else value for value in row) for row in connection.execute(query)]
    return [(*row[:-1], int(row[-1].timestamp()) if row[-1] else 0) for row in rows]


def in_memory(store: Store, project_id: int) -> list[tuple[Any, ...]]:
    found = item_states(store, project_id)
    columns = (
        found.item_ids, found.shuffle, found.held_out, found.class_id, found.annotator_id, found.waiting, found.skipped,
        found.flagged, found.labeled_at,
    )  # fmt: skip
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check(store: Store, project_id: int) -> None:
    assert in_memory(store, project_id) == simply_read(store, project_id)
    with store.read() as connection:
        assert Pool(store, project_id).counts() == _counts(connection, project_id)
        waiting = select(func.count()).where(ItemState.project_id == project_id, ItemState.waiting)
        assert Pool(store, project_id).count_items(ItemFilter(state="waiting")) == connection.execute(waiting).scalar()


@pytest.mark.slow
@settings(max_examples=15)
@given(steps=st.lists(step, max_size=20), wanted=st.sampled_from([1, 2]))
def test_after_every_step_the_arrays_and_the_counts_equal_a_plain_query(sqlite_store, steps, wanted):
    made = make_pool(sqlite_store, 4, name=str(uuid.uuid4()), labels_per_item=wanted)
    item_states(sqlite_store, made.project_id)
    people = [made.ann, made.bob, made.ann]
    for one in steps:
        perform(made, people, one)
        check(sqlite_store, made.project_id)


def test_the_arrays_follow_imports_tests_conditions_and_settings(store):
    made, other = make_pool(store, 5), make_pool(store, 3, name="other")
    check(store, made.project_id)
    made.pool.label(made.items[1], made.classes[0], annotator=made.ann)
    add_items(store, other.project_id, ["of another project"])
    add_items(store, made.project_id, ["later", "later still"])
    add_items(store, made.project_id, ["held out"], held_out=True)
    check(store, made.project_id)
    set_condition(store, made.project_id, {made.items[0]: ("missing", "gone")})
    check(store, made.project_id)
    now = get_project(store, made.project_id).settings
    update_project(store, made.project_id, settings=dataclasses.replace(now, labels_per_item=2))
    check(store, made.project_id)
    made.pool.undo(annotator=made.ann)
    check(store, made.project_id)
    check(store, other.project_id)


@pytest.mark.parametrize("microseconds", [0, 499_999, 500_000, 999_499, 999_500, 999_999])
def test_the_time_of_a_label_is_cut_off_to_its_second(store, microseconds):
    made = make_pool(store, 2)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    moment = datetime(2026, 3, 29, 23, 59, 59, microseconds, tzinfo=UTC)
    with store.write() as connection:
        connection.execute(update(LabelEvent).values(at=moment))
    assert item_states(store, made.project_id).labeled_at.tolist() == [1_774_828_799, 0]


def test_the_arrays_follow_moves_to_the_test_items_and_deletions(store):
    made = make_pool(store, 6)
    made.pool.label(made.items[1], made.classes[0], annotator=made.ann)
    check(store, made.project_id)
    move_to_test(store, made.project_id, made.items[:3])
    check(store, made.project_id)
    move_to_pool(store, made.project_id, made.items[1:2])
    check(store, made.project_id)
    before = item_states(store, made.project_id).generation
    deletion = request_deletion(store, made.project_id, "birds", [made.items[2], made.items[4]])
    run_deletion(store, deletion.id)
    check(store, made.project_id)
    assert item_states(store, made.project_id).generation == before + 1, "positions have changed"
    add_items(store, made.project_id, ["after the deletion"])
    check(store, made.project_id)


def test_arrays_of_an_earlier_request_do_not_change(sqlite_store):
    made = make_pool(sqlite_store, 3)
    before = item_states(sqlite_store, made.project_id)
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    after = item_states(sqlite_store, made.project_id)
    assert before.class_id.tolist() == [NO_ID] * 3 and after.class_id.tolist() == [made.classes[1], NO_ID, NO_ID]
    assert before.tally.waiting == 3 and after.tally.waiting == 2
    assert after.skipped is before.skipped, "what has not changed is shared"


@pytest.mark.parametrize("ahead", [False, True])
def test_a_restored_store_is_read_again(sqlite_store, ahead):
    """`ahead`: further labels were given after the restore, so the revision is greater than the one that was read."""
    made = make_pool(sqlite_store, 4)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    item_states(sqlite_store, made.project_id)
    with sqlite_store.write() as connection:  # as if the backup had been made before the label
        connection.execute(update(ItemState).values(class_id=None, sequence=None, waiting=True, n_labels=0, revision=0))
        connection.execute(delete(LabelEvent))
        connection.execute(update(Project).values(revision=1))
    if ahead:
        for item in made.items[1:]:
            made.pool.label(item, made.classes[2], annotator=made.bob)
        with sqlite_store.write() as connection:
            connection.execute(update(ItemState).where(ItemState.revision > 0).values(revision=2))
            connection.execute(update(Project).values(revision=50))
    assert in_memory(sqlite_store, made.project_id) == simply_read(sqlite_store, made.project_id)


def test_large_projects_leave_memory_for_the_one_in_use(sqlite_store, monkeypatch):
    monkeypatch.setattr(state_arrays, "KEPT_ITEMS", 5)
    first, second = make_pool(sqlite_store, 4), make_pool(sqlite_store, 4, name="second")
    for made in (first, second):
        item_states(sqlite_store, made.project_id)
    assert state_arrays._known(sqlite_store, first.project_id) is None
    assert state_arrays._known(sqlite_store, second.project_id) is not None
    check(sqlite_store, first.project_id)


def steps_of(store: Store, work: Callable[[], Any]) -> int:
    """Instructions that SQLite's virtual machine ran, in hundreds."""
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    def follow(connection: Any, record: Any, proxy: Any) -> None:
        connection.set_progress_handler(count, 100)

    engines = (store.engine, store._reader)
    for engine in engines:
        event.listen(engine, "checkout", follow)
    try:
        work()
    finally:
        for engine in engines:
            event.remove(engine, "checkout", follow)
    return counted[0]


def requests(made: Made, first: int) -> dict[str, Callable[[], Any]]:
    """The store's part of the requests of the Label and Grid screens, after a label."""
    pool = made.pool
    page = [int(one) for one in made.items[:60]]
    return {
        "states": lambda: item_states(made.store, made.project_id),
        "counts": pool.counts,
        "waiting": lambda: pool.count_items(ItemFilter(state="waiting")),
        "items": lambda: pool.items_by_id(page),
        "prioritized": lambda: pool.prioritized(page),
        "first": lambda: pool.first_in_queue(),
        "claim": lambda: pool.next_to_label(annotator=made.ann, holder="tab", limit=30),
        "label": lambda: pool.label(made.items[first], made.classes[0], annotator=made.ann),
        "recent": lambda: pool.recent(made.ann, 60),
        "undoable": lambda: pool.undoable(made.ann),
        "batch": pool.batch,
    }


@pytest.mark.slow
def test_the_work_of_the_database_does_not_grow_with_the_pool(sqlite_store):
    """VM steps at 1,000 and at 10,000 items, with labels in proportion: at most 50 % more."""
    found = []
    for n in (1_000, 10_000):
        made = make_pool(sqlite_store, n, name=f"pool of {n}")
        for start in range(0, n // 10, 500):
            some = made.items[-1 - start : -1 - min(start + 500, n // 10) : -1]
            made.pool.apply([made_event(item, "label", made.classes[0]) for item in some], annotator=made.ann)
        item_states(sqlite_store, made.project_id)
        made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
        with sqlite_store.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
        found.append({name: steps_of(sqlite_store, work) for name, work in requests(made, 1).items()})
    grown = {name: (found[0][name], n) for name, n in found[1].items() if n > 1.5 * found[0][name] + 10}
    assert not grown, "hundreds of steps at both sizes"


@pytest.mark.parametrize("query", ["changed", "first in the queue", "names"])
def test_no_query_of_a_request_scans_a_table(sqlite_store, query):
    made = make_pool(sqlite_store, 50)
    calls = {
        "changed": lambda: item_states(sqlite_store, made.project_id),
        "first in the queue": made.pool.first_in_queue,
        "names": lambda: made.pool.items_by_id(made.items[:20]),
    }
    item_states(sqlite_store, made.project_id)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    plans = plans_of(sqlite_store, calls[query])
    assert plans and not [plan for plan in plans if plan.startswith("SCAN") and "label_events" not in plan]


def test_new_events_are_read_by_their_sequence_and_not_among_all_events_of_the_project(sqlite_store):
    made = make_pool(sqlite_store, 5)
    labels_of(sqlite_store, made.project_id, made.ann, item_states(sqlite_store, made.project_id))
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    states = item_states(sqlite_store, made.project_id)
    for call in (
        lambda: labels_of(sqlite_store, made.project_id, made.ann, states),
        lambda: made.pool.labels_since(0),
    ):
        [plan] = [one for one in plans_of(sqlite_store, call) if "label_events" in one]
        assert plan == "SEARCH label_events USING INTEGER PRIMARY KEY (rowid>?)"


def plans_of(store: Store, call: Callable[[], Any]) -> list[str]:
    """The query plans of what a call reads."""
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        statements.append((statement, parameters))

    event.listen(store._reader, "before_cursor_execute", note)
    try:
        call()
    finally:
        event.remove(store._reader, "before_cursor_execute", note)
    raw = sqlite3.connect(store.engine.url.database or "")
    plans = [
        row[3]
        for statement, parameters in statements
        if statement.lstrip().upper().startswith("SELECT")
        for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
    ]
    raw.close()
    return plans


def test_positions_of_items_of_other_projects_are_none(sqlite_store):
    made, other = make_pool(sqlite_store, 3), make_pool(sqlite_store, 2, name="other")
    found = item_states(sqlite_store, made.project_id)
    asked = np.array([other.items[0], made.items[2], 10**9], np.int64)
    assert found.positions(asked).tolist() == [-1, 2, -1]
    part = found.at(np.array([2]))
    assert part.item_ids.tolist() == [made.items[2]] and part.tally.waiting == 1
