"""The order in which items are served, and the leases that reserve an item for one annotator.

Order     `queue_rank` (picks and prioritized items have small ranks; newer requests come before older ones), then
          `shuffle`.
Lease     an item belongs to one tab of one annotator until it is labeled, released or the lease expires. On PostgreSQL
          the rows of candidates are locked (FOR UPDATE SKIP LOCKED) while the lease is written; on SQLite there is only
          one write transaction at a time.
Cursor    see `schema.QueueCursor`: with several labels per item, a search starts where the last one ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, insert, not_, or_, select, tuple_, update

from storage.database.bulk import chunks
from storage.database.schema import NOT_QUEUED, CurrentLabel, ItemState, Lease, QueueCursor
from storage.database.store import insert_for

Place = tuple[int, int, int]  # (queue_rank, shuffle, item_id): sorts as the queue does
START: Place = (-(2**62), -1, -1)
TRIES = 5
CLOCK_SKEW = timedelta(seconds=60)  # between machines that share a store


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request for items by one tab: the annotator, the lease and the project's labels per item."""

    project_id: int
    annotator: int
    holder: str
    at: datetime
    seconds: int
    labels_per_item: int

    @property
    def several(self) -> bool:
        return self.labels_per_item > 1


def claim_items(connection: Connection, claim: Claim, limit: int) -> list[int]:
    """Up to `limit` item ids in serving order, leased to the claim's holder; items that it already holds come first."""
    taken = _held(connection, claim)[:limit]
    for _ in range(TRIES):
        missing = limit - len(taken)
        if missing <= 0:
            break
        found = _free(connection, claim, taken, missing)
        taken.extend(_still_free(connection, claim, found))
        if len(found) < missing or connection.dialect.name == "sqlite":
            break
    _lease(connection, claim, taken)
    return taken


def release(connection: Connection, project_id: int, annotator: int, holder: str | None) -> None:
    """End the leases of one tab, or of all tabs of the annotator when `holder` is None."""
    statement = delete(Lease).where(Lease.project_id == project_id, Lease.annotator_id == annotator)
    connection.execute(statement if holder is None else statement.where(Lease.holder == holder))


def release_items(connection: Connection, annotator: int, item_ids: Sequence[int]) -> None:
    connection.execute(delete(Lease).where(Lease.item_id.in_(item_ids), Lease.annotator_id == annotator))


def put_first(connection: Connection, project_id: int, item_ids: Sequence[int]) -> None:
    """Rank these items before all others, in this order."""
    unique = list(dict.fromkeys(item_ids))
    lowest = min(_lowest_rank(connection, project_id, waiting) for waiting in (True, False))
    first = min(lowest, 0) - len(unique)
    set_ranks(connection, project_id, {item_id: first + place for place, item_id in enumerate(unique)})


def ranks_of(connection: Connection, project_id: int, item_ids: Sequence[int]) -> dict[int, int]:
    """item id -> its rank in the queue (`ItemState.queue_rank`)."""
    return {item_id: rank for rank, _, item_id in _places(connection, project_id, item_ids)}


def set_ranks(connection: Connection, project_id: int, ranks: Mapping[int, int]) -> None:
    """Give these items these ranks."""
    if not ranks:
        return
    table = ItemState.__table__.c
    statement = (
        update(ItemState)
        .where(table.item_id == bindparam("which"), table.project_id == project_id)
        .values(queue_rank=bindparam("rank"))
    )
    connection.execute(statement, [{"which": item_id, "rank": rank} for item_id, rank in ranks.items()])
    stale = delete(QueueCursor).where(QueueCursor.project_id == project_id)
    all_queued = max(ranks.values()) < NOT_QUEUED
    connection.execute(stale.where(QueueCursor.queued) if all_queued else stale)


def waiting_items(project_id: int) -> Select[int]:
    """A query of the ids of all waiting items, in serving order."""
    waiting = select(ItemState.item_id).where(ItemState.project_id == project_id, ItemState.waiting)
    return waiting.order_by(ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)


def prioritized_items(connection: Connection, project_id: int, item_ids: Sequence[int]) -> set[int]:
    """The ids of those items that are picks or were put first."""
    return {item_id for rank, _, item_id in _places(connection, project_id, item_ids) if rank < NOT_QUEUED}


def _places(connection: Connection, project_id: int, item_ids: Sequence[int]) -> list[Place]:
    """The places of these items. The only condition is on the primary key: given a second condition that has an index,
    SQLite may read all items of the project."""
    columns = (ItemState.project_id, ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)
    return [
        (row.queue_rank, row.shuffle, row.item_id)
        for chunk in chunks(item_ids)
        for row in connection.execute(select(*columns).where(ItemState.item_id.in_(chunk)))
        if row.project_id == project_id
    ]


def move_cursors_back(
    connection: Connection, project_id: int, places: Sequence[Place], annotator: int | None = None
) -> None:
    """Move cursors that are behind `places` back to them, because the items there wait again."""
    for queued in (True, False):
        part = [place for place in places if (place[0] < NOT_QUEUED) == queued]
        if not part:
            continue
        rank, shuffle, item_id = min(part)
        place = tuple_(QueueCursor.queue_rank, QueueCursor.shuffle, QueueCursor.item_id)
        statement = update(QueueCursor).where(
            QueueCursor.project_id == project_id,
            QueueCursor.queued == queued,
            place > tuple_(rank, shuffle, item_id),
        )
        if annotator is not None:
            statement = statement.where(QueueCursor.annotator_id == annotator)
        connection.execute(statement.values(queue_rank=rank, shuffle=shuffle, item_id=item_id))


def delete_cursors(connection: Connection, project_id: int) -> None:
    connection.execute(delete(QueueCursor).where(QueueCursor.project_id == project_id))


