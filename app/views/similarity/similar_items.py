"""The items most similar to one item, by the cosine of the features of a round.

With an encoder, the features are the principal components that its head uses; without one, the last layer of the
network. In rounds of up to `MOST_KEPT_ROWS` rows, all rows are compared: blocks are read sequentially, and the norms of
the rows are computed once per round. In larger rounds an index is searched (`similar_index`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock, Timer

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, give_back
from app.views.similarity.similar_index import SimilarIndex

BLOCK = 16_384  # rows that are compared at once
MOST_KEPT_ROWS = 200_000  # in rounds of up to this size all rows are compared, and features stay in memory for a while
IDLE_SECONDS = 30.0
MOST = 500
PLACES = 32  # values in a block of `largest`
KEPT = 3
MOST_COMPARED = 10_000  # up to this number, all pairs of items are compared
MOST_IN_CELLS = 200_000  # up to this number, each item is compared with those in its cells
NEAREST = 10
PAIR_BLOCK = 512
N_PARTITIONS = 3  # divisions of a large pool into cells; rows that one division separates may share a cell in another
MOST_IN_CELL = 2_000
_lengths: OrderedDict[int, tuple[RoundPredictions, NDArray[np.float32]]] = OrderedDict()
_lock, _index_lock = Lock(), Lock()


def most_similar(found: RoundPredictions, item_id: int, among: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The item itself, then up to `MOST` ids of items where `among` (n,) is true, most similar first. Empty if the item
    has no features."""
    own = found.row(item_id)
    if own is None or found.embeddings is None:
        return np.empty(0, np.int64)
    if len(found.embeddings) > MOST_KEPT_ROWS:
        near = _index(found).most_similar(own, among, MOST)
        near = near[near != own]
        rows = np.concatenate([np.array([own]), near])[:MOST] if among[own] else near
        return np.asarray(found.item_ids[rows])
    scores = np.where(among, similarities(found, own), np.float32(-np.inf))
    scores[own] = np.inf if among[own] else -np.inf
    rows = largest(scores, MOST)
    rows = rows[scores[rows] > -np.inf]
    ids = found.item_ids[rows]
    return ids[np.lexsort((ids, -scores[rows]))]


_indexes: list[tuple[RoundPredictions, SimilarIndex]] = []  # only the round searched last: 30 MB for a million rows


