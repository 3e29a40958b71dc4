"""The predictions of finished rounds: class probabilities by item.

The columns of a round are the classes that were active when it was requested. This module translates them to class ids.
The probability of a class that has been merged since then is added to that of the class it was merged into.

For an item that was labeled when the round was requested, the round stores the label (one-hot) instead of a prediction.
`predicted_rows` and `most_probable` leave such rows out, so that no label is shown, compared or exported as a
prediction of the model.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import NotFound
from storage.database.store import Store
from storage.labeling.labeled_items import items_seen_with_labels
from storage.labeling.state_arrays import ItemStates
from storage.projects import class_rows
from storage.projects.class_rows import ClassRow
from storage.rounds.log import RoundLog, RoundRow

KEPT_ROUNDS = 8
BLOCK_ROWS = 65_536  # rows computed at once


@dataclass(frozen=True, slots=True)
class Prediction:
    """A class with its probability."""

    class_id: int
    name: str
    probability: float


@dataclass(frozen=True, slots=True)
class BestClasses:
    """The most probable class of every item of a round."""

    predicted: NDArray[np.int16]  # (n,) position among the active classes
    confidence: NDArray[np.float32]  # (n,) its probability


@dataclass(frozen=True)
class RoundPredictions:
    """The arrays of one finished round (memory-mapped), and the class of each column."""

    round: RoundRow
    item_ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    embeddings: NDArray[np.float32] | None
    column_classes: tuple[int, ...]
    order: NDArray[np.int64] = field(repr=False)  # rows sorted by item id
    seen: NDArray[np.bool_] = field(repr=False)  # (n,) the model has seen a label of the item; the row is no prediction
    _best: dict[tuple[int, ...], BestClasses] = field(default_factory=dict, repr=False, compare=False)
    _positions: dict[int, NDArray[np.int32] | None] = field(default_factory=dict, repr=False, compare=False)

    def rows(self, item_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the row of each item, or −1 if the item is not part of the round."""
        if not len(self.order):
            return np.full(len(item_ids), -1, np.int64)
        at = np.searchsorted(self.item_ids, item_ids, sorter=self.order).clip(max=len(self.order) - 1)
        return np.where(self.item_ids[self.order[at]] == item_ids, self.order[at], -1)

    def predicted_rows(self, item_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the row of each item, or −1 if it has no prediction: not part of the round, or its label was used."""
        rows = self.rows(item_ids)
        return rows if not len(self.seen) else np.where((rows >= 0) & ~self.seen[rows], rows, -1)

    def row(self, item_id: int) -> int | None:
        found = int(self.rows(np.array([item_id]))[0])
        return found if found >= 0 else None

    def values_in(self, states: ItemStates, name: str, missing: Any) -> NDArray[Any]:
        """(n,) the array `name` of `states` for the rows of the round; `missing` for deleted items."""
        return self.of_rows(states, getattr(states, name), missing)

    def of_rows(self, states: ItemStates, values: NDArray[Any], missing: Any) -> NDArray[Any]:
        """(n,) `values`, which has one entry per item of `states`, for the rows of the round."""
        if states.generation not in self._positions:
            n = len(self.item_ids)
            first = n <= states.n_items and np.array_equal(states.item_ids[:n], self.item_ids)
            self._positions.clear()
            self._positions[states.generation] = None if first else states.positions(self.item_ids).astype(np.int32)
        at = self._positions[states.generation]
        if at is None:  # the rows are the first items, in their order
            return values[: len(self.item_ids)]
        found = values[at] if len(values) else np.full(len(at), missing, values.dtype)
        return np.where(at >= 0, found, np.asarray(missing, values.dtype))

    def class_probabilities(self, now: list[ClassRow]) -> NDArray[np.float32]:
        """(n, C) probabilities of all items, in the order of the active classes of `now`."""
        active = [row.id for row in now if row.active]
        counts_as = class_rows.counts_as(now)
        probabilities = np.zeros((len(self.item_ids), len(active)), np.float32)
        for column, class_id in enumerate(self.column_classes):
            if counts_as.get(class_id) in active:
                probabilities[:, active.index(counts_as[class_id])] += self.probabilities[:, column]
        return probabilities

    def best_classes(self, now: list[ClassRow]) -> BestClasses | None:
        """The most probable class of each item, cached for each state of the classes. None without active classes."""
        active = [row.id for row in now if row.active]
        if not active:
            return None
        counts_as = class_rows.counts_as(now)
        targets = [counts_as.get(class_id) for class_id in self.column_classes]
        key = (len(active), *(active.index(one) if one in active else -1 for one in targets))
        if key not in self._best:
            self._best.clear()
            self._best[key] = self._computed_best(key[0], np.array(key[1:], np.int64))
        return self._best[key]

    def _computed_best(self, n_active: int, targets: NDArray[np.int64]) -> BestClasses:
        n = len(self.item_ids)
        predicted, confidence = np.empty(n, np.int16), np.empty(n, np.float32)
        used = np.flatnonzero(targets >= 0)
        for start in range(0, n, BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, n))
            block = np.zeros((rows.stop - rows.start, n_active), np.float32)
            for column in used:
                block[:, targets[column]] += self.probabilities[rows, column]
            predicted[rows], confidence[rows] = block.argmax(1), block.max(1)
        give_back(self.probabilities)
        return BestClasses(predicted, confidence)

    def most_probable(self, item_id: int, now: list[ClassRow], limit: int = 3) -> list[Prediction]:
        """The most probable classes of one item, best first. Empty if the item has no prediction."""
        row = int(self.predicted_rows(np.array([item_id]))[0])
        if row < 0:
            return []
        counts_as = class_rows.counts_as(now)
        names = {one.id: one.name for one in now if one.active}
        totals: dict[int, float] = {}
        for class_id, probability in zip(self.column_classes, self.probabilities[row], strict=True):
            target = counts_as.get(class_id, class_id)
            if target in names:
                totals[target] = totals.get(target, 0.0) + float(probability)
        best = sorted(totals.items(), key=lambda pair: -pair[1])[:limit]
        return [Prediction(class_id, names[class_id], round(p, 4)) for class_id, p in best if np.isfinite(p)]


def give_back(array: NDArray[Any]) -> None:
    """Release the memory of a mapped file. Its pages are read again when they are needed."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


_cached: OrderedDict[tuple[str, int], RoundPredictions] = OrderedDict()
_lock = Lock()


def newest_predictions(store: Store, project_id: int) -> RoundPredictions | None:
    """The predictions of the newest finished round. None if there is none or it stored no predictions."""
    latest = RoundLog(store, project_id).latest("finished")
    return None if latest is None else predictions_of(store, latest)


def predictions_of(store: Store, row: RoundRow) -> RoundPredictions | None:
    """The predictions of a finished round, cached because they never change. None if it stored no predictions."""
    key = (store.url, row.id)
    with _lock:
        if key in _cached:
            _cached.move_to_end(key)
            return _cached[key]
    found = _open(store, row)
    if found is not None:
        with _lock:
            _cached[key] = found
            while len(_cached) > KEPT_ROUNDS:
                _cached.popitem(last=False)
    return found


def _open(store: Store, row: RoundRow) -> RoundPredictions | None:
    log = RoundLog(store, row.project_id)
    try:
        item_ids = np.asarray(log.arrays(row.id, "item_ids"))
        probabilities = log.arrays(row.id, "probabilities")
    except NotFound:
        return None
    with store.read() as connection:
        known = class_rows.rows_as_of(connection, row.project_id, row.class_event)
        seen = np.isin(item_ids, items_seen_with_labels(connection, row.project_id, row.label_sequence))
    columns = tuple(one.id for one in known if one.active)
    if probabilities.shape != (len(item_ids), len(columns)):
        return None
    embeddings = _optional(log, row.id, "embeddings")
    return RoundPredictions(row, item_ids, probabilities, embeddings, columns, np.argsort(item_ids), seen)


def _optional(log: RoundLog, round_id: int, kind: str) -> Any:
    try:
        return log.arrays(round_id, kind)
    except NotFound:
        return None
