"""The extent of a map and the density of its items. Both belong to a round and are computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.07  # share of the extent, on each side
MANY_ITEMS = 50_000  # with more items, the density of all items is drawn below the points
CELLS = 120
BLOCK = 65_536  # points that are counted at once


@dataclass(frozen=True, slots=True)
class MapExtent:
    """The ranges of both axes, which contain all points and a margin. They do not depend on labels, picks or colors, so
    points keep their places when these change."""

    x: tuple[float, float]
    y: tuple[float, float]
    density: NDArray[np.int32] | None  # (CELLS, CELLS) number of items in each cell, rows along y; None for few items


def map_extent(points: NDArray[np.float32]) -> MapExtent:
    """The extent of all `points` (n, 2), and their density if there are many."""
    x, y = frame(points)
    return MapExtent(x, y, _counts(points, x, y) if len(points) > MANY_ITEMS else None)


def frame(points: NDArray[np.float32]) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges (x, y) that contain all `points` (n, 2) and a margin."""
    if not len(points):
        return (-1.0, 1.0), (-1.0, 1.0)
    low, high = points.min(0).astype(float), points.max(0).astype(float)
    margin = np.maximum(MARGIN * (high - low), MARGIN * max(float((high - low).max()), 1e-3))
    (left, bottom), (right, top) = (low - margin).tolist(), (high + margin).tolist()
    return (left, right), (bottom, top)


def _counts(points: NDArray[np.float32], x: tuple[float, float], y: tuple[float, float]) -> NDArray[np.int32]:
    counts = np.zeros(CELLS * CELLS, np.int64)
    low, scale = np.array([x[0], y[0]]), CELLS / np.array([x[1] - x[0], y[1] - y[0]])
    for start in range(0, len(points), BLOCK):
        block = points[start : start + BLOCK]
        cells = ((block[np.isfinite(block).all(1)] - low) * scale).astype(np.int64).clip(0, CELLS - 1)
        counts += np.bincount(cells[:, 1] * CELLS + cells[:, 0], minlength=CELLS * CELLS)
    return counts.reshape(CELLS, CELLS).astype(np.int32)
