"""The order of the grid: all items of a project sorted by confidence, queue, name, import or time of the label.

An order is a permutation of the items that is computed once and cached: by confidence once per round, by name once per
set of items. The filter is applied for each page, block by block, so that the cost of a page does not depend on the
size of the pool. A page starts after an item (`after`), not at an offset, so that new labels do not move items between
pages.

Items without a prediction have confidence 0; these include test items and items whose label the model was trained on.
Items with equal confidence are in the shuffled order of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import BestClasses, RoundPredictions
from app.views.similarity.similar_items import MOST_IN_CELLS, neighborhoods
from storage.database.store import Store
from storage.labeling.browsing.item_columns import item_columns
from storage.labeling.state_arrays import ItemStates

Sort = Literal["sure", "unsure", "queue", "name", "newest", "oldest", "labeled", "outliers", "duplicates"]
SORTS: tuple[Sort, ...] = (
    "sure", "unsure", "queue", "name", "newest", "oldest", "labeled", "outliers", "duplicates"
)  # fmt: skip
NONE = -1
BLOCK = 16_384  # items that are searched at once
FEW = 8  # if fewer than one item in FEW is wanted, the wanted items are sorted


@dataclass(frozen=True, slots=True)
class PredictedItems:
    """The prediction of each item, at the positions of `ItemStates`."""

    predicted: NDArray[np.int16]  # position among the active classes, NONE without a prediction
    confidence: NDArray[np.float32]  # 0 without a prediction


def predicted_items(states: ItemStates, found: RoundPredictions, best: BestClasses | None) -> PredictedItems:
    """Map the predictions of a round to the positions of `states`."""
    confidence, predicted = np.zeros(states.n_items, np.float32), np.full(states.n_items, NONE, np.int16)
    if best is not None:
        at = states.positions(found.item_ids)  # negative for items that `states` does not have
        known = (at >= 0) & ~found.seen & ~states.held_out[at]  # test items are labeled without a prediction
        confidence[at[known]], predicted[at[known]] = best.confidence[known], best.predicted[known]
    return PredictedItems(predicted, confidence)


class Order:
    """An order of items, represented by their positions in `ItemStates` and by a sort value for each item.

    Each representation is computed from the other when it is first needed. Items with equal values are sorted by
    position. Only an order of all items has values; one of similar items (`some`) has none.
    """

    def __init__(
        self, body: Callable[[], NDArray[np.int32]], values: NDArray[Any] | None = None, *, descending: bool = False
    ) -> None:
        self._body, self._values = body, values
        self.descending, self.is_complete = descending, True
        self.head = np.empty(0, np.int32)  # these items come first; they are in `body` as well

    @staticmethod
    def of(positions: NDArray[np.int32]) -> Order:
        return Order(lambda: positions)

    @staticmethod
    def some(positions: NDArray[np.int32]) -> Order:
        order = Order.of(positions)
        order.is_complete = False
        return order

    def after(self, head: NDArray[np.int64]) -> Order:
        """The same order with these items moved to the beginning."""
        values = self.values.copy()
        values[head] = np.arange(-len(head), 0)
        order = Order(lambda: self.body, values)
        order.head = head.astype(np.int32)
        return order

    @cached_property
    def body(self) -> NDArray[np.int32]:
        return self._body()

    @cached_property
    def positions(self) -> NDArray[np.int32]:
        """The positions of the items in this order."""
        if not len(self.head):
            return self.body
        rest = np.ones(len(self.body), np.bool_)
        rest[self.head] = False
        return np.concatenate([self.head, self.body[rest[self.body]]])

    @cached_property
    def values(self) -> NDArray[Any]:
        """(n,) the sort value of each item. Only for an order of all n items."""
        if self._values is not None:
            return self._values
        ranks = np.empty(len(self.body), np.int32)
        ranks[self.body] = np.arange(len(ranks), dtype=np.int32)
        return ranks


def page(
    order: Order, wanted: NDArray[np.bool_], limit: int, *, after: int = NONE, offset: int = 0
) -> NDArray[np.int32]:
    """Up to `limit` positions of `wanted` items in this order: those after the item at position `after`, without the
    first `offset`.

    If few items are wanted, they are sorted. Otherwise the order is scanned.
    """
    if order.is_complete and np.count_nonzero(wanted) * FEW < len(wanted):
        return _page_of_few(order, np.flatnonzero(wanted), limit, after, offset)
    return _page_of_many(order, wanted, limit, after, offset)


def _page_of_few(order: Order, at: NDArray[np.int64], limit: int, after: int, offset: int) -> NDArray[np.int32]:
    values = order.values[at]
    if after != NONE:
        last = order.values[after]
        follows = (values < last if order.descending else values > last) | ((values == last) & (at > after))
        at, values = at[follows], values[follows]
    if order.descending:
        values = -values
    if len(at) > offset + limit:  # keep all values up to the last one of the page; ties are sorted below
        near = values <= np.partition(values, offset + limit - 1)[offset + limit - 1]
        at, values = at[near], values[near]
    return at[np.argsort(values, kind="stable")[offset : offset + limit]].astype(np.int32)


def _page_of_many(order: Order, wanted: NDArray[np.bool_], limit: int, after: int, offset: int) -> NDArray[np.int32]:
    found: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    for positions, fits in _parts(order, wanted, after):
        for first in range(0, len(positions), BLOCK):
            block = positions[first : first + BLOCK]
            hits = block[fits[block]]
            taken = hits[offset : offset + limit]
            offset = max(0, offset - len(hits))
            limit -= len(taken)
            found.append(taken)
            if limit <= 0:
                return np.concatenate(found)
    return np.concatenate(found)


def _parts(
    order: Order, wanted: NDArray[np.bool_], after: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield the positions that follow `after`, in two parts, with a mask of the wanted ones."""
    in_head = np.flatnonzero(order.head == after)
    if after == NONE or len(in_head):
        yield order.head[int(in_head[0]) + 1 if len(in_head) else 0 :], wanted
        after = NONE
    if len(order.head):
        wanted = wanted.copy()
        wanted[order.head] = False
    in_body = np.flatnonzero(order.body == after) if after != NONE else np.empty(0, np.int64)
    yield order.body[int(in_body[0]) + 1 if len(in_body) else 0 :], wanted


