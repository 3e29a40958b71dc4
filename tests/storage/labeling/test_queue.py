"""Items are served in order, to one person at a time."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select, update

from core.config import RoundConfig
from core.types import Selection
from storage.database.schema import Item, ItemState, Lease, QueueCursor
from storage.database.store import Store, now
from storage.labeling import projections, queue
from storage.labeling.browsing.requeue import send_to_queue, take_back
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.rounds.log import RoundLog
from tests.storage.pools import add_items, event, make_pool


def served(pool: Pool, annotator: int, holder: str = "tab", limit: int = 1) -> list[int]:
    return [row.id for row in pool.next_to_label(annotator=annotator, holder=holder, limit=limit)]


def finish_round(made, picks) -> int:
    rounds = RoundLog(made.store, made.project_id)
    row = rounds.request(RoundConfig())
    scores = np.linspace(1.0, 0.5, len(picks))
    rounds.finish(
        row.id, arrays={}, selection=Selection(item_ids=np.array(picks), scores=scores, strategy="bico"), metrics={}
    )
    return row.id


def expire_leases(store: Store) -> None:
    with store.write() as connection:
        connection.execute(update(Lease).values(expires_at=now() - timedelta(seconds=1)))


def test_picks_come_first_in_their_order_then_the_shuffled_rest(store: Store) -> None:
    made = make_pool(store, 12)
    old = finish_round(made, [made.items[7], made.items[2]])
    new = finish_round(made, [made.items[9], made.items[1], made.items[4]])
    made.pool.put_first([made.items[11], made.items[0]])
    rows = made.pool.next_to_label(annotator=made.ann, limit=12)
    order = [made.items.index(row.id) for row in rows]
    assert order[:7] == [11, 0, 9, 1, 4, 7, 2]
    assert made.pool.prioritized(made.items) == {made.items[place] for place in order[:7]}
    assert made.pool.prioritized([made.items[3], made.items[7]]) == {made.items[7]}
    rest = sorted({3, 5, 6, 8, 10}, key=lambda place: projections.shuffle_of(rows[order.index(place)].sha256))
    assert order[7:] == rest
    assert [(row.pick.round_id, row.pick.position) for row in rows[2:7] if row.pick] == [
        (new, 1), (new, 2), (new, 3), (old, 1), (old, 2),
    ]  # fmt: skip


def test_an_item_is_leased_to_one_annotator_and_one_tab(store: Store) -> None:
    """The second person, and the same person's second tab, get other items."""
    made = make_pool(store, 6)
    mine = served(made.pool, made.ann, "tab 1", 2)
    second_tab = served(made.pool, made.ann, "tab 2", 2)
    theirs = served(made.pool, made.bob, "tab 3", 2)
    assert len({*mine, *second_tab, *theirs}) == 6
    assert served(made.pool, made.bob, "tab 4", 2) == []
    assert served(made.pool, made.ann, "tab 1", 2) == mine, "items that a tab has leased come first again"


def test_a_lease_expires_is_released_and_ends_with_the_label(store: Store) -> None:
    made = make_pool(store, 2)
    assert len(served(made.pool, made.ann, "tab", 2)) == 2
    assert served(made.pool, made.bob) == []
    expire_leases(store)
    theirs = served(made.pool, made.bob)
    assert len(theirs) == 1
    made.pool.release(annotator=made.bob, holder="tab")
    assert served(made.pool, made.ann, "another tab", 2) != []
    made.pool.release(annotator=made.ann)
    made.pool.label(theirs[0], made.classes[0], annotator=made.bob)
    assert served(made.pool, made.ann, "tab", 5) == [item for item in made.items if item != theirs[0]]


def test_held_out_unreadable_and_skipped_items_are_never_served(store: Store) -> None:
    made = make_pool(store, 3)
    held_out = add_items(store, made.project_id, ["test a", "test b"], held_out=True)
    add_items(store, made.project_id, ["broken"], condition="unreadable")
    made.pool.apply([event(made.items[0], "skip")], annotator=made.ann)
    made.pool.put_first([*held_out, *made.items])
    assert served(made.pool, made.ann, limit=10) == made.items[1:]


def test_a_repaired_item_is_served_again(store: Store) -> None:
    """The file is back."""
    made = make_pool(store, 1)
    for condition, expected in (("missing", []), ("ok", made.items)):
        with store.write() as connection:
            connection.execute(update(Item).values(condition=condition))
            projections.refresh_states(connection, made.project_id, made.items)
        assert served(made.pool, made.ann) == expected


