"""Names and splits of all items of a project in memory, for searching and sorting by them.

They are read at the first search or sort by name or split, or earlier for the project that was labeled last. The
values of an item never change. Later calls read the items imported since then. When items were deleted
(`ItemStates.generation`), everything is read again. A million names of 30 characters take about 35 MB; only the columns
of one project are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, select

from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling.state_arrays import ItemStates

READ_ROWS = 20_000  # names that are Python strings at the same time
KEPT_SEARCHES = 4


@dataclass(frozen=True, eq=False)
class ItemColumns:
    """One entry per item, at the positions of the `ItemStates` they were read for."""

    project_id: int
    generation: int
    item_ids: NDArray[np.int64]
    names: Any  # pyarrow.ChunkedArray of names in lower case
    split: NDArray[np.int16]  # position in `split_names`
    split_names: tuple[str, ...]  # as the source names them, "" for none
    _by_name: list[NDArray[np.int32]] = field(default_factory=list, repr=False)
    _searches: dict[str, NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    def containing(self, text: str) -> NDArray[np.bool_]:
        """(n,) whether the name contains `text`, ignoring case. The last results are kept for further pages."""
        text = text.lower()
        found = self._searches.get(text)
        if found is None:
            matches = pc.match_substring(self.names, text).to_numpy() if len(self.names) else np.zeros(0, np.bool_)
            found = np.asarray(matches, np.bool_)
            for oldest in list(self._searches)[: max(0, len(self._searches) + 1 - KEPT_SEARCHES)]:
                self._searches.pop(oldest, None)
            self._searches[text] = found
        return found

    def in_split(self, name: str, held_out: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(n,) whether the item is in the split, as exports name it: the source's name, else test or train."""
        codes = [code for code, own in enumerate(self.split_names) if own == name]
        inside = np.isin(self.split, np.array(codes, np.int16))
        if name in ("test", "train"):
            inside |= (self.split == self.split_names.index("")) & (held_out == (name == "test"))
        return inside

    def by_name(self) -> NDArray[np.int32]:
        """(n,) positions in the order of names, sorted once; equal names are in the order of ids."""
        if not self._by_name:
            order = pc.sort_indices(self.names).to_numpy() if len(self.names) else np.empty(0)
            self._by_name.append(order.astype(np.int32))
            pa.default_memory_pool().release_unused()  # memory that sorting used: 20 MB for a million names
        return self._by_name[0]


_kept: WeakKeyDictionary[Store, ItemColumns] = WeakKeyDictionary()
_lock = Lock()


def item_columns(store: Store, project_id: int, states: ItemStates) -> ItemColumns:
    """The columns for exactly the items of `states`, which must be those of the whole project."""
    with _lock:
        known = _kept.get(store)
        usable = known is not None and (known.project_id, known.generation) == (project_id, states.generation)
        if known is None or not usable or len(known.item_ids) > states.n_items:
            known = ItemColumns(
                project_id,
                states.generation,
                np.empty(0, np.int64),
                pa.chunked_array([], pa.string()),
                np.empty(0, np.int16),
                ("",),
            )
        if len(known.item_ids) < states.n_items:
            known = _with_new(store, known, states.item_ids)
        _kept[store] = known
        return known


def _with_new(store: Store, known: ItemColumns, item_ids: NDArray[np.int64]) -> ItemColumns:
    start = len(known.item_ids)
    codes = {name: code for code, name in enumerate(known.split_names)}
    parts, splits = list(known.names.chunks), [known.split]
    first, last = int(item_ids[start]), int(item_ids[-1])
    query = select(Item.id, Item.name, Item.split_name).where(Item.id.between(first, last))
    query = query.where(Item.project_id == known.project_id).order_by(Item.id)
    n_read = 0
    with store.read() as connection:
        for block in _blocks(connection, query, store.is_sqlite):
            n_read += len(block)
            parts.append(pc.utf8_lower(pa.array([row[1] for row in block], pa.string())))
            found = (codes.setdefault(row[2], len(codes)) for row in block)
            splits.append(np.fromiter(found, np.int16, len(block)))
    if n_read != len(item_ids) - start:  # deleted in between: the next request has other states
        missing = len(item_ids) - start - n_read
        parts.append(pa.array([""] * missing, pa.string()))
        splits.append(np.zeros(max(missing, 0), np.int16))
    return ItemColumns(
        known.project_id,
        known.generation,
        item_ids,
        pa.chunked_array(parts, pa.string()),
        np.concatenate(splits),
        tuple(codes),
    )


def _blocks(connection: Connection, query: Select[*tuple[Any, ...]], is_sqlite: bool) -> Iterator[Sequence[Any]]:
    """The rows of a query, several thousand at a time; on SQLite from the driver's tuples, in half the time."""
    if not is_sqlite:
        yield from connection.execution_options(yield_per=READ_ROWS).execute(query).partitions()
        return
    with connection.execute(query) as result:
        cursor: Any = result.cursor
        while block := cursor.fetchmany(READ_ROWS):
            yield block
