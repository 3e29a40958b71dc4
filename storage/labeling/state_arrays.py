"""The states of all items of a project as arrays in memory, for processes that answer many requests.

The first call for a project reads every row. Later calls read the project's revision and, if it has grown, the rows
whose state changed since then (`ItemState.revision`) and the items imported since then; a label costs one row, however
large the pool is. The arrays are never changed in place: a change copies the arrays that it concerns, so a request can
keep using its arrays while another request reads changes.

A store that was restored from a backup has a smaller revision, fewer items, or another event with the sequence of the
newest one that was read; then every row is read again. The same applies after items were deleted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, Select, func, select, text, type_coerce

from storage.database.access_schema import Deletion
from storage.database.bulk import chunks
from storage.database.declarative import WholeSeconds
from storage.database.schema import CHANGED, Item, ItemState, LabelEvent, Project
from storage.database.store import Store

NO_ID = 0  # no class, no annotator
KEPT_ITEMS = 3_000_000  # of all projects in memory; the most recently used project always stays
ROW = np.dtype(
    [
        ("item_id", np.int64),
        ("class_id", np.int32),
        ("annotator_id", np.int32),
        ("labeled_at", np.int64),
        ("shuffle", np.int32),
        ("waiting", np.bool_),
        ("skipped", np.bool_),
        ("flagged", np.bool_),
    ]
)
CHANGING = ("class_id", "annotator_id", "labeled_at", "waiting", "skipped", "flagged")
COUNTED = ("waiting", "skipped", "flagged")


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of items. They are updated with each change instead of being counted again."""

    waiting: int = 0
    skipped: int = 0
    flagged: int = 0
    labeled: Counter[int] = field(default_factory=Counter)  # class id, as given -> items that are not test items

    def changed(self, before: Tally, after: Tally) -> Tally:
        labeled = Counter(self.labeled)
        labeled.subtract(before.labeled)
        labeled.update(after.labeled)
        return Tally(
            self.waiting - before.waiting + after.waiting,
            self.skipped - before.skipped + after.skipped,
            self.flagged - before.flagged + after.flagged,
            labeled,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemStates:
    """One entry per item of a project, in the order of item ids. The arrays are read-only."""

    revision: int
    generation: int  # a new number each time all rows are read; while it is the same, items keep their positions
    item_ids: NDArray[np.int64]
    shuffle: NDArray[np.int32]
    held_out: NDArray[np.bool_]
    class_id: NDArray[np.int32]  # of the label that counts, as given; NO_ID without one
    annotator_id: NDArray[np.int32]  # who gave that label; NO_ID without one
    labeled_at: NDArray[np.int64]  # when it was given, in seconds since 1970; 0 without one
    waiting: NDArray[np.bool_]
    skipped: NDArray[np.bool_]
    flagged: NDArray[np.bool_]
    tally: Tally
    n_held_out: int
    newest_event: tuple[int, str] | None = None  # (sequence, uuid) of the newest event of the store when this was read
    n_deleted: int = 0  # items of the project deleted before this was read

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    def positions(self, item_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k,) the position of each item, −1 for items of other projects."""
        if not self.n_items:
            return np.full(len(item_ids), -1, np.int64)
        at = np.searchsorted(self.item_ids, item_ids).clip(max=self.n_items - 1)
        return np.where(self.item_ids[at] == item_ids, at, -1)

    def at(self, positions: NDArray[np.int64]) -> ItemStates:
        """The states of only the items at these positions."""
        names = ("item_ids", "shuffle", "held_out", *CHANGING)
        part = replace(self, **{name: getattr(self, name)[positions] for name in names})
        everything = np.arange(len(positions))
        return replace(part, tally=_tally(part, everything), n_held_out=int(np.count_nonzero(part.held_out)))


_states: WeakKeyDictionary[Store, OrderedDict[int, ItemStates]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[Store, dict[int, Lock]] = WeakKeyDictionary()
_lock = Lock()
_generations = count()


def item_states(store: Store, project_id: int) -> ItemStates:
    """The current states of a project; read completely only the first time."""
    with _lock:
        turn = _locks.setdefault(store, {}).setdefault(project_id, Lock())
    with turn:
        known = _known(store, project_id)
        with store.read() as connection:
            found = _current(connection, project_id, known)
        if found is not known:
            _keep(store, project_id, found)
        return found


def states_in_memory(store: Store, project_id: int) -> ItemStates | None:
    """`item_states` of a project that this process has read before; else None, without reading anything."""
    return item_states(store, project_id) if _known(store, project_id) is not None else None


def _known(store: Store, project_id: int) -> ItemStates | None:
    with _lock:
        return _states.get(store, OrderedDict()).get(project_id)


def _keep(store: Store, project_id: int, found: ItemStates) -> None:
    with _lock:
        kept = _states.setdefault(store, OrderedDict())
        kept[project_id] = found
        kept.move_to_end(project_id)
        while len(kept) > 1 and sum(states.n_items for states in kept.values()) > KEPT_ITEMS:
            kept.popitem(last=False)


def _current(connection: Connection, project_id: int, known: ItemStates | None) -> ItemStates:
    revision = connection.execute(select(Project.revision).where(Project.id == project_id)).scalar()
    if known is not None and revision == known.revision:
        return known
    ids = connection.execute(select(func.max(Item.id)).where(Item.project_id == project_id))
    last, revision = int(ids.scalar() or 0), int(revision or 0)
    before = int(known.item_ids[-1]) if known is not None and known.n_items else 0
    newest, n_deleted = _newest_event(connection), _n_deleted(connection, project_id)
    if (
        known is None
        or revision < known.revision
        or last < before
        or n_deleted != known.n_deleted
        or not _is_stored(connection, known.newest_event)
    ):
        found = _complete(connection, project_id, revision)
        return replace(found, newest_event=newest, n_deleted=n_deleted)
    changed = _rows(connection, _changed_states(project_id, known.revision))
    found = _with_changes(connection, known, changed[changed["item_id"] <= before])
    if last > before:
        found = _with_new(connection, project_id, found, before)
    return replace(found, revision=revision, newest_event=newest)


def _newest_event(connection: Connection) -> tuple[int, str] | None:
    query = select(LabelEvent.sequence, LabelEvent.uuid).order_by(LabelEvent.sequence.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return (row.sequence, row.uuid) if row is not None else None


def _n_deleted(connection: Connection, project_id: int) -> int:
    counts = connection.execute(select(Deletion.counts).where(Deletion.project_id == project_id)).scalars()
    return sum(int(one.get("items", 0)) for one in counts)


def _is_stored(connection: Connection, event: tuple[int, str] | None) -> bool:
    if event is None:
        return True
    uuid = select(LabelEvent.uuid).where(LabelEvent.sequence == event[0])
    return connection.execute(uuid).scalar_one_or_none() == event[1]


def _complete(connection: Connection, project_id: int, revision: int) -> ItemStates:
    empty = np.empty(0, ROW)
    nothing: dict[str, Any] = {name: empty[name] for name in ("shuffle", *CHANGING)}
    states = ItemStates(
        revision=revision,
        generation=next(_generations),
        item_ids=empty["item_id"],
        held_out=np.empty(0, np.bool_),
        tally=Tally(),
        n_held_out=0,
        **nothing,
    )
    return _with_new(connection, project_id, states, 0)


def _with_changes(connection: Connection, known: ItemStates, rows: NDArray[Any]) -> ItemStates:
    """`known` with the values of the changed rows; arrays in which nothing differs are shared."""
    if not len(rows):
        return known
    at = np.searchsorted(known.item_ids, rows["item_id"])
    values = {name: rows[name] for name in CHANGING} | {"held_out": _are_held_out(connection, rows["item_id"])}
    arrays: dict[str, Any] = {}
    for name, new in values.items():
        old: NDArray[Any] = getattr(known, name)
        if (old[at] != new).any():
            arrays[name] = old.copy()
            arrays[name][at] = new
            arrays[name].flags.writeable = False
    found = replace(known, **arrays)
    n_held_out = known.n_held_out + int(found.held_out[at].sum()) - int(known.held_out[at].sum())
    return replace(found, n_held_out=n_held_out, tally=known.tally.changed(_tally(known, at), _tally(found, at)))


def _are_held_out(connection: Connection, item_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    found = [
        item_id
        for chunk in chunks(item_ids.tolist())
        for item_id, held_out in connection.execute(select(Item.id, Item.held_out).where(Item.id.in_(chunk)))
        if held_out
    ]
    return np.isin(item_ids, np.array(found, np.int64))


def _with_new(connection: Connection, project_id: int, known: ItemStates, after: int) -> ItemStates:
    """`known` with the items whose ids are larger than `after`."""
    first = connection.execute(select(func.min(Item.id)).where(Item.project_id == project_id, Item.id > after)).scalar()
    if first is None:
        return known
    rows = _rows(connection, _states_from(project_id, int(first)))
    tests = select(Item.id).where(Item.project_id == project_id, Item.held_out, Item.id >= first)
    held_out = np.isin(rows["item_id"], np.fromiter(connection.execute(tests).scalars(), np.int64))
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(known, name), rows[name]]) for name in ("shuffle", *CHANGING)
    }
    arrays["item_ids"] = np.concatenate([known.item_ids, rows["item_id"]])
    arrays["held_out"] = np.concatenate([known.held_out, held_out])
    for array in arrays.values():
        array.flags.writeable = False
    found = replace(known, **arrays, n_held_out=known.n_held_out + int(held_out.sum()))
    added = _tally(found, np.arange(known.n_items, found.n_items))
    return replace(found, tally=known.tally.changed(Tally(), added))


def _tally(states: ItemStates, at: NDArray[np.int64]) -> Tally:
    """The tally of only the items at these positions."""
    classes, numbers = np.unique(states.class_id[at][~states.held_out[at]], return_counts=True)
    labeled = Counter(dict(zip(classes.tolist(), numbers.tolist(), strict=True)))
    del labeled[NO_ID]
    waiting, skipped, flagged = (int(np.count_nonzero(getattr(states, name)[at])) for name in COUNTED)
    return Tally(waiting, skipped, flagged, labeled)


def _columns() -> Select[*tuple[Any, ...]]:
    """The query for the fields of ROW; booleans as the database stores them, without converting each value."""
    return select(
        ItemState.item_id,
        func.coalesce(ItemState.class_id, NO_ID),
        func.coalesce(LabelEvent.annotator_id, NO_ID),
        func.coalesce(WholeSeconds(LabelEvent.at), 0),
        ItemState.shuffle,
        *(type_coerce(column, Integer) for column in (ItemState.waiting, ItemState.skipped, ItemState.flagged)),
    ).outerjoin_from(ItemState, LabelEvent, LabelEvent.sequence == ItemState.sequence)


def _changed_states(project_id: int, revision: int) -> Select[*tuple[Any, ...]]:
    changed = (ItemState.project_id == project_id, ItemState.revision > revision, text(CHANGED))
    return _columns().where(*changed)


def _states_from(project_id: int, first: int) -> Select[*tuple[Any, ...]]:
    """The query for a range of the primary key, in the order of the arrays; items of other projects are left out."""
    where = (ItemState.item_id >= first, ItemState.project_id == project_id)
    return _columns().where(*where).order_by(ItemState.item_id)


def _rows(connection: Connection, query: Select[*tuple[Any, ...]]) -> NDArray[Any]:
    """The rows of a query of `_columns`, from the driver's tuples: a million rows take about a second."""
    with connection.execute(query) as result:
        tuples: Any = result.cursor
        return np.fromiter(tuples, ROW)
