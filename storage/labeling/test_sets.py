"""Test sets drawn from the pool: random items that are labeled blind and used only for evaluation.

Frame     the readable items of the pool without a label. Skipped items are left out, and so are items on someone's
          screen at the moment, because a suggestion may be shown with them.
Draw      a simple random sample of the frame. With groups (as imported, else the recording of a window) it is a random
          sample from whole groups without any label, where there are enough of them (`storage.labeling.groups`):
          all other items of these groups leave the pool, so that no group is on both sides. Otherwise each group gets
          its share of the sample (proportional allocation, largest remainders), drawn at random.
Labels    labels that were given in random order can be part of the sample instead (`random_labels`), unless a round has
          used them.
Use       the items stay test items: no round trains on them or picks them. They wait at the front of the queue, and
          an annotator sees no prediction for them and none of their nearest items before labeling them.

The seed, the size of the frame and the numbers of groups are stored with the test set.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, insert, select, update

from core.config import require
from core.errors import InvalidInput
from storage.database.access_schema import TestSet
from storage.database.bulk import chunks
from storage.database.schema import Item, ItemState, LabelEvent, Lease, Round
from storage.database.store import Store, now
from storage.labeling import projections, queue
from storage.labeling.groups import FEWEST_GROUPS, FEWEST_TEST_GROUPS, choose_groups, group_column
from storage.projects import audit, projects, roles

MOST_ITEMS = 100_000
GroupUse = Literal["auto", "groups", "shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How a test set was drawn."""

    n_items: int
    n_frame: int  # size of the frame it was drawn from
    n_labels: int = 0  # items that already had a label given in random order
    n_groups: int = 0  # 0: the items have no groups
    n_test_groups: int = 0  # 0: single items were drawn, not groups
    n_set_aside: int = 0  # other items of the test groups, which left the pool
    n_open: int = 0  # items left out because someone had them on screen
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSetRow:
    __test__ = False

    id: int
    drawn_at: datetime
    drawn_by: int | None
    draw: Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTestItems:
    """The items of all test sets of a project, in the order of their ids."""

    item_ids: NDArray[np.int64]
    class_ids: NDArray[np.int64]  # of the label that counts, as given; 0 without one
    waiting: NDArray[np.bool_]
    skipped: NDArray[np.bool_]
    groups: tuple[str, ...] = ()  # of each item, where whole groups were drawn
    divided: bool = False  # items of the same groups are in the pool

    @property
    def labeled(self) -> NDArray[np.bool_]:
        return (self.class_ids > 0) & ~self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The items that a test set can be drawn from."""

    item_ids: NDArray[np.int64]  # without a label
    groups: tuple[str, ...]  # of each of them; empty without groups
    whole: NDArray[np.bool_]  # whether its group has no label and is on nobody's screen
    random_labels: NDArray[np.int64]  # items whose labels were given in random order and that no round has used
    n_open: int
    n_rounds: int  # finished rounds

    @property
    def n_whole_groups(self) -> int:
        return len({self.groups[at] for at in np.flatnonzero(self.whole)}) if self.groups else 0


def draw_test_set(
    store: Store,
    project_id: int,
    n_items: int,
    *,
    n_labels: int = 0,
    by: GroupUse = "auto",
    seed: int | None = None,
) -> TestSetRow:
    """Draw `n_items` test items, up to `n_labels` of them from the labels that were given in random order. `by`: from
    whole groups, from every group, or from whole groups only if there are enough of them and no label is used."""
    require(0 < n_items <= MOST_ITEMS, f"{n_items:,} test items were requested; use 1 to {MOST_ITEMS:,}.")
    require(n_labels >= 0, f"{n_labels} labels were requested; use 0 or more.")
    seed = secrets.randbits(31) if seed is None else seed
    with store.write() as connection:
        projects.touch(connection, project_id)
        frame = frame_in(connection, project_id)
        rng = np.random.default_rng([seed, project_id])
        apart = _test_groups(frame, n_items, rng, by) if not n_labels or by == "groups" else set()
        if apart:
            return _store_groups(connection, project_id, frame, apart, (n_items, seed, rng))
        n_old = min(n_labels, len(frame.random_labels), n_items)
        if n_items - n_old > len(frame.item_ids):
            raise InvalidInput(
                f"{n_items:,} test items were requested, and {len(frame.item_ids):,} items without a label can be "
                f"drawn ({frame.n_open:,} more are on someone's screen). Draw fewer, or import more."
            )
        old = rng.choice(frame.random_labels, n_old, replace=False)
        new = choose_items(frame.item_ids, n_items - n_old, rng, frame.groups)
        draw = Draw(
            n_items=n_items,
            n_frame=len(frame.item_ids) + len(frame.random_labels),
            n_labels=n_old,
            n_groups=len(set(frame.groups)),
            n_open=frame.n_open,
            seed=seed,
        )
        return _store(connection, project_id, draw, [*new.tolist(), *old.tolist()])


def _test_groups(frame: Frame, n_items: int, rng: np.random.Generator, by: GroupUse) -> set[str]:
    """The groups to draw from; empty: items of every group."""
    if by == "shares" or not frame.groups:
        require(by != "groups", "The items have no groups. Import them with a column group, or draw items.")
        return set()
    chosen = choose_groups([frame.groups[at] for at in np.flatnonzero(frame.whole)], n_items, rng)
    require(
        bool(chosen) or by != "groups",
        f"Whole groups cannot be drawn: {n_items:,} test items take at least {FEWEST_TEST_GROUPS} groups and at most a "
        f"third of the groups without a label. There are {frame.n_whole_groups:,} of these; at least {FEWEST_GROUPS} "
        "are needed. Draw fewer items, or items of every group.",
    )
    return chosen


def _store_groups(
    connection: Connection,
    project_id: int,
    frame: Frame,
    apart: set[str],
    wanted: tuple[int, int, np.random.Generator],
) -> TestSetRow:
    """Draw from these groups, each in proportion to its size; their other items leave the pool."""
    n_items, seed, rng = wanted
    inside = np.array([one in apart for one in frame.groups])
    groups = [frame.groups[at] for at in np.flatnonzero(inside)]
    items = choose_items(frame.item_ids[inside], min(n_items, int(inside.sum())), rng, groups).tolist()
    of_groups = select(Item.id, group_column()).where(Item.project_id == project_id, ~Item.held_out)
    named = [row[0] for row in connection.execute(of_groups) if (row[1] or f"item {row[0]}") in apart]
    rest = sorted(set(named) - set(items))
    draw = Draw(
        n_items=len(items),
        n_frame=int(frame.whole.sum()),
        n_groups=frame.n_whole_groups,
        n_test_groups=len(apart),
        n_set_aside=len(rest),
        n_open=frame.n_open,
        seed=seed,
    )
    for block in chunks(rest):
        connection.execute(update(Item).where(Item.id.in_(block)).values(held_out=True))
    projections.refresh_states(connection, project_id, rest)
    projections.mark_changed(connection, project_id, rest)
    return _store(connection, project_id, draw, items)


def choose_items(
    item_ids: NDArray[np.int64], n: int, rng: np.random.Generator, groups: Sequence[str] = ()
) -> NDArray[np.int64]:
    """(n,) a random sample in random order; with `groups` (one for each item) each group has its share of it."""
    if not groups:
        return rng.choice(item_ids, n, replace=False)
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    exact = n * np.bincount(group) / max(len(item_ids), 1)
    share = np.floor(exact).astype(np.int64)
    order = rng.permutation(len(names))  # ties between remainders are broken at random
    rest = order[np.argsort(-(exact - share)[order], kind="stable")][: n - int(share.sum())]
    share[rest] += 1
    parts = [rng.choice(item_ids[group == at], number, replace=False) for at, number in enumerate(share)]
    return rng.permutation(np.concatenate(parts))


def test_frame(store: Store, project_id: int) -> Frame:
    """The frame that a test set could be drawn from now."""
    with store.read() as connection:
        roles.check_in(connection, project_id, "read")
        return frame_in(connection, project_id)


def frame_in(connection: Connection, project_id: int) -> Frame:
    columns = (Item.id, Item.group_name, Item.recording_sha256)
    states = (
        select(*columns, ItemState.class_id, ItemState.n_labels, ItemState.skipped, ItemState.shuffle)
        .join(ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id, ~Item.held_out, Item.condition == "ok")
        .order_by(ItemState.shuffle, Item.id)
    )
    rows = connection.execute(states).all()
    live = select(Lease.item_id).where(Lease.project_id == project_id, Lease.expires_at > now())
    open_now = set(connection.execute(live).scalars())
    n_rounds = connection.execute(
        select(func.count()).where(Round.project_id == project_id, Round.status == "finished")
    ).scalar_one()
    free = [row.id for row in rows if row.class_id is None and row.n_labels == 0 and not row.skipped]
    usable = np.array(sorted(one for one in free if one not in open_now), np.int64)
    group_of = {row.id: row.group_name or row.recording_sha256 or f"item {row.id}" for row in rows}
    has_groups = any(row.group_name or row.recording_sha256 for row in rows)
    groups = tuple(group_of[one] for one in usable.tolist()) if has_groups else ()
    touched = {group_of[row.id] for row in rows if row.class_id is not None or row.n_labels or row.id in open_now}
    return Frame(
        item_ids=usable,
        groups=groups,
        whole=np.array([one not in touched for one in groups], np.bool_),
        random_labels=_random_labels(connection, project_id, rows) if not n_rounds else np.empty(0, np.int64),
        n_open=len(free) - len(usable),
        n_rounds=int(n_rounds),
    )


def _random_labels(connection: Connection, project_id: int, rows: Sequence[Any]) -> NDArray[np.int64]:
    """The labeled items that are a random sample of the pool. `rows` are in the shuffled order of the queue.

    The shuffled order depends on the hash of the content alone. The items at its start that are all labeled (or
    skipped) are therefore a random sample, whoever labeled them. The sample ends at the first item without a label,
    because items labeled after it were chosen, and at the first label that was given with a suggestion in view.
    """
    seen = select(LabelEvent.item_id).where(LabelEvent.project_id == project_id, LabelEvent.suggestion == "shown")
    with_suggestion = set(connection.execute(seen).scalars())
    found: list[int] = []
    for row in rows:
        if row.class_id is not None and row.id not in with_suggestion:
            found.append(row.id)
        elif not row.skipped:
            break
    return np.array(found, np.int64)


def list_test_sets(store: Store, project_id: int) -> list[TestSetRow]:
    """The test sets of a project, newest first."""
    query = select(TestSet.__table__).where(TestSet.project_id == project_id).order_by(TestSet.id.desc())
    with store.read() as connection:
        roles.check_in(connection, project_id, "read")
        return [_row(row) for row in connection.execute(query)]


def own_test_items(store: Store, project_id: int) -> OwnTestItems:
    """The items of all test sets, with the label that counts now."""
    columns = (ItemState.class_id, ItemState.waiting, ItemState.skipped, group_column().label("group"))
    query = (
        select(Item.id, Item.test_set_id, *columns)
        .join(ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id, Item.held_out, Item.test_set_id.is_not(None))
        .order_by(Item.id)
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
        about = connection.execute(select(TestSet.about).where(TestSet.project_id == project_id)).scalars().all()
    by_group = any(one.get("n_test_groups") for one in about)
    return OwnTestItems(
        item_ids=np.array([row.id for row in rows], np.int64),
        class_ids=np.array([row.class_id or 0 for row in rows], np.int64),
        waiting=np.array([row.waiting for row in rows], np.bool_),
        skipped=np.array([row.skipped for row in rows], np.bool_),
        groups=tuple(row.group or f"item {row.id}" for row in rows) if by_group else (),
        divided=any(one.get("n_groups") and not one.get("n_test_groups") for one in about),
    )


def count_waiting_tests(store: Store, project_id: int) -> int:
    """Test items that still wait for a label; no round can pick them."""
    query = select(func.count()).join_from(Item, ItemState, ItemState.item_id == Item.id)
    query = query.where(Item.project_id == project_id, Item.held_out, ItemState.waiting)
    with store.read() as connection:
        return int(connection.execute(query).scalar_one())


def serve_tests_first(store: Store, project_id: int) -> int:
    """Put the test items that wait for a label before everything else in the queue, including the picks of a round that
    finished after the draw; returns their number."""
    query = select(Item.id).join(ItemState, ItemState.item_id == Item.id)
    query = query.where(Item.project_id == project_id, Item.held_out, ItemState.waiting)
    with store.write() as connection:
        roles.check_in(connection, project_id, "label")
        ids = list(connection.execute(query.order_by(ItemState.queue_rank, ItemState.shuffle)).scalars())
        queue.put_first(connection, project_id, ids)
    return len(ids)


def _store(connection: Connection, project_id: int, draw: Draw, item_ids: Sequence[int]) -> TestSetRow:
    actor = roles.current_actor()
    by = None if actor is None else actor.annotator_id
    newest = select(func.coalesce(func.max(LabelEvent.sequence), 0)).where(LabelEvent.project_id == project_id)
    about = asdict(draw) | {"label_sequence": int(connection.execute(newest).scalar_one())}
    values = {"project_id": project_id, "drawn_by": by, "drawn_at": now(), "about": about}
    test_set_id = int(connection.execute(insert(TestSet).values(**values).returning(TestSet.id)).scalar_one())
    for block in chunks(item_ids):
        connection.execute(update(Item).where(Item.id.in_(block)).values(held_out=True, test_set_id=test_set_id))
    projections.refresh_states(connection, project_id, item_ids)
    projections.mark_changed(connection, project_id, item_ids)
    queue.put_first(connection, project_id, item_ids)
    audit.record(connection, audit.Entry("draw_test_set", project_id, by, {"test_set": test_set_id, **about}))
    row = connection.execute(select(TestSet.__table__).where(TestSet.id == test_set_id)).one()
    return _row(row)


def _row(row: Any) -> TestSetRow:
    draw = Draw(**{name: value for name, value in row.about.items() if name in Draw.__dataclass_fields__})
    return TestSetRow(id=row.id, drawn_at=row.drawn_at, drawn_by=row.drawn_by, draw=draw)
