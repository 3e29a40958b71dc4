"""The order of the grid: all items of a project sorted by confidence, queue, name, import or time of the label.

An order is a permutation of the items, computed once and kept: by confidence once per round, by name once per set of
items. Which of the items match is looked up for each page, block by block, so that a page costs the same at any size.
A page starts after an item (`after`), not after a number of items: labels given meanwhile move no item from one page to
another.

Items without a prediction have the confidence 0, also test items and those whose label the model has seen. Items of
equal confidence are in the shuffled order of the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import BestClasses, RoundPredictions
from app.views.similar_items import neighborhoods
from storage.database.store import Store
from storage.labeling.browsing.item_columns import item_columns
from storage.labeling.state_arrays import ItemStates

Sort = Literal["sure", "unsure", "queue", "name", "newest", "oldest", "labeled", "outliers", "duplicates"]
SORTS: tuple[Sort, ...] = (
    "sure", "unsure", "queue", "name", "newest", "oldest", "labeled", "outliers", "duplicates"
)  # fmt: skip
NONE = -1
BLOCK = 16_384  # items that are searched at once


@dataclass(frozen=True, slots=True)
class PredictedItems:
    """The prediction of each item, at the positions of `ItemStates`."""

    predicted: NDArray[np.int16]  # position among the active classes, NONE without a prediction
    confidence: NDArray[np.float32]  # 0 without a prediction


def predicted_items(states: ItemStates, found: RoundPredictions, best: BestClasses | None) -> PredictedItems:
    confidence, predicted = np.zeros(states.n_items, np.float32), np.full(states.n_items, NONE, np.int16)
    if best is not None:
        at = states.positions(found.item_ids)  # of the part of the round that `states` has
        known = (at >= 0) & ~found.seen & ~states.held_out[at]  # test items are labeled without a prediction
        confidence[at[known]], predicted[at[known]] = best.confidence[known], best.predicted[known]
    return PredictedItems(predicted, confidence)


def page(
    order: NDArray[np.int32], wanted: NDArray[np.bool_], limit: int, *, after: int = NONE, offset: int = 0
) -> NDArray[np.int32]:
    """Up to `limit` positions of items that are `wanted`, in this order: those that follow the item at position
    `after`, without the first `offset`."""
    start = 0
    if after != NONE:
        found = np.flatnonzero(order == after)
        start = int(found[0]) + 1 if len(found) else 0
    parts = [np.empty(0, np.int32)]
    for first in range(start, len(order), BLOCK):
        block = order[first : first + BLOCK]
        hits = block[wanted[block]]
        taken = hits[offset : offset + limit]
        offset = max(0, offset - len(hits))
        limit -= len(taken)
        parts.append(taken)
        if limit <= 0:
            break
    return np.concatenate(parts)


@dataclass(slots=True)
class _Kept:
    """What was computed for the items of one project; `key` changes with the items, `of` with round and classes."""

    key: tuple[object, ...]
    orders: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    of: tuple[object, ...] = ()
    predicted: PredictedItems | None = None


_kept: dict[tuple[str, int], _Kept] = {}
_lock = Lock()
KEPT_PROJECTS = 4


class ProjectOrders:
    """The orders of one project for one request. `found` are the predictions, None without any."""

    def __init__(
        self,
        store: Store,
        project_id: int,
        states: ItemStates,
        found: RoundPredictions | None,
        best: BestClasses | None,
    ) -> None:
        self._store, self._project_id, self._states, self._found = store, project_id, states, found
        key = (states.generation, states.n_items)
        with _lock:
            kept = _kept.pop((store.url, project_id), None)
            if kept is None or kept.key != key:
                kept = _Kept(key)
            of = (best, states.held_out)
            if found is not None and (
                kept.predicted is None or any(a is not b for a, b in zip(kept.of, of, strict=True))
            ):
                kept.of, kept.predicted = of, predicted_items(states, found, best)
                kept.orders.pop("sure", None)
                kept.orders.pop("unsure", None)
            _kept[store.url, project_id] = kept
            while len(_kept) > KEPT_PROJECTS:
                del _kept[next(iter(_kept))]
        self._kept = kept
        self.predicted = kept.predicted if found is not None else None

    def order(self, sort: Sort, first: NDArray[np.int64]) -> NDArray[np.int32]:
        """(n,) positions of all items. `first`: ids that the queue serves before all others, in their order."""
        if sort in ("newest", "oldest"):
            ascending = np.arange(self._states.n_items, dtype=np.int32)
            return ascending if sort == "oldest" else ascending[::-1]
        if sort == "labeled":
            return self._by_label_time()
        if sort == "name":
            return item_columns(self._store, self._project_id, self._states).by_name()
        if sort == "queue" or self.predicted is None:
            return self._in_queue(first)
        if sort in ("outliers", "duplicates"):
            return self._by_neighborhood(sort, first)
        return self._kept_order(sort, lambda: self._by_confidence(sort))

    def _by_neighborhood(self, sort: Sort, first: NDArray[np.int64]) -> NDArray[np.int32]:
        """Items that are like no other first, or the most similar pairs first; items without features last. The order
        of the queue where the pool is too large (`similar_items.MOST_IN_CELLS`)."""
        near = neighborhoods(self._found) if self._found is not None else None
        if self._found is None or near is None:
            return self._in_queue(first)
        at = self._states.positions(self._found.item_ids)
        rows = near.outliers if sort == "outliers" else near.duplicates
        ordered = at[rows][at[rows] >= 0]
        rest = np.setdiff1d(np.arange(self._states.n_items), ordered)
        return np.concatenate([ordered, rest]).astype(np.int32)

    def _by_label_time(self) -> NDArray[np.int32]:
        """Newest label first, then the items without one by id."""
        labeled = np.flatnonzero(self._states.labeled_at)
        newest = labeled[np.argsort(-self._states.labeled_at[labeled], kind="stable")]
        rest = np.flatnonzero(self._states.labeled_at == 0)
        return np.concatenate([newest, rest]).astype(np.int32)

    def _in_queue(self, first: NDArray[np.int64]) -> NDArray[np.int32]:
        shuffled = self._kept_order("queue", self._shuffled)
        at = self._states.positions(first)
        at = at[at >= 0].astype(np.int32)
        if not len(at):
            return shuffled
        rest = np.ones(self._states.n_items, np.bool_)
        rest[at] = False
        return np.concatenate([at, shuffled[rest[shuffled]]])

    def _shuffled(self) -> NDArray[np.int32]:
        return np.argsort(self._states.shuffle, kind="stable").astype(np.int32)

    def _by_confidence(self, sort: Sort) -> NDArray[np.int32]:
        assert self.predicted is not None
        shuffled = self._kept_order("queue", self._shuffled)
        confidence = self.predicted.confidence[shuffled]
        return shuffled[np.argsort(confidence if sort == "unsure" else -confidence, kind="stable")]

    def _kept_order(self, name: str, compute: Callable[[], NDArray[np.int32]]) -> NDArray[np.int32]:
        found = self._kept.orders.get(name)
        if found is None:
            found = self._kept.orders[name] = compute()
        return found
