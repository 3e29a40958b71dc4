"""The candidates of a watched project: slots of items that represent the stream, and the position in the stream.

The buffer contains the items that `core.rounds.stream_buffer` selects from the waiting items up to `last_item_id`.
Later items wait for the next full batch and are candidates too. The whole buffer is saved in one transaction, so an
item enters it once even if a process is killed. While all waiting items fit into the buffer, all are candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select

from storage.database.bulk import chunks
from storage.database.schema import Item, ItemState
from storage.database.store import Store
from storage.importing import watches

Slots = tuple[tuple[int, tuple[int, ...]], ...]
"""Oldest first: the number of batches of the stream that a slot represents, and its items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    slots: Slots = ()
    last_item_id: int = 0
    batch: int = 0  # number of items in a full batch

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
    """Ids of the next waiting items of the stream, in the order of import."""
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
    """The ids of those items that still wait for their first label."""
    found: set[int] = set()
    with store.read() as connection:
        for part in chunks(item_ids):
            query = select(ItemState.item_id).where(ItemState.item_id.in_(part), ItemState.waiting)
            found.update(connection.execute(query.where(ItemState.n_labels == 0)).scalars())
    return found


def hashes(store: Store, item_ids: NDArray[np.int64]) -> list[str]:
    """The SHA-256 of each item, in order."""
    found: dict[int, str] = {}
    ids = item_ids.tolist()
    with store.read() as connection:
        for part in chunks(ids):
            query = select(Item.id, Item.sha256).where(Item.id.in_(part))
            found |= {row.id: row.sha256 for row in connection.execute(query)}
    return [found[item_id] for item_id in ids]


def candidates(store: Store, project_id: int) -> NDArray[np.int64] | None:
    """Ids of the items that rounds of a watched project select from.

    None when a round may select from all waiting items: the project is not watched, or they fit into the buffer.
    """
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
