"""The candidates of a watched project, as rows: slots of items that stand for the stream, and where the stream goes on.

The buffer holds what `core.rounds.stream_buffer` keeps of the waiting items up to `last_item_id`; the few after it wait
for the next full batch and are candidates too. It is saved whole, in one transaction, so an item enters it once,
whatever is killed when. While the waiting items fit into the buffer, they are all candidates and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select

from storage.database.schema import Item, ItemState
from storage.database.store import Store
from storage.importing import watches

Slots = tuple[tuple[int, tuple[int, ...]], ...]
"""Oldest first: how many batches of the stream a slot stands for, and its items."""
ASKED_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    slots: Slots = ()
    last_item_id: int = 0
    batch: int = 0  # items of a full batch

    @classmethod
    def of(cls, value: dict[str, Any]) -> Buffer:
        slots = tuple((int(batches), tuple(items)) for batches, items in value.get("slots", ()))
        return cls(slots=slots, last_item_id=value.get("last_item_id", 0), batch=value.get("batch", 0))

    def as_dict(self) -> dict[str, Any]:
        slots = [[batches, list(items)] for batches, items in self.slots]
        return {"slots": slots, "last_item_id": self.last_item_id, "batch": self.batch}

    @property
    def item_ids(self) -> list[int]:
        return [item_id for _, items in self.slots for item_id in items]


def next_waiting(store: Store, project_id: int, after: int, limit: int) -> list[int]:
    """The next items of the stream: waiting for a label, in the order of import."""
    query = (
        select(Item.id)
        .join(ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id, Item.id > after, ItemState.waiting, ItemState.n_labels == 0)
        .order_by(Item.id)
        .limit(limit)
    )
    with store.read() as connection:
        return list(connection.execute(query).scalars())


def still_waiting(store: Store, item_ids: Iterable[int]) -> set[int]:
    """Those of the items that nobody has labeled, skipped or found unreadable since."""
    ids, found = list(item_ids), set[int]()
    with store.read() as connection:
        for start in range(0, len(ids), ASKED_AT_ONCE):
            part = ids[start : start + ASKED_AT_ONCE]
            query = select(ItemState.item_id).where(ItemState.item_id.in_(part), ItemState.waiting)
            found.update(connection.execute(query.where(ItemState.n_labels == 0)).scalars())
    return found


def hashes(store: Store, item_ids: NDArray[np.int64]) -> list[str]:
    """The SHA-256 of each item, in order."""
    found: dict[int, str] = {}
    ids = item_ids.tolist()
    with store.read() as connection:
        for start in range(0, len(ids), ASKED_AT_ONCE):
            query = select(Item.id, Item.sha256).where(Item.id.in_(ids[start : start + ASKED_AT_ONCE]))
            found |= {row.id: row.sha256 for row in connection.execute(query)}
    return [found[item_id] for item_id in ids]


def candidates(store: Store, project_id: int) -> NDArray[np.int64] | None:
    """The items that rounds of a watched project choose from; None: all that wait, because they are few or nothing is
    watched."""
    watch = watches.get(store, project_id)
    if watch is None or not watch.active:
        return None
    query = select(func.count()).where(ItemState.project_id == project_id, ItemState.waiting)
    with store.read() as connection:
        n_waiting = int(connection.execute(query).scalar_one())
    buffer = Buffer.of(watch.buffer)
    if n_waiting <= watch.buffer_size or not buffer.slots:
        return None
    rest = next_waiting(store, project_id, buffer.last_item_id, buffer.batch)
    return np.unique(np.array([*buffer.item_ids, *rest], np.int64))
