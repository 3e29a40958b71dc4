"""Finds the rows of a large round that are similar to one row, without reading all rows.

Build     all rows are normalized, reduced to their principal components and divided into cells: each row belongs to the
          most similar of `CELLS` evenly spaced rows
Search    the cells most similar to the row are searched until `SEARCHED` of the requested rows have been compared; the
          best `CANDIDATES` are compared again with all their features

The result may miss rows in cells that were not searched, and rows that the components rank too low. With a million rows
of 64 dimensions in ten clusters, 499.75 of the 500 best rows were found on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import give_back
from app.views.similarity.neighbors import principal_directions, read_rows

CELLS = 512
SEARCHED = 80_000  # rows whose components are compared
CANDIDATES = 1_000  # rows that are compared exactly
BLOCK = 4_096  # rows whose cells are computed at once
SCALE = 127
MOST_HELD = 1 << 24  # bytes of the mapped features in memory at a time


class SimilarIndex:
    """The rows of one round, with one byte per component, sorted by cell."""

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        self._embeddings = embeddings
        n = len(embeddings)
        _, self._basis, _ = principal_directions(embeddings, centered=False)
        cells = min(CELLS, n)
        self._centers = self._reduced_units(read_rows(embeddings, np.arange(cells) * n // cells))
        reduced = np.empty((n, self._basis.shape[1]), np.int8)  # coordinates of rows of length one, times SCALE
        cell = np.empty(n, np.int16)
        held = 0
        for start in range(0, n, BLOCK):
            part = self._reduced_units(embeddings[start : start + BLOCK])
            np.rint(part * SCALE, out=reduced[start : start + BLOCK], casting="unsafe")
            cell[start : start + BLOCK] = (part @ self._centers.T).argmax(1)
            held += part.shape[0] * embeddings.shape[1] * embeddings.itemsize
            if held > MOST_HELD or start + BLOCK >= n:
                give_back(embeddings)
                held = 0
        self._rows = np.argsort(cell, kind="stable").astype(np.int32)  # sorted by cell
        for column in range(reduced.shape[1]):  # one at a time: a copy of all of them takes 26 MB for a million rows
            reduced[:, column] = reduced[self._rows, column]
        self._reduced = reduced
        self._starts = np.searchsorted(cell[self._rows], np.arange(cells + 1))

    def most_similar(self, row: int, among: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """Up to `count` rows where `among` (n,) is true, most similar first. Equal cosines are sorted by row."""
        asked = self._reduced_units(self._embeddings[row : row + 1])[0]
        rows, cosines, n_compared = [], [], 0
        for cell in np.argsort(-(self._centers @ asked)).tolist():
            part = slice(int(self._starts[cell]), int(self._starts[cell + 1]))
            inside = among[self._rows[part]]
            rows.append(self._rows[part][inside])
            cosines.append(self._reduced[part][inside].astype(np.float32) @ asked)
            n_compared += len(rows[-1])
            if n_compared >= SEARCHED:
                break
        near, scores = np.concatenate(rows), np.concatenate(cosines)
        if len(near) > CANDIDATES:
            near = near[np.argpartition(-scores, CANDIDATES)[:CANDIDATES]]
        return self._ordered(row, np.sort(near), count)

    def _ordered(self, row: int, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        features = read_rows(self._embeddings, rows)
        asked = np.asarray(self._embeddings[row], np.float32)
        cosines = _units(features) @ _units(asked[None])[0]
        best: NDArray[np.int64] = rows[np.lexsort((rows, -cosines))][:count].astype(np.int64)
        return best

    def _reduced_units(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        reduced: NDArray[np.float32] = _units(np.asarray(features, np.float32)) @ self._basis
        return reduced


def _units(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows scaled to norm 1. Zero rows stay zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float32))
    lengths[lengths == 0] = 1
    units: NDArray[np.float32] = np.divide(features, lengths[:, None], dtype=np.float32)
    return units
