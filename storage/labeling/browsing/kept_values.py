"""Values of every item of a project that follow from label events, as arrays in memory: the labels of one annotator,
contested items, and items with notes.

The first call for a kind of value reads all items concerned. A later call reads only the items that have new events, so
its cost does not grow with the number of labels. An array is never changed in place: a change copies it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, distinct, func, select, text

from storage.database.bulk import chunks
from storage.database.schema import NOTED, SHARED, CurrentLabel, ItemState, LabelClass, LabelEvent
from storage.database.store import Store
from storage.labeling.state_arrays import NO_ID, ItemStates
from storage.labeling.undo import is_undone
from storage.projects import class_rows

KEPT_ARRAYS = 8  # of one store
LABEL = np.dtype([("item_id", np.int64), ("class_id", np.int32)])
MOST_CHANGES = 5_000  # new events; with more, everything is read again
Values = tuple[NDArray[np.int64], NDArray[Any]]  # item ids and the values of these items; all others have 0
Read = Callable[[Connection, Sequence[int] | None], Values]  # of these items, or of all


@dataclass(frozen=True, slots=True)
class _Kept:
    generation: int
    revision: int
    sequence: int  # of the newest event of the project that `values` contains
    values: NDArray[Any]  # one entry per item, at the positions of `ItemStates`


_arrays: WeakKeyDictionary[Store, OrderedDict[Hashable, _Kept]] = WeakKeyDictionary()
_lock = Lock()


def labels_of(store: Store, project_id: int, annotator: int, states: ItemStates) -> NDArray[np.int32]:
    """(n,) class of this annotator's current label, as given; NO_ID without one."""

    def read(connection: Connection, item_ids: Sequence[int] | None) -> Values:
        query = select(CurrentLabel.item_id, CurrentLabel.class_id).where(
            CurrentLabel.project_id == project_id, CurrentLabel.annotator_id == annotator
        )
        rows = _rows(connection, _parts(query, CurrentLabel.item_id, item_ids), LABEL)
        return rows["item_id"], rows["class_id"]

    return _values(store, states, project_id, ("labels", annotator), read)


def are_contested(store: Store, project_id: int, states: ItemStates) -> NDArray[np.bool_]:
    """(n,) whether the current labels count as different classes without a review decision."""
    with store.read() as connection:
        merged = tuple(sorted(class_rows.effective_ids(connection, project_id).items()))

    def read(connection: Connection, item_ids: Sequence[int] | None) -> Values:
        query = (
            select(CurrentLabel.item_id)
            .join(ItemState, ItemState.item_id == CurrentLabel.item_id)
            .join(LabelClass, LabelClass.id == CurrentLabel.class_id)
            .where(ItemState.project_id == project_id, text(SHARED), ~ItemState.decided)
            .group_by(CurrentLabel.item_id)
            .having(func.count(distinct(class_rows.counting_class())) > 1)
        )
        rows = _rows(connection, _parts(query, ItemState.item_id, item_ids), LABEL[["item_id"]])
        return rows["item_id"], np.ones(len(rows), np.bool_)

    return _values(store, states, project_id, ("contested", merged), read)


def have_notes(store: Store, project_id: int, viewer: int, states: ItemStates) -> NDArray[np.bool_]:
    """(n,) whether the item has a note by the annotator `viewer` or, with NO_ID, by anyone."""

    def read(connection: Connection, item_ids: Sequence[int] | None) -> Values:
        newest = {
            (row.item_id, row.annotator_id): row.note
            for part in _parts(standing_notes(project_id), LabelEvent.item_id, item_ids)
            for row in connection.execute(part)
            if viewer in (NO_ID, row.annotator_id)
        }
        noted = sorted({item for (item, _), note in newest.items() if note})
        return np.array(noted, np.int64), np.ones(len(noted), np.bool_)

    return _values(store, states, project_id, ("notes", viewer), read)


def standing_notes(project_id: int) -> Select[*tuple[Any, ...]]:
    """Notes that are not undone, oldest first. An annotator's newest note on an item replaces the earlier ones; an
    empty one removes them."""
    columns = (LabelEvent.item_id, LabelEvent.annotator_id, LabelEvent.note, LabelEvent.sequence)
    notes = select(*columns).where(LabelEvent.project_id == project_id, text(f"label_events.{NOTED}"), ~is_undone())
    return notes.order_by(LabelEvent.sequence)


def _values(store: Store, states: ItemStates, project_id: int, kind: tuple[Hashable, ...], read: Read) -> NDArray[Any]:
    key = (project_id, *kind)
    with _lock:
        known = _arrays.setdefault(store, OrderedDict()).get(key)
    if known is not None and known.generation != states.generation:
        known = None
    if known is None or known.revision < states.revision or len(known.values) < states.n_items:
        with store.read() as connection:
            known = _current(connection, states, project_id, known, read)
    with _lock:
        kept = _arrays.setdefault(store, OrderedDict())
        kept[key] = known
        kept.move_to_end(key)
        while len(kept) > KEPT_ARRAYS:
            kept.popitem(last=False)
    return known.values[: states.n_items]  # another request may have read newer states


def _current(connection: Connection, states: ItemStates, project_id: int, known: _Kept | None, read: Read) -> _Kept:
    """`known`, updated for the items that have new events. The transactions that store events of a project are
    serialized, so no event with a smaller sequence appears later."""
    if known is not None:
        # The sum keeps SQLite from an index on the project, which holds all of its events.
        after = (LabelEvent.project_id + 0 == project_id, LabelEvent.sequence > known.sequence)
        query = select(LabelEvent.item_id, LabelEvent.sequence).where(*after)
        new = connection.execute(query.order_by(LabelEvent.sequence).limit(MOST_CHANGES + 1)).all()
        if len(new) <= MOST_CHANGES:
            values = np.zeros(states.n_items, known.values.dtype)
            values[: len(known.values)] = known.values
            changed = sorted({row.item_id for row in new})
            if changed:
                _set(values, states, np.array(changed, np.int64), 0)
                _set(values, states, *read(connection, changed))
            sequence = new[-1].sequence if new else known.sequence
            return _Kept(states.generation, states.revision, sequence, values)
    newest = select(func.max(LabelEvent.sequence)).where(LabelEvent.project_id == project_id)
    sequence = int(connection.execute(newest).scalar() or 0)
    ids, found = read(connection, None)
    values = np.zeros(states.n_items, found.dtype)
    _set(values, states, ids, found)
    return _Kept(states.generation, states.revision, sequence, values)


def _set(values: NDArray[Any], states: ItemStates, item_ids: NDArray[np.int64], to: Any) -> None:
    at = states.positions(item_ids)
    values[at[at >= 0]] = to if np.ndim(to) == 0 else to[at >= 0]


def _parts(query: Any, column: Any, item_ids: Sequence[int] | None) -> list[Any]:
    return [query] if item_ids is None else [query.where(column.in_(part)) for part in chunks(item_ids)]


def _rows(connection: Connection, queries: Sequence[Any], columns: np.dtype[Any]) -> NDArray[Any]:
    """The rows of all queries, from the driver's tuples."""
    found = []
    for query in queries:
        with connection.execute(query) as result:
            tuples: Any = result.cursor
            found.append(np.fromiter(tuples, columns))
    return np.concatenate(found)
