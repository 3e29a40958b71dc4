"""The items most similar to one item, by the embeddings of a round: Euclidean distance, nearest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, give_back

BLOCK = 16_384  # rows that are compared at once
MOST = 500


def most_similar(found: RoundPredictions, item_id: int, among: NDArray[np.int64]) -> NDArray[np.int64]:
    """Up to `MOST` ids of `among`, most similar first, after the item itself; empty without its embedding."""
    own = found.row(item_id)
    if own is None or found.embeddings is None:
        return np.empty(0, np.int64)
    rows = found.rows(among)
    ids, rows = among[rows >= 0], rows[rows >= 0]
    asked = np.asarray(found.embeddings[own], np.float32)
    distances = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        difference = found.embeddings[part] - asked
        distances[start : start + len(part)] = np.einsum("ij,ij->i", difference, difference)
    give_back(found.embeddings)
    distances[ids == item_id] = -1
    nearest = np.argpartition(distances, MOST)[:MOST] if len(ids) > MOST else np.arange(len(ids))
    return ids[nearest[np.lexsort((ids[nearest], distances[nearest]))]]
