"""The items most similar to one item: cosine over the features of a round, exact, most similar first.

With an encoder these are its features; without one, the last layer of the network. Blocks of rows are read in their
order, so that a pool of 100,000 is searched at the speed of memory. The lengths of rows are computed once per round.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, give_back

BLOCK = 16_384  # rows that are compared at once
MOST = 500
KEPT = 3
MOST_COMPARED = 10_000  # items whose neighborhoods are computed: each is compared with each
NEAREST = 10
PAIR_BLOCK = 512
_lengths: OrderedDict[int, tuple[RoundPredictions, NDArray[np.float32]]] = OrderedDict()
_lock = Lock()


def most_similar(found: RoundPredictions, item_id: int, among: NDArray[np.int64]) -> NDArray[np.int64]:
    """Up to `MOST` ids of `among`, most similar first, after the item itself; empty without its features."""
    own = found.row(item_id)
    if own is None or found.embeddings is None:
        return np.empty(0, np.int64)
    rows = found.rows(among)
    ids, rows = among[rows >= 0], rows[rows >= 0]
    scores = similarities(found, own)[rows]
    scores[ids == item_id] = np.inf
    nearest = np.argpartition(-scores, MOST)[:MOST] if len(ids) > MOST else np.arange(len(ids))
    return ids[nearest[np.lexsort((ids[nearest], -scores[nearest]))]]


def similarities(found: RoundPredictions, row: int) -> NDArray[np.float32]:
    """(n,) cosines of all rows of a round with one row; 0 for rows without length."""
    embeddings = found.embeddings
    assert embeddings is not None
    lengths = _lengths_of(found)
    asked = np.asarray(embeddings[row], np.float32)
    scores = np.empty(len(embeddings), np.float32)
    for start in range(0, len(embeddings), BLOCK):
        scores[start : start + BLOCK] = embeddings[start : start + BLOCK] @ asked
    give_back(embeddings)
    scale = lengths * max(float(np.linalg.norm(asked)), 1e-12)
    return np.asarray(np.divide(scores, scale, out=np.zeros_like(scores), where=lengths > 0), np.float32)


def _lengths_of(found: RoundPredictions) -> NDArray[np.float32]:
    embeddings, key = found.embeddings, id(found.embeddings)
    assert embeddings is not None
    with _lock:
        kept = _lengths.get(key)
        if kept is not None and kept[0].embeddings is embeddings:
            _lengths.move_to_end(key)
            return kept[1]
    parts = [
        np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float32))
        for start in range(0, len(embeddings), BLOCK)
        if len(block := np.asarray(embeddings[start : start + BLOCK], np.float32))
    ]
    lengths = np.concatenate(parts) if parts else np.empty(0, np.float32)
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
    lengths = _lengths_of(found)
    unit = np.asarray(embeddings, np.float32) / np.maximum(lengths, 1e-12)[:, None]
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
