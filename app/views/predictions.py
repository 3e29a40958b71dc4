"""What the newest finished round thinks of each item: guesses by class, and the labeled items nearest to it.

A round's columns are the classes that were active when it was requested; here they are translated to class ids, and the
share of a class that was merged since counts for its successor.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import NotFound
from storage.database.store import Store
from storage.projects import classes
from storage.projects.classes import ClassRow
from storage.rounds.log import RoundLog, RoundRow

KEPT_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Guess:
    class_id: int
    name: str
    share: float


@dataclass(frozen=True)
class RoundPredictions:
    """The arrays of one finished round (memory-mapped) and the class behind each column."""

    round: RoundRow
    item_ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    embeddings: NDArray[np.float32] | None
    column_classes: tuple[int, ...]
    order: NDArray[np.int64] = field(repr=False)  # rows sorted by item id

    def rows(self, item_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each item, −1 for those the round did not know."""
        if not len(self.order):
            return np.full(len(item_ids), -1, np.int64)
        at = np.searchsorted(self.item_ids, item_ids, sorter=self.order).clip(max=len(self.order) - 1)
        return np.where(self.item_ids[self.order[at]] == item_ids, self.order[at], -1)

    def row(self, item_id: int) -> int | None:
        found = int(self.rows(np.array([item_id]))[0])
        return found if found >= 0 else None

    def shares(self, now: list[ClassRow]) -> NDArray[np.float32]:
        """(n, active classes now): every item's shares, in the order of the active classes of `now`."""
        active = [row.id for row in now if row.active]
        counts_as = {row.id: row.effective_id or row.id for row in now}
        shares = np.zeros((len(self.item_ids), len(active)), np.float32)
        for column, class_id in enumerate(self.column_classes):
            if counts_as.get(class_id) in active:
                shares[:, active.index(counts_as[class_id])] += self.probabilities[:, column]
        return shares

    def guesses(self, item_id: int, now: list[ClassRow], limit: int = 3) -> list[Guess]:
        """The likeliest classes of one item, best first; empty when the round did not know the item."""
        row = self.row(item_id)
        if row is None:
            return []
        counts_as = {one.id: one.effective_id or one.id for one in now}
        names = {one.id: one.name for one in now if one.active}
        totals: dict[int, float] = {}
        for class_id, share in zip(self.column_classes, self.probabilities[row], strict=True):
            target = counts_as.get(class_id, class_id)
            if target in names:
                totals[target] = totals.get(target, 0.0) + float(share)
        best = sorted(totals.items(), key=lambda pair: -pair[1])[:limit]
        return [Guess(class_id, names[class_id], round(share, 4)) for class_id, share in best if np.isfinite(share)]

    def nearest(self, item_id: int, among: NDArray[np.int64], limit: int = 3) -> list[int]:
        """The items of `among` (other than itself) nearest in the last layer, nearest first."""
        row = self.row(item_id)
        if row is None or self.embeddings is None or not len(among):
            return []
        rows = self.rows(among[among != item_id])
        rows = rows[rows >= 0]
        distances = np.linalg.norm(self.embeddings[rows] - self.embeddings[row], axis=1)
        return [int(self.item_ids[rows[i]]) for i in np.argsort(distances, kind="stable")[:limit]]


_opinions: OrderedDict[tuple[str, int], RoundPredictions] = OrderedDict()
_lock = Lock()


def newest_predictions(store: Store, project_id: int) -> RoundPredictions | None:
    """Of the newest finished round that has guesses; None before the first."""
    latest = RoundLog(store, project_id).latest("finished")
    return None if latest is None else predictions_of(store, latest)


def predictions_of(store: Store, row: RoundRow) -> RoundPredictions | None:
    """A finished round never changes, so its arrays are opened once."""
    key = (store.url, row.id)
    with _lock:
        if key in _opinions:
            _opinions.move_to_end(key)
            return _opinions[key]
    opinion = _open(store, row)
    if opinion is not None:
        with _lock:
            _opinions[key] = opinion
            while len(_opinions) > KEPT_ROUNDS:
                _opinions.popitem(last=False)
    return opinion


def _open(store: Store, row: RoundRow) -> RoundPredictions | None:
    log = RoundLog(store, row.project_id)
    try:
        item_ids = np.asarray(log.arrays(row.id, "item_ids"))
        probabilities = log.arrays(row.id, "probabilities")
    except NotFound:
        return None
    with store.read() as connection:
        known = classes.rows_as_of(connection, row.project_id, row.class_event)
    columns = tuple(one.id for one in known if one.active)
    if probabilities.shape != (len(item_ids), len(columns)):
        return None
    embeddings = _optional(log, row.id, "embeddings")
    return RoundPredictions(row, item_ids, probabilities, embeddings, columns, np.argsort(item_ids))


def _optional(log: RoundLog, round_id: int, kind: str) -> Any:
    try:
        return log.arrays(round_id, kind)
    except NotFound:
        return None
