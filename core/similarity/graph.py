"""Which items of a pool are alike before any model has an opinion, and how alike they are for this pool.

Clips are alike by their warped cepstra (`core.similarity.warping`). For pictures no likeness is known that holds for
photographs and drawings alike: they have none, and what builds on it does without.

A distance says little by itself, so the pool's typical one comes with it: the median over pairs drawn at random. In a
pool of few voices the most alike clips are a third of it apart, the same word by the same voice; in one of hundreds of
voices two thirds, and then being alike proves little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from core.config import SimilarityConfig
from core.media.inputs import Inputs
from core.similarity.warping import alike
from core.types import UNLABELED, Report, ignore

MOST_ITEMS = 30_000  # that take part: the labeled ones and others, evenly spaced; the rest are like nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityGraph:
    """The k most alike items of each of m items."""

    rows: NDArray[np.int64]  # (m,) of the pool, ascending
    neighbors: NDArray[np.int64]  # (m, k) positions in `rows`, most alike first
    distances: NDArray[np.float32]  # (m, k)
    typical: float  # distance of two items of the pool

    def weights(self) -> csr_matrix:
        """(m, m) symmetric: exp(-d^2 / (s_i s_j)), s_i the distance to the k-th (Zelnik-Manor and Perona, 2004), where
        either is among the other's most alike."""
        scale = self.distances[:, -1].astype(np.float64)
        scale = np.maximum(scale, 1e-6 * (scale.mean() + 1e-12))
        squares = np.square(self.distances.astype(np.float64))
        return self._either_way(np.exp(-squares / (scale[:, None] * scale[self.neighbors])))

    def shares_of_typical(self) -> csr_matrix:
        """(m, m) distances as shares of the typical one, where `weights` has entries; 1e-12 for equal items."""
        return self._either_way(np.maximum(self.distances.astype(np.float64) / max(self.typical, 1e-12), 1e-12))

    def _either_way(self, values: NDArray[np.float64]) -> csr_matrix:
        m, k = self.neighbors.shape
        places = (np.repeat(np.arange(m), k), self.neighbors.ravel())
        one_way = csr_matrix((values.ravel(), places), shape=(m, m))
        return csr_matrix(one_way.maximum(one_way.T))


def build_similarity_graph(
    inputs: Inputs, labels: NDArray[np.int64], config: SimilarityConfig, report: Report = ignore
) -> SimilarityGraph | None:
    """Who is like whom among the readable items of the pool; None where nothing is asked for or known."""
    rows = taking_part(np.flatnonzero(inputs.readable), labels)
    if not config.neighbors or inputs.kind != "audio" or len(rows) < 2:
        return None
    neighbors, distances, typical = alike(inputs.clean, rows, config.neighbors, report)
    return SimilarityGraph(rows=rows, neighbors=neighbors, distances=distances, typical=typical)


def taking_part(rows: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most MOST_ITEMS of the rows, however large the pool: labeled ones first, then evenly spaced ones."""
    if len(rows) <= MOST_ITEMS:
        return rows
    given, others = rows[labels[rows] != UNLABELED], rows[labels[rows] == UNLABELED]
    n_others = max(MOST_ITEMS - len(given), 0)
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)]
    return np.sort(np.concatenate([given[:MOST_ITEMS], spaced]))
