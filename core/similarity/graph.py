"""The similarity graph of a pool: the nearest neighbors of each item, computed from the media without a model.

Audio clips are compared by dynamic time warping of their cepstra (`core.similarity.warping`). Images have no graph,
because no distance is known that works for both photographs and drawings. Code that uses the graph also works without.

Distances are relative to the pool's typical distance, the median over random pairs. With few voices, the nearest clips
are about a third of it apart: the same word by the same voice. With hundreds of voices, they are about two thirds of it
apart, and neighbors often differ in class.

Test items are not in the graph and do not affect its typical distance. `connect_new_items` gives the items of the graph
that are nearest to an item outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from core.config import SimilarityConfig
from core.media.inputs import Inputs
from core.similarity.warping import nearest_clips, nearest_in_graph
from core.types import UNLABELED, Report, ignore

MAX_ITEMS = 30_000  # of the graph: labeled items and an even sample of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityGraph:
    """The k nearest neighbors of each of m items."""

    rows: NDArray[np.int64]  # (m,) rows of the pool, ascending
    neighbors: NDArray[np.int64]  # (m, k) positions in `rows`, nearest first
    distances: NDArray[np.float32]  # (m, k)
    typical: float  # median distance of two random items

    def weights(self) -> csr_matrix:
        """(m, m) symmetric edge weights exp(-d_ij^2 / (s_i s_j)), s_i the distance to the k-th neighbor (Zelnik-Manor
        and Perona, 2004); an edge exists where either item is a neighbor of the other."""
        scale = self.distances[:, -1].astype(np.float64)
        scale = np.maximum(scale, 1e-6 * (scale.mean() + 1e-12))
        squares = np.square(self.distances.astype(np.float64))
        return self._symmetric(np.exp(-squares / (scale[:, None] * scale[self.neighbors])))

    def relative_distances(self) -> csr_matrix:
        """(m, m) distances divided by the typical one, where `weights` has entries; 1e-12 for equal items."""
        return self._symmetric(np.maximum(self.distances.astype(np.float64) / max(self.typical, 1e-12), 1e-12))

    def _symmetric(self, values: NDArray[np.float64]) -> csr_matrix:
        """(m, m) from values (m, k) of the directed edges: the larger value of both directions."""
        m, k = self.neighbors.shape
        positions = (np.repeat(np.arange(m), k), self.neighbors.ravel())
        directed = csr_matrix((values.ravel(), positions), shape=(m, m))
        return csr_matrix(directed.maximum(directed.T))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItems:
    """The k nearest items of a graph, for each of b items that are not in it."""

    rows: NDArray[np.int64]  # (b,) rows of the pool, ascending
    neighbors: NDArray[np.int64]  # (b, k) positions in the rows of the graph, nearest first
    distances: NDArray[np.float32]  # (b, k)


def has_similarity_graph(inputs: Inputs, held_out: NDArray[np.bool_], config: SimilarityConfig) -> bool:
    """Whether `build_similarity_graph` gives a graph: not for images, without neighbors, or with one item."""
    return bool(config.neighbors) and inputs.kind == "audio" and int((inputs.readable & ~held_out).sum()) >= 2


def build_similarity_graph(
    inputs: Inputs,
    labels: NDArray[np.int64],
    held_out: NDArray[np.bool_],
    config: SimilarityConfig,
    report: Report = ignore,
) -> SimilarityGraph | None:
    """The graph of the readable items of an audio pool that are not test items; None for images, without neighbors, or
    with one item.

    labels (n,): class positions, UNLABELED where there is none; labeled items come first when the pool is sampled.
    """
    if not has_similarity_graph(inputs, held_out, config):
        return None
    rows = graph_rows(np.flatnonzero(inputs.readable & ~held_out), labels)
    neighbors, distances, typical = nearest_clips(inputs.clean, rows, config.neighbors, report)
    return SimilarityGraph(rows=rows, neighbors=neighbors, distances=distances, typical=typical)


def connect_new_items(
    inputs: Inputs, graph: SimilarityGraph, new: NDArray[np.bool_], report: Report = ignore
) -> NewItems:
    """The readable items of `new` (n,), none of which is in the graph, with their nearest items in the graph."""
    rows = np.flatnonzero(new & inputs.readable)
    neighbors, distances = nearest_in_graph(inputs.clean, graph.rows, rows, graph.neighbors.shape[1], report)
    return NewItems(rows=rows, neighbors=neighbors, distances=distances)


def graph_rows(rows: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most MAX_ITEMS of `rows`, ascending: labeled ones first, then evenly spaced ones."""
    if len(rows) <= MAX_ITEMS:
        return rows
    labeled, others = rows[labels[rows] != UNLABELED], rows[labels[rows] == UNLABELED]
    n_others = max(MAX_ITEMS - len(labeled), 0)
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)]
    return np.sort(np.concatenate([labeled[:MAX_ITEMS], spaced]))