def _lowest_rank(connection: Connection, project_id: int, waiting: bool) -> int:
    part = (ItemState.project_id == project_id, ItemState.waiting == waiting)
    query = select(func.min(ItemState.queue_rank)).where(*part)
    return int(connection.execute(query).scalar() or 0)


def _is_live(claim: Claim) -> Any:
    """Not expired, and expiring within one lease: a later time was written while the clock was wrong."""
    latest = claim.at + timedelta(seconds=claim.seconds) + CLOCK_SKEW
    return and_(Lease.expires_at > claim.at, Lease.expires_at <= latest)


def _held(connection: Connection, claim: Claim) -> list[int]:
    """Waiting items that this tab already holds."""
    query = (
        select(Lease.item_id)
        .join(ItemState, ItemState.item_id == Lease.item_id)
        .where(
            Lease.project_id == claim.project_id,
            _is_live(claim),
            Lease.annotator_id == claim.annotator,
            Lease.holder == claim.holder,
            ItemState.waiting,
        )
        .order_by(ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)
    )
    if claim.several:
        query = query.where(_not_labeled_by(claim.annotator))
    return list(connection.execute(query).scalars())


def _free(connection: Connection, claim: Claim, taken: Sequence[int], limit: int) -> list[int]:
    """Waiting items without a lease, in order; on PostgreSQL their rows are locked until the transaction ends."""
    live = select(Lease.item_id).where(Lease.project_id == claim.project_id, _is_live(claim))
    leased = set(connection.execute(live).scalars()) | set(taken)
    found: list[int] = []
    for queued in (True, False):
        query = _waiting(claim, queued)
        if claim.several:
            start = _advance_cursor(connection, claim, query, queued)
            if start is None:
                continue
            query = _from(query, start, queued)
        if leased:
            query = query.where(ItemState.item_id.not_in(sorted(leased)))
        rows = query.limit(limit - len(found)).with_for_update(skip_locked=True, of=ItemState)
        found.extend(row.item_id for row in connection.execute(rows))
        if len(found) >= limit:
            break
    return found


def _waiting(claim: Claim, queued: bool) -> Select[*tuple[Any, ...]]:
    query = (
        select(ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)
        .where(ItemState.project_id == claim.project_id, ItemState.waiting)
        .where(ItemState.queue_rank < NOT_QUEUED if queued else ItemState.queue_rank == NOT_QUEUED)
        .order_by(ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)
    )
    return query.where(_not_labeled_by(claim.annotator)) if claim.several else query


def _not_labeled_by(annotator: int) -> Any:
    mine = select(CurrentLabel.item_id).where(
        CurrentLabel.item_id == ItemState.item_id, CurrentLabel.annotator_id == annotator
    )
    return ~mine.exists()


def _from(query: Select[*tuple[Any, ...]], start: Place, queued: bool) -> Select[*tuple[Any, ...]]:
    """`query` from the queue position `start` on, as a condition that can use the index."""
    rank, shuffle, item_id = start
    if queued:
        return query.where(ItemState.queue_rank >= rank)
    return query.where(tuple_(ItemState.shuffle, ItemState.item_id) >= tuple_(shuffle, item_id))


def _advance_cursor(
    connection: Connection, claim: Claim, query: Select[*tuple[Any, ...]], queued: bool
) -> Place | None:
    """The first queue position with an item for this annotator, leased or not; stored for the next search."""
    mine = and_(
        QueueCursor.project_id == claim.project_id,
        QueueCursor.annotator_id == claim.annotator,
        QueueCursor.queued == queued,
    )
    columns = (QueueCursor.queue_rank, QueueCursor.shuffle, QueueCursor.item_id)
    row = connection.execute(select(*columns).where(mine)).one_or_none()
    known: Place = (row[0], row[1], row[2]) if row is not None else START
    first = connection.execute(_from(query, known, queued).limit(1)).one_or_none()
    if first is None:
        return None
    place: Place = (first[0], first[1], first[2])
    values = dict(zip(("queue_rank", "shuffle", "item_id"), place, strict=True))
    if row is None:
        keys = {"project_id": claim.project_id, "annotator_id": claim.annotator, "queued": queued}
        connection.execute(insert_for(connection, QueueCursor).values(**keys, **values).on_conflict_do_nothing())
    elif place > known:
        connection.execute(update(QueueCursor).where(mine).values(**values))
    return place


def _still_free(connection: Connection, claim: Claim, found: Sequence[int]) -> list[int]:
    """`found` without the items that were leased between the query and the row lock."""
    if connection.dialect.name == "sqlite" or not found:
        return list(found)
    query = select(Lease.item_id).where(Lease.item_id.in_(found), _is_live(claim))
    lost = set(connection.execute(query).scalars())
    return [item_id for item_id in found if item_id not in lost]


def _lease(connection: Connection, claim: Claim, item_ids: Sequence[int]) -> None:
    """Write the leases; remove expired leases on the same items and up to 50 other expired ones."""
    if not item_ids:
        return
    expired = and_(Lease.project_id == claim.project_id, not_(_is_live(claim)))
    some = select(Lease.item_id, Lease.annotator_id).where(expired).limit(50).with_for_update(skip_locked=True)
    gone = [tuple(row) for row in connection.execute(some)]
    keys = tuple_(Lease.item_id, Lease.annotator_id)
    which = Lease.item_id.in_(item_ids)
    connection.execute(delete(Lease).where(or_(which, keys.in_(gone)) if gone else which))
    rows = [
        {
            "item_id": item_id,
            "annotator_id": claim.annotator,
            "holder": claim.holder,
            "project_id": claim.project_id,
            "expires_at": claim.at + timedelta(seconds=claim.seconds),
        }
        for item_id in item_ids
    ]
    connection.execute(insert(Lease), rows)
