"""Finds the labeled items nearest to an item in the embeddings of a round, without reading all labeled items.

Search    distances in a few principal directions rank all labeled rows; the exact distances of the best `CANDIDATES`
          rank the result. The result is exact with as many directions as dimensions, or with at most `CANDIDATES` rows.
Update    `set_labeled` compares the labeled rows with those of the last call and adds or removes the difference.

One matrix product computes all distances. The best candidates are found from the minima of blocks: the `c` smallest
values are in the `c` blocks with the smallest minima.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, give_back
from storage.database.store import Store
from storage.labeling.state_arrays import NO_ID, item_states

FEWEST_DIRECTIONS, MOST_DIRECTIONS = 16, 64
EXPLAINED = 0.99  # share of the variance that the directions explain, if `MOST_DIRECTIONS` suffice
CANDIDATES = 200  # rows that are compared exactly for each item
FEW_CANDIDATES = 16  # the same, if the directions explain that share
BLOCK = 32  # values in a block
SAMPLE = 4_096  # rows from which the principal directions are computed
READ_ROWS = 8_192  # rows read at once; mapped memory is released in between
READ_AROUND = 1 << 18  # bytes that the system maps when one row is read (220 kB measured; mapped files use large pages)
MOST_HELD = 1 << 24  # bytes of mapped memory that a search may hold
KEPT_INDEXES = 3


class NeighborIndex:
    """The labeled rows of one round in reduced dimensions. Calls from several threads are serialized."""

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        self._embeddings = embeddings
        self._lock = Lock()
        self._mean, self._basis, explained = principal_directions(embeddings)
        self._candidates = FEW_CANDIDATES if explained else CANDIDATES
        give_back(embeddings)
        self._labeled = np.zeros(len(embeddings), np.bool_)
        self._place = np.full(len(embeddings), -1, np.int32)  # row -> place in the arrays below, −1: not labeled
        self._n = 0
        self._rows = np.zeros(0, np.int64)
        self._reduced = np.zeros((0, self._basis.shape[1] + 1), np.float32)  # last |reduced|²; inf beyond rows in use
        self._reserve(BLOCK)

    def set_labeled(self, labeled: NDArray[np.bool_]) -> None:
        """Set the rows that searches return: those where `labeled` (n,) is true."""
        with self._lock:
            changed = np.flatnonzero(self._labeled != labeled)
            for row in changed[self._labeled[changed]].tolist():
                self._remove(row)
            self._add(changed[~self._labeled[changed]])
            self._labeled[changed] = labeled[changed]

    def nearest(self, rows: NDArray[np.int64], limit: int) -> list[NDArray[np.int64]]:
        """For each row, the nearest other labeled rows, nearest first. Equal distances are sorted by row."""
        with self._lock:
            if not self._n:
                return [np.empty(0, np.int64) for _ in rows]
            return self._nearest(rows, limit) if len(rows) else []

    def _nearest(self, rows: NDArray[np.int64], limit: int) -> list[NDArray[np.int64]]:
        asked = read_rows(self._embeddings, rows)
        used = -(-self._n // BLOCK) * BLOCK  # whole blocks
        factors = np.ones((len(rows), self._reduced.shape[1]), np.float32)
        factors[:, :-1] = -2 * ((asked - self._mean) @ self._basis)
        scores = factors @ self._reduced[:used].T  # |b|² − 2 a·b: the squared distance up to |a|²
        own = self._place[rows]
        scores[np.flatnonzero(own >= 0), own[own >= 0]] = np.inf
        places = _smallest(scores, self._candidates)
        usable = np.isfinite(np.take_along_axis(scores, places, 1))
        near = self._rows[places]  # (m, candidates)
        read, back = np.unique(near, return_inverse=True)  # a candidate of several items is read once
        difference = read_rows(self._embeddings, read)[back.reshape(near.shape)] - asked[:, None]
        distances = np.where(usable, np.sqrt(np.square(difference).sum(2)), np.inf)
        order = np.lexsort((near, distances), axis=1)[:, :limit]
        return [near[k, best][usable[k, best]] for k, best in enumerate(order)]

    def _add(self, rows: NDArray[np.int64]) -> None:
        self._reserve(self._n + len(rows))
        for start in range(0, len(rows), READ_ROWS):
            part = rows[start : start + READ_ROWS]
            places = slice(self._n, self._n + len(part))
            reduced = (self._embeddings[part] - self._mean) @ self._basis
            self._reduced[places, :-1], self._reduced[places, -1] = reduced, np.square(reduced).sum(1)
            self._rows[places] = part
            self._place[part] = np.arange(places.start, places.stop)
            self._n += len(part)
            if min(len(part) * READ_AROUND, self._embeddings.nbytes) > MOST_HELD:
                give_back(self._embeddings)

    def _remove(self, row: int) -> None:
        """Remove a row; the last row moves to its place."""
        place, self._n = int(self._place[row]), self._n - 1
        last = int(self._rows[self._n])
        self._rows[place], self._reduced[place] = last, self._reduced[self._n]
        self._reduced[self._n, -1] = np.inf
        self._place[last] = place
        self._place[row] = -1

    def _reserve(self, n: int) -> None:
        if n <= len(self._rows):
            return
        size = -(-max(n, len(self._rows) * 5 // 4) // BLOCK) * BLOCK
        more = size - len(self._rows)
        self._rows = np.concatenate([self._rows, np.zeros(more, np.int64)])
        self._reduced = np.concatenate([self._reduced, np.zeros((more, self._reduced.shape[1]), np.float32)])
        self._reduced[-more:, -1] = np.inf


def read_rows(embeddings: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The embeddings of these rows. The memory of a large mapped file is released while it is read."""
    if embeddings.nbytes <= MOST_HELD:
        return np.asarray(embeddings[rows], np.float32)
    read = np.empty((len(rows), embeddings.shape[1]), np.float32)
    for start in range(0, len(rows), step := MOST_HELD // READ_AROUND):
        read[start : start + step] = embeddings[rows[start : start + step]]
        give_back(embeddings)
    return read


def principal_directions(
    embeddings: NDArray[np.float32], *, centered: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.float32], bool]:
    """(e,) mean and (e, d) orthonormal principal directions of a sample of the rows, largest variance first, and
    whether they explain the share `EXPLAINED` of the variance. If `centered` is false, the mean is 0 and second moments
    replace variances.

    The last layer of a classifier usually has little variance outside a few directions. Otherwise `MOST_DIRECTIONS` are
    used, and the search may miss some of the nearest rows.
    """
    n, e = embeddings.shape
    sample = read_rows(embeddings, np.arange(0, n, max(1, -(-n // SAMPLE)))).astype(np.float64)
    mean = sample.mean(0) if len(sample) and centered else np.zeros(e)
    if e <= FEWEST_DIRECTIONS:
        return mean.astype(np.float32), np.eye(e, dtype=np.float32), True
    variances, directions = np.linalg.eigh((sample - mean).T @ (sample - mean))
    share = np.cumsum(variances[::-1]) / max(variances.sum(), np.finfo(np.float64).tiny)
    count = int(np.clip(np.searchsorted(share, EXPLAINED) + 1, FEWEST_DIRECTIONS, min(e, MOST_DIRECTIONS)))
    basis = np.ascontiguousarray(directions[:, ::-1][:, :count], np.float32)
    return mean.astype(np.float32), basis, bool(share[count - 1] >= EXPLAINED)


def _smallest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """(m, count) the columns of the smallest values of each row of `values` (m, a multiple of BLOCK), in any order."""
    m, n = values.shape
    if n <= count:
        return np.broadcast_to(np.arange(n), (m, n))
    n_blocks = n // BLOCK  # a block has every n_blocks-th column; the minima of this layout are fast to compute
    if n_blocks <= count:
        return np.argpartition(values, count, axis=1)[:, :count]
    minima = values.reshape(m, BLOCK, n_blocks).min(1)
    blocks = np.argpartition(minima, count, axis=1)[:, :count]
    columns = (blocks[:, :, None] + n_blocks * np.arange(BLOCK)).reshape(m, -1)
    best = np.argpartition(np.take_along_axis(values, columns, 1), count, axis=1)[:, :count]
    return np.take_along_axis(columns, best, 1)


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A labeled item near another item."""

    item_id: int
    class_id: int  # class of its label; not translated if the class was merged


def nearest_labeled(
    store: Store,
    found: RoundPredictions,
    item_ids: Sequence[int],
    *,
    labels: Mapping[int, int] | None = None,
    audience: int = 0,
    limit: int = 3,
) -> dict[int, list[Neighbor]]:
    """item id -> the nearest other labeled items, for the items that are part of the round.

    Labeled items are those with a label that counts or, if `labels` (item id -> class id) is given, those in `labels`:
    the labels that the annotator `audience` may see.
    """
    index = neighbor_index(store, found, audience)
    if index is None:
        return {}
    states = item_states(store, found.round.project_id)
    class_of = found.values_in(states, "class_id", NO_ID)
    if labels is None:
        index.set_labeled((class_of != NO_ID) & ~found.values_in(states, "held_out", True))  # no test labels
    else:
        labeled = np.zeros(len(found.item_ids), np.bool_)
        rows = found.rows(np.fromiter(labels, np.int64, len(labels)))
        labeled[rows[rows >= 0]] = True
        index.set_labeled(labeled)
    rows = found.rows(np.array(item_ids, np.int64))
    inside = np.flatnonzero(rows >= 0)
    near = index.nearest(rows[inside], limit)
    return {
        item_ids[k]: [
            Neighbor(item, labels[item] if labels is not None else int(class_of[row]))
            for row, item in zip(ones.tolist(), found.item_ids[ones].tolist(), strict=True)
            if labels is None or item in labels
        ]
        for k, ones in zip(inside.tolist(), near, strict=True)
    }


_indexes: OrderedDict[tuple[str, int, int], NeighborIndex] = OrderedDict()
_lock = Lock()


def neighbor_index(store: Store, found: RoundPredictions, audience: int = 0) -> NeighborIndex | None:
    """The index of a round, cached for later requests. None for a round without embeddings.

    `audience` is an annotator's id or 0 for everyone. Annotators who may see different labels have different indexes.
    """
    if found.embeddings is None:
        return None
    key = (store.url, found.round.id, audience)
    with _lock:
        if key not in _indexes:
            _indexes[key] = NeighborIndex(found.embeddings)
        _indexes.move_to_end(key)
        while len(_indexes) > KEPT_INDEXES:
            _indexes.popitem(last=False)
        return _indexes[key]