def _index(found: RoundPredictions) -> SimilarIndex:
    assert found.embeddings is not None
    with _index_lock:  # a second request waits instead of building the index again
        if not _indexes or _indexes[0][0].embeddings is not found.embeddings:
            _indexes[:] = [(found, SimilarIndex(found.embeddings))]
        return _indexes[0][1]


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The positions of the `count` largest of `values` (n,), or of all values if there are fewer, in any order.

    They are in the `count` blocks with the largest maxima, so most values are compared only once.
    """
    n_blocks = len(values) // PLACES
    if n_blocks <= count:
        return np.argpartition(values, -count)[-count:] if len(values) > count else np.arange(len(values))
    whole = n_blocks * PLACES  # a block has every n_blocks-th value; the last values are in no block
    blocks = np.argpartition(values[:whole].reshape(PLACES, n_blocks).max(0), -count)[-count:]
    places = (blocks[:, None] + n_blocks * np.arange(PLACES)).ravel()
    places = np.concatenate([places, np.arange(whole, len(values))])
    best: NDArray[np.int64] = places[np.argpartition(values[places], -count)[-count:]]
    return best


def similarities(found: RoundPredictions, row: int) -> NDArray[np.float32]:
    """(n,) cosines of all rows of a round with one row; 0 for zero rows."""
    embeddings = found.embeddings
    assert embeddings is not None
    asked = np.asarray(embeddings[row], np.float32)
    asked = asked / max(float(np.linalg.norm(asked)), 1e-12)
    scores = np.empty(len(embeddings), np.float32)
    for start in range(0, len(embeddings), BLOCK):
        scores[start : start + BLOCK] = embeddings[start : start + BLOCK] @ asked
    _give_back_later(embeddings)
    scores *= _inverse_lengths(found)
    return scores


_waiting: tuple[Timer, NDArray[np.float32]] | None = None


def _give_back_later(embeddings: NDArray[np.float32]) -> None:
    """Release the memory of the mapped features after IDLE_SECONDS without a search. It is not released at once because
    reading the pages again costs twice as much as comparing them."""
    global _waiting
    timer = Timer(IDLE_SECONDS, give_back, (embeddings,))
    timer.daemon = True
    with _lock:
        before, _waiting = _waiting, (timer, embeddings)
    if before is not None:
        before[0].cancel()
        if before[1] is not embeddings:
            give_back(before[1])
    timer.start()


def _inverse_lengths(found: RoundPredictions) -> NDArray[np.float32]:
    """(n,) the inverse norm of each row; 0 for zero rows."""
    embeddings, key = found.embeddings, id(found.embeddings)
    assert embeddings is not None
    with _lock:
        kept = _lengths.get(key)
        if kept is not None and kept[0].embeddings is embeddings:
            _lengths.move_to_end(key)
            return kept[1]
    lengths = np.empty(len(embeddings), np.float32)
    for start in range(0, len(embeddings), BLOCK):
        block = np.asarray(embeddings[start : start + BLOCK], np.float32)
        lengths[start : start + BLOCK] = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float32))
    np.divide(1, lengths, out=lengths, where=lengths > 0)
    with _lock:
        _lengths[key] = (found, lengths)  # the reference to the round ensures that its id is not reused
        while len(_lengths) > KEPT:
            _lengths.popitem(last=False)
    return lengths


@dataclass(frozen=True, slots=True)
class Neighborhoods:
    """The rows of a round in two orders."""

    outliers: NDArray[np.int64]  # by the mean cosine with the NEAREST most similar rows, lowest first
    duplicates: NDArray[np.int64]  # by the cosine with the most similar row, highest first; pairs are adjacent


_neighborhoods: OrderedDict[int, tuple[RoundPredictions, Neighborhoods]] = OrderedDict()


def neighborhoods(found: RoundPredictions) -> Neighborhoods | None:
    """The two orders of a round, computed once. They are exact for up to MOST_COMPARED items; for more, only rows in
    the same cell are compared. None for more than MOST_IN_CELLS items or without features."""
    embeddings, key = found.embeddings, id(found.embeddings)
    if embeddings is None or not 1 < len(embeddings) <= MOST_IN_CELLS:
        return None
    with _lock:
        kept = _neighborhoods.get(key)
    if kept is not None and kept[0].embeddings is embeddings:
        return kept[1]
    unit = np.asarray(embeddings, np.float32) * _inverse_lengths(found)[:, None]
    n = len(unit)
    near = _Nearest(np.full(n, -2, np.float32), np.full(n, -2, np.float32), np.arange(n))
    if n <= MOST_COMPARED:
        near.compare(unit, np.arange(n))
    else:
        for start in range(N_PARTITIONS):
            for members in _cells(unit, start):
                near.compare(unit, members)
    pair = np.minimum(np.arange(n), near.partner)
    made = Neighborhoods(np.argsort(near.mean, kind="stable"), np.lexsort((pair, -np.round(near.best, 5))))
    with _lock:
        _neighborhoods[key] = (found, made)
        while len(_neighborhoods) > KEPT:
            _neighborhoods.popitem(last=False)
    return made


@dataclass(frozen=True, slots=True)
class _Nearest:
    """The most similar rows found so far. Further comparisons can only increase the cosines."""

    mean: NDArray[np.float32]  # (n,) mean cosine with the NEAREST most similar rows
    best: NDArray[np.float32]  # (n,) cosine with the most similar row
    partner: NDArray[np.int64]  # (n,) the most similar row

    def compare(self, unit: NDArray[np.float32], members: NDArray[np.int64]) -> None:
        """Compare all pairs of the rows `members`. Missing neighbors count as cosine 0."""
        n, k = len(members), min(NEAREST, len(members) - 1)
        if not k:
            return
        others = unit[members]
        for start in range(0, n, PAIR_BLOCK):
            places = np.arange(start, min(start + PAIR_BLOCK, n))
            rows, own = members[places], places - start
            cosines = others[places] @ others.T
            cosines[own, places] = -np.inf
            mean = np.partition(cosines, n - k, axis=1)[:, n - k :].sum(1) / min(NEAREST, len(unit) - 1)
            self.mean[rows] = np.maximum(self.mean[rows], mean)
            nearest = cosines.argmax(1)
            best = cosines[own, nearest]
            better = best > self.best[rows]
            self.best[rows[better]], self.partner[rows[better]] = best[better], members[nearest[better]]


def _cells(unit: NDArray[np.float32], start: int) -> Iterator[NDArray[np.int64]]:
    """Yield cells of rows: each row belongs to the most similar of √n evenly spaced center rows. `start` shifts the
    centers. Large cells are split; the rows of each part are still near each other."""
    n = len(unit)
    n_centers = round(n**0.5)
    centers = unit[(np.arange(n_centers) * n // n_centers + start * n // n_centers // N_PARTITIONS) % n]
    cell = np.empty(n, np.int64)
    for first in range(0, n, BLOCK):
        cell[first : first + BLOCK] = (unit[first : first + BLOCK] @ centers.T).argmax(1)
    order = np.argsort(cell, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(cell[order])) + 1):
        along = members[np.argsort(unit[members] @ centers[start % n_centers], kind="stable")]
        yield from np.array_split(along, -(-len(along) // MOST_IN_CELL))