@dataclass(slots=True)
class _Kept:
    """Cached orders of one project. `key` changes with the items, `of` with the round and the classes."""

    key: tuple[object, ...]
    orders: dict[str, Order] = field(default_factory=dict)
    of: tuple[object, ...] = ()
    predicted: PredictedItems | None = None


_kept: dict[tuple[str, int], _Kept] = {}
_lock = Lock()
KEPT_PROJECTS = 4


class ProjectOrders:
    """The orders of one project for one request. `found` are the predictions, or None."""

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

    def order(self, sort: Sort, first: NDArray[np.int64]) -> Order:
        """The order of all items. `first` are the ids that the queue serves before all others, in order."""
        if sort in ("newest", "oldest"):
            ascending = np.arange(self._states.n_items, dtype=np.int32)
            newest = sort == "newest"
            return Order(lambda: ascending[::-1] if newest else ascending, ascending, descending=newest)
        if sort == "labeled":
            return Order(self._by_label_time, self._states.labeled_at, descending=True)
        if sort == "name":
            return self._by_name()
        if sort == "queue" or self.predicted is None:
            return self._in_queue(first)
        if sort in ("outliers", "duplicates"):
            return self._by_neighborhood(sort, first)
        return self._kept_order(sort, lambda: self._by_confidence(sort))

    def note(self, sort: Sort) -> str:
        """A sentence if this sort is not available, so that the items are in the order of the queue; else empty."""
        if sort not in ("outliers", "duplicates") or self._found is None or neighborhoods(self._found) is not None:
            return ""
        if self._found.embeddings is not None and len(self._found.embeddings) > MOST_IN_CELLS:
            most = f"Pools of more than {MOST_IN_CELLS:,} items cannot be sorted this way."
            return f"{most} They are in the order of the queue."
        return "The newest round has no features to sort by. Items are in the order of the queue."

    def _by_name(self) -> Order:
        by_name = item_columns(self._store, self._project_id, self._states).by_name()
        kept = self._kept.orders.get("name")
        if kept is None or kept.positions is not by_name:
            kept = self._kept.orders["name"] = Order.of(by_name)
        return kept

    def _by_neighborhood(self, sort: Sort, first: NDArray[np.int64]) -> Order:
        """Outliers or the most similar pairs first; items without features last. If the pool is too large
        (`similar_items.MOST_IN_CELLS`), the order of the queue."""
        near = neighborhoods(self._found) if self._found is not None else None
        if self._found is None or near is None:
            return self._in_queue(first)
        at = self._states.positions(self._found.item_ids)
        rows = near.outliers if sort == "outliers" else near.duplicates
        ordered = at[rows][at[rows] >= 0]
        rest = np.setdiff1d(np.arange(self._states.n_items), ordered)
        return Order.of(np.concatenate([ordered, rest]).astype(np.int32))

    def _by_label_time(self) -> NDArray[np.int32]:
        """Items by the time of their label, newest first, then items without a label by id."""
        labeled = np.flatnonzero(self._states.labeled_at)
        newest = labeled[np.argsort(-self._states.labeled_at[labeled], kind="stable")]
        rest = np.flatnonzero(self._states.labeled_at == 0)
        return np.concatenate([newest, rest]).astype(np.int32)

    def _in_queue(self, first: NDArray[np.int64]) -> Order:
        shuffled = self._kept_order("queue", self._shuffled)
        at = self._states.positions(first)
        at = at[at >= 0]
        return shuffled.after(at) if len(at) else shuffled

    def _shuffled(self) -> NDArray[np.int32]:
        return np.argsort(self._states.shuffle, kind="stable").astype(np.int32)

    def _by_confidence(self, sort: Sort) -> NDArray[np.int32]:
        assert self.predicted is not None
        shuffled = self._kept_order("queue", self._shuffled).positions
        confidence = self.predicted.confidence[shuffled]
        return shuffled[np.argsort(confidence if sort == "unsure" else -confidence, kind="stable")]

    def _kept_order(self, name: str, compute: Callable[[], NDArray[np.int32]]) -> Order:
        found = self._kept.orders.get(name)
        if found is None:
            found = self._kept.orders[name] = Order.of(compute())
        return found