def test_with_two_labels_per_item_each_annotator_is_served_everything_once(store: Store) -> None:
    made = make_pool(store, 8, labels_per_item=2)
    made.pool.put_first(made.items[3:5])
    seen: dict[int, list[int]] = {made.ann: [], made.bob: []}
    for turn in range(16):
        who = (made.ann, made.bob)[turn // 3 % 2] if turn < 12 else made.bob
        for item in served(made.pool, who):
            seen[who].append(item)
            made.pool.label(item, made.classes[0], annotator=who)
    while more := served(made.pool, made.ann):
        seen[made.ann] += more
        made.pool.label(more[0], made.classes[0], annotator=made.ann)
    assert sorted(seen[made.ann]) == sorted(seen[made.bob]) == made.items
    assert seen[made.ann][:2] == seen[made.bob][:2] == made.items[3:5]
    assert made.pool.counts().waiting == 0


def test_what_waits_again_behind_an_annotators_cursor_is_served_again(store: Store) -> None:
    made = make_pool(store, 6, labels_per_item=2)
    order = served(made.pool, made.ann, limit=6)
    for item in order[:4]:
        made.pool.label(item, made.classes[0], annotator=made.ann)
    assert served(made.pool, made.ann) == [order[4]]
    for _ in range(3):
        made.pool.undo(annotator=made.ann)
    made.pool.release(annotator=made.ann)
    assert served(made.pool, made.ann, limit=10) == order[1:]
    made.pool.release(annotator=made.ann)
    fresh = add_items(store, made.project_id, [f"later {number}" for number in range(5)])
    assert set(served(made.pool, made.ann, limit=20)) == {*order[1:], *fresh}


def test_a_cursor_is_the_place_of_the_first_item_that_waits_for_its_annotator(store: Store) -> None:
    made = make_pool(store, 6, labels_per_item=2)
    made.pool.put_first(made.items[2:4])
    columns = (QueueCursor.queued, QueueCursor.queue_rank, QueueCursor.shuffle, QueueCursor.item_id)

    def cursors() -> dict[bool, tuple[int, int, int]]:
        with store.read() as connection:
            return {row[0]: tuple(row[1:]) for row in connection.execute(select(*columns))}

    def place(item: int) -> tuple[int, int, int]:
        query = select(ItemState.queue_rank, ItemState.shuffle, ItemState.item_id).where(ItemState.item_id == item)
        with store.read() as connection:
            return tuple(connection.execute(query).one())

    order = served(made.pool, made.ann, limit=6)
    assert cursors() == {True: place(order[0]), False: place(order[2])}
    for item in order[:4]:
        made.pool.label(item, made.classes[0], annotator=made.ann)
    made.pool.release(annotator=made.ann)
    assert served(made.pool, made.ann, limit=6) == order[4:]
    assert cursors() == {True: place(order[0]), False: place(order[4])}  # no queued item waits: that cursor stays


def test_an_item_taken_back_from_the_queue_is_served_though_its_place_was_passed_meanwhile(store: Store) -> None:
    made = make_pool(store, 6, labels_per_item=2)
    order = served(made.pool, made.ann, limit=6)
    made.pool.release(annotator=made.ann)
    sent = send_to_queue(store, made.project_id, [order[0]], annotator=made.ann)
    assert served(made.pool, made.ann, limit=6) == order
    for item in order[1:4]:  # the cursor of the others is behind the place of the first one now
        made.pool.label(item, made.classes[0], annotator=made.ann)
    made.pool.release(annotator=made.ann)
    assert served(made.pool, made.ann, limit=6) == [order[0], *order[4:]]
    made.pool.release(annotator=made.ann)
    assert take_back(store, made.project_id, sent, annotator=made.ann) == 1
    assert served(made.pool, made.ann, limit=6) == [order[0], *order[4:]]


def test_items_leased_between_the_query_and_the_lock_are_left_out_on_postgresql(store: Store) -> None:
    """SQLite has one writer at a time, so this cannot happen there."""
    made = make_pool(store, 4)
    leased = served(made.pool, made.bob, limit=2)
    claim = queue.Claim(
        project_id=made.project_id, annotator=made.ann, holder="tab", labels_per_item=1, at=now(), seconds=600.0
    )
    with store.write() as connection:
        free = queue._still_free(connection, claim, made.items)
        assert queue._still_free(connection, claim, []) == []
    assert free == (made.items if store.is_sqlite else [item for item in made.items if item not in leased])


def _grab(url: str | None, home: str, who: int, barrier, results) -> None:
    with Store.open(url, Path(home)) as store:
        pool = Pool(store, 1)
        barrier.wait(240)
        taken = []
        while rows := pool.next_to_label(annotator=who, holder=f"tab {who}", limit=3):
            for row in rows:
                taken.append(row.id)
                pool.label(row.id, 1, annotator=who)
        results.put((who, taken))


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_three_processes_never_get_the_same_item(store: Store) -> None:
    """Under load, every item is handed out exactly once."""
    made = make_pool(store, 60)
    annotators = [annotator_named(store, f"A{number}").id for number in range(3)]
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    url = None if store.is_sqlite else store.url
    workers = [context.Process(target=_grab, args=(url, str(store.home), who, barrier, results)) for who in annotators]
    for worker in workers:
        worker.start()
    taken = dict(results.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join()
    handed = [item for items in taken.values() for item in items]
    assert sorted(handed) == made.items
    assert made.pool.counts().labeled == 60
    assert made.pool.rebuild() == 0


def test_a_lease_far_ahead_is_left_by_a_wrong_clock_and_counts_as_expired(store: Store) -> None:
    made = make_pool(store, 3)
    assert len(made.pool.next_to_label(annotator=made.ann, holder="tab", limit=3)) == 3
    with store.write() as connection:
        connection.execute(update(Lease).values(expires_at=now() + timedelta(days=3650)))
    assert len(made.pool.next_to_label(annotator=made.bob, holder="other", limit=3)) == 3
    assert made.pool.next_to_label(annotator=made.ann, holder="tab", limit=3) == []
