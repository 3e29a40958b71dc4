"""The items most similar to one item: cosine over the features of a round, exact, most similar first.

With an encoder these are the principal components of its features that the head uses; without one, the last layer of
the network. Blocks of rows are read in their order, so that a pool of 100,000 is searched at the speed of memory. The
lengths of rows are computed once per round.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock, Timer

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, give_back

BLOCK = 16_384  # rows that are compared at once
MOST_HELD = 1 << 25  # bytes of the features of a large pool in memory at a time
MOST_KEPT_ROWS = 200_000  # of a pool whose features stay in memory between searches
IDLE_SECONDS = 30.0
MOST = 500
PLACES = 32  # values in a block of `largest`
KEPT = 3
MOST_COMPARED = 10_000  # items whose neighborhoods are computed: each is compared with each
NEAREST = 10
PAIR_BLOCK = 512
_lengths: OrderedDict[int, tuple[RoundPredictions, NDArray[np.float32]]] = OrderedDict()
_lock = Lock()


def most_similar(found: RoundPredictions, item_id: int, among: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Up to `MOST` item ids of the rows where `among` (n,) is true, most similar first, after the item itself; empty
    without its features."""
    own = found.row(item_id)
    if own is None or found.embeddings is None:
        return np.empty(0, np.int64)
    scores = np.where(among, similarities(found, own), np.float32(-np.inf))
    scores[own] = np.inf if among[own] else -np.inf
    rows = largest(scores, MOST)
    rows = rows[scores[rows] > -np.inf]
    ids = found.item_ids[rows]
    return ids[np.lexsort((ids, -scores[rows]))]


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The places of the `count` largest of `values` (n,), or of all if there are fewer, in any order.

    They lie in the `count` blocks with the largest maxima, so that most values are compared once.
    """
    n_blocks = len(values) // PLACES
    if n_blocks <= count:
        return np.argpartition(values, -count)[-count:] if len(values) > count else np.arange(len(values))
    whole = n_blocks * PLACES  # a block has every n_blocks-th value; the last values belong to none
    blocks = np.argpartition(values[:whole].reshape(PLACES, n_blocks).max(0), -count)[-count:]
    places = (blocks[:, None] + n_blocks * np.arange(PLACES)).ravel()
    places = np.concatenate([places, np.arange(whole, len(values))])
    best: NDArray[np.int64] = places[np.argpartition(values[places], -count)[-count:]]
    return best


def similarities(found: RoundPredictions, row: int) -> NDArray[np.float32]:
    """(n,) cosines of all rows of a round with one row; 0 for rows without length."""
    embeddings = found.embeddings
    assert embeddings is not None
    asked = np.asarray(embeddings[row], np.float32)
    asked = asked / max(float(np.linalg.norm(asked)), 1e-12)
    scores = np.empty(len(embeddings), np.float32)
    for start in range(0, len(embeddings), BLOCK):
        scores[start : start + BLOCK] = embeddings[start : start + BLOCK] @ asked
        _give_back_often(embeddings, start)
    if len(embeddings) <= MOST_KEPT_ROWS:
        _give_back_later(embeddings)
    scores *= _inverse_lengths(found)
    return scores


def _give_back_often(embeddings: NDArray[np.float32], start: int) -> None:
    """Return the memory of the mapped features of a large pool on the way, so that a part of them is held at a time."""
    row = embeddings[0].nbytes
    if len(embeddings) > MOST_KEPT_ROWS and (
        start * row // MOST_HELD != (start + BLOCK) * row // MOST_HELD or start + BLOCK >= len(embeddings)
    ):
        give_back(embeddings)


_waiting: tuple[Timer, NDArray[np.float32]] | None = None


def _give_back_later(embeddings: NDArray[np.float32]) -> None:
    """Return the memory of the mapped features when no one has searched for IDLE_SECONDS: reading their pages again
    costs twice as much as comparing them."""
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
    """(n,) one over the length of each row; 0 for rows without length."""
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
        _give_back_often(embeddings, start)
    np.divide(1, lengths, out=lengths, where=lengths > 0)
    with _lock:
        _lengths[key] = (found, lengths)  # the round is kept with it, so the id stays its own
        while len(_lengths) > KEPT:
            _lengths.popitem(last=False)
    return lengths


@dataclass(frozen=True, slots=True)
class Neighborhoods:
    """Rows of a round in two orders."""

    outliers: NDArray[np.int64]  # the mean cosine with the NEAREST most similar rows, lowest first
    duplicates: NDArray[np.int64]  # the cosine with the most similar row, highest first; pairs are together


_neighborhoods: OrderedDict[int, tuple[RoundPredictions, Neighborhoods]] = OrderedDict()


def neighborhoods(found: RoundPredictions) -> Neighborhoods | None:
    """Computed once per round, exactly; None for more than MOST_COMPARED items or without features."""
    embeddings, key = found.embeddings, id(found.embeddings)
    if embeddings is None or not 1 < len(embeddings) <= MOST_COMPARED:
        return None
    with _lock:
        kept = _neighborhoods.get(key)
    if kept is not None and kept[0].embeddings is embeddings:
        return kept[1]
    unit = np.asarray(embeddings, np.float32) * _inverse_lengths(found)[:, None]
    n, k = len(unit), min(NEAREST, len(unit) - 1)
    mean, best, partner = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.int64)
    for start in range(0, n, PAIR_BLOCK):
        rows = np.arange(start, min(start + PAIR_BLOCK, n))
        cosines = unit[rows] @ unit.T
        cosines[rows - start, rows] = -np.inf
        mean[rows] = np.partition(cosines, n - k, axis=1)[:, n - k :].mean(1)
        partner[rows] = cosines.argmax(1)
        best[rows] = cosines[rows - start, partner[rows]]
    pair = np.minimum(np.arange(n), partner)
    made = Neighborhoods(np.argsort(mean, kind="stable"), np.lexsort((pair, -np.round(best, 5))))
    with _lock:
        _neighborhoods[key] = (found, made)
        while len(_neighborhoods) > KEPT:
            _neighborhoods.popitem(last=False)
    return made
