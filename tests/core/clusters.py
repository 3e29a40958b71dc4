"""A graph with known clusters, for tests of methods that use it: points in the plane, similar if they are near."""

from __future__ import annotations

import numpy as np

from core.similarity.graph import SimilarityGraph


def graph_of(points: np.ndarray, k: int = 4, rows: np.ndarray | None = None) -> SimilarityGraph:
    """The k nearest of each point (m, d), by plain sorting; the typical distance is the median of all pairs."""
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    typical = float(np.median(gaps[np.triu_indices(len(points), 1)]))
    np.fill_diagonal(gaps, np.inf)
    neighbors = np.argsort(gaps, axis=1, kind="stable")[:, :k]
    return SimilarityGraph(
        rows=np.arange(len(points)) if rows is None else rows,
        neighbors=neighbors,
        distances=np.take_along_axis(gaps, neighbors, 1).astype(np.float32),
        typical=typical,
    )


def clusters(n_clusters: int = 5, size: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(m, 2) points in far clusters and (m,) the cluster of each."""
    rng = np.random.default_rng(seed)
    angles = 2 * np.pi * np.arange(n_clusters) / n_clusters
    centers = 10 * np.stack([np.cos(angles), np.sin(angles)], 1)
    which = np.repeat(np.arange(n_clusters), size)
    return centers[which] + 0.5 * rng.normal(size=(len(which), 2)), which
