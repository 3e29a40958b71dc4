"""The order of the grid: all items of a project sorted by the confidence of their prediction, once per round.

Items without a prediction have the confidence 0, also test items and those whose label the model has seen. Items of
equal confidence are in the shuffled order of the queue. The order does not depend on labels; which of the items wait is
looked up for each page.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import BestClasses, RoundPredictions
from storage.database.store import Store
from storage.labeling.state_arrays import ItemStates
from storage.projects.class_rows import ClassRow

Direction = Literal["sure", "unsure"]
NONE = -1
BLOCK = 16_384  # items that are searched at once


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the waiting items, and the number of all that match."""

    item_ids: NDArray[np.int64]
    predicted: NDArray[np.int16]  # position among the active classes, NONE without a prediction
    confidence: NDArray[np.float32]
    total: int


class TileOrder:
    """One order over the items of `states`; positions are those of its arrays."""

    def __init__(
        self, states: ItemStates, found: RoundPredictions, best: BestClasses | None, direction: Direction
    ) -> None:
        confidence, predicted = np.zeros(states.n_items, np.float32), np.full(states.n_items, NONE, np.int16)
        if best is not None:
            at = states.positions(found.item_ids)  # of the part of the round that `states` has
            known = (at >= 0) & ~found.seen & ~states.held_out[at]  # test items are labeled without a prediction
            confidence[at[known]], predicted[at[known]] = best.confidence[known], best.predicted[known]
        shuffled = np.argsort(states.shuffle, kind="stable").astype(np.int32)
        keys = confidence[shuffled] if direction == "unsure" else -confidence[shuffled]
        self._positions = shuffled[np.argsort(keys, kind="stable")]
        self._predicted, self._confidence = predicted[self._positions], confidence[self._positions]
        self._place = np.empty(states.n_items, np.int32)  # position -> place in the order
        self._place[self._positions] = np.arange(states.n_items, dtype=np.int32)
        self._of, self._waiting = states.waiting, states.waiting[self._positions]
        self._lock = Lock()

    def page(self, states: ItemStates, predicted: int | None, offset: int, limit: int) -> Page:
        """Waiting items, those predicted as the class at position `predicted` or all."""
        wanted = self._waiting_now(states)
        if predicted is not None:
            wanted = wanted & (self._predicted == predicted)
        places = _true_places(wanted, offset, limit)
        item_ids = states.item_ids[self._positions[places]]
        total = int(np.count_nonzero(wanted))
        return Page(item_ids, self._predicted[places], self._confidence[places], total)

    def _waiting_now(self, states: ItemStates) -> NDArray[np.bool_]:
        """(n,) whether each item of the order waits; only what has changed since the last page is looked up."""
        with self._lock:
            if states.waiting is not self._of:
                changed = np.flatnonzero(states.waiting != self._of)
                self._waiting = self._waiting.copy()
                self._waiting[self._place[changed]] = states.waiting[changed]
                self._of = states.waiting
            return self._waiting


def _true_places(wanted: NDArray[np.bool_], offset: int, limit: int) -> NDArray[np.int64]:
    """The places `offset` to `offset + limit` among those where `wanted` is true."""
    found = [np.empty(0, np.int64)]
    for start in range(0, len(wanted), BLOCK):
        block = wanted[start : start + BLOCK]
        n = int(np.count_nonzero(block))
        if offset < n:
            found.append(start + np.flatnonzero(block)[offset : offset + limit])
            limit -= len(found[-1])
        offset = max(0, offset - n)
        if limit <= 0:
            break
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class _Kept:
    key: tuple[object, ...]
    best: BestClasses | None
    held_out: NDArray[np.bool_]
    orders: dict[Direction, TileOrder]


_kept: dict[tuple[str, int], _Kept] = {}
_lock = Lock()
KEPT_PROJECTS = 4


def tile_order(
    store: Store, states: ItemStates, found: RoundPredictions, known: list[ClassRow], direction: Direction
) -> TileOrder:
    """The order for these items, this round and these classes; sorted again only when one of them has changed."""
    best = found.best_classes(known)
    project, key = (store.url, found.round.project_id), (found.round.id, states.generation, states.n_items)
    with _lock:
        kept = _kept.pop(project, None)
        if kept is None or kept.key != key or kept.best is not best or kept.held_out is not states.held_out:
            kept = _Kept(key, best, states.held_out, {})
        _kept[project] = kept
        while len(_kept) > KEPT_PROJECTS:
            del _kept[next(iter(_kept))]
        if direction not in kept.orders:
            kept.orders[direction] = TileOrder(states, found, best, direction)
        return kept.orders[direction]
