"""The two-dimensional map of the pool: UMAP that starts from the last map, so that points do not jump.

The graph is built on exact neighbors, block by block. The layout starts from the position of each item on the previous
map; new items start among their neighbors. A map that starts from an earlier one takes fewer and smaller steps than a
first one, and is rotated and shifted back onto it (orthogonal Procrustes), because UMAP does not fix the rotation.

At most `config.max_points` rows are laid out: the labeled ones, the picks and a seeded sample of the rest. Every other
row is placed at the weighted mean of its nearest rows among at most `ANCHORS` laid out ones. The layout runs on one
thread and is the same for the same seed.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix

from core.config import MapConfig
from core.similarity.neighbors import BLOCK, nearest, neighbor_graph
from core.types import Progress, Report, ignore

ANCHORS = 8192
FIRST_EPOCHS, NEXT_EPOCHS = 200, 60
FIRST_RATE, NEXT_RATE = 1.0, 0.15
STAGE = "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousMap:
    """The positions of items on the last map."""

    item_ids: NDArray[np.int64]  # (m,)
    points: NDArray[np.float32]  # (m, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRequest:
    """The items and vectors that the map is computed from."""

    item_ids: NDArray[np.int64]  # (n,)
    vectors: NDArray[np.float32]  # (n, e) embeddings or kernel features
    keep: NDArray[np.bool_] | None = None  # (n,) rows that are always laid out: labeled rows and picks
    previous: PreviousMap | None = None


def embed(request: MapRequest, config: MapConfig, *, seed: int, report: Report = ignore) -> NDArray[np.float32]:
    """Points (n, 2), one for each row of the request."""
    vectors, n = request.vectors, len(request.vectors)
    if n <= config.n_neighbors + 1:
        return _few_points(np.asarray(vectors, np.float32))
    rows = rows_to_lay_out(n, config.max_points, seed, request.keep)
    start = _known_points(request.item_ids[rows], request.previous)
    points = np.empty((n, 2), np.float32)
    points[rows] = _lay_out(np.ascontiguousarray(vectors[rows], np.float32), start, config, seed, report)
    _place_the_rest(vectors, rows, points, seed, report)
    return points


def rows_to_lay_out(n: int, max_points: int, seed: int, keep: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """All rows if they fit; else the rows of `keep` first, then a seeded sample, in ascending order."""
    if n <= max_points:
        return np.arange(n)
    order = np.random.default_rng(seed).permutation(n)
    if keep is not None:
        order = np.concatenate([order[keep[order]], order[~keep[order]]])
    return np.sort(order[:max_points])


def _few_points(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The two main directions, for pools too small to have neighborhoods."""
    points = np.zeros((len(vectors), 2), np.float32)
    if len(vectors) > 1:
        U, S, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
        width = min(2, len(S))
        points[:, :width] = U[:, :width] * S[:width]
    return points


def _known_points(item_ids: NDArray[np.int64], previous: PreviousMap | None) -> NDArray[np.float32]:
    """(n, 2) previous points, NaN for items that are new."""
    points = np.full((len(item_ids), 2), np.nan, np.float32)
    if previous is None or len(previous.item_ids) == 0:
        return points
    order = np.argsort(previous.item_ids, kind="stable")
    found = np.searchsorted(previous.item_ids[order], item_ids).clip(max=len(order) - 1)
    known = previous.item_ids[order[found]] == item_ids
    points[known] = previous.points[order[found[known]]]
    return points


def _lay_out(
    vectors: NDArray[np.float32], start: NDArray[np.float32], config: MapConfig, seed: int, report: Report
) -> NDArray[np.float32]:
    """(m, 2) UMAP layout from `start` (NaN where unknown)."""
    known = np.isfinite(start[:, 0])
    continues = bool(known.sum() > config.n_neighbors)
    indices, distances = nearest(vectors, vectors, config.n_neighbors, report)
    random = np.random.RandomState(seed % 2**32)
    graph = neighbor_graph(indices, distances)
    first = _start_new_points(start, indices, distances, random) if continues else _main_directions(vectors, random)
    epochs, rate = (NEXT_EPOCHS, NEXT_RATE) if continues else (FIRST_EPOCHS, FIRST_RATE)
    points = _descend(graph, first, config.min_dist, (epochs, rate), random, report)
    return _turn_back(points, start, known) if continues else points


def _descend(
    graph: coo_matrix,
    points: NDArray[np.float32],
    min_dist: float,
    schedule: tuple[int, float],
    random: np.random.RandomState,
    report: Report,
) -> NDArray[np.float32]:
    """UMAP's stochastic descent from `points`, on one thread. Edges too weak to be drawn once are left out.

    `simplicial_set_embedding` would first rescale the starting points to a box of width 10, which makes them jump.
    """
    from core.numba_compilation import library_compiles

    with library_compiles(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # umap warns that tensorflow is not installed
        from umap.layouts import optimize_layout_euclidean
        from umap.umap_ import find_ab_params

    epochs, rate = schedule
    strong = graph.data >= graph.data.max() / epochs
    a, b = find_ab_params(1.0, min_dist)
    limits = np.iinfo(np.int32)
    moved = optimize_layout_euclidean(
        points,
        points,
        graph.row[strong],
        graph.col[strong],
        epochs,
        graph.shape[0],
        graph.data.max() / graph.data[strong].astype(np.float64),  # epochs between two draws of an edge
        a,
        b,
        random.randint(limits.min, limits.max, 3).astype(np.int64),
        initial_alpha=rate,
        tqdm_kwds={
            "disable": False,
            "file": _ProgressStream(report),
            "bar_format": "{n_fmt}/{total_fmt}",
            "mininterval": 0.2,
            "miniters": 1,
        },
        move_other=True,
    )
    return np.asarray(moved, np.float32)


class _ProgressStream(io.TextIOBase):
    """The stream to which umap writes its progress as "done/total". Each write is reported; the report may raise
    `Cancelled`."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def write(self, text: str) -> int:
        done, _, total = text.strip().partition("/")
        if done.isdigit() and total.isdigit():
            self._report(Progress(STAGE, int(done), int(total), "laying out"))
        return len(text)


def _main_directions(vectors: NDArray[np.float32], random: np.random.RandomState) -> NDArray[np.float32]:
    """The start of the first map: the two main directions, scaled to UMAP's usual width of 10."""
    centered = vectors - vectors.mean(0)
    _, _, V = np.linalg.svd(centered.T @ centered)
    points = centered @ V[: min(2, len(V))].T
    if points.shape[1] < 2:
        points = np.column_stack([points, np.zeros(len(points))])
    points = 10.0 * points / max(float(np.abs(points).max()), 1e-12)
    return np.asarray(points + random.normal(scale=1e-4, size=points.shape), np.float32)


def _start_new_points(
    start: NDArray[np.float32],
    indices: NDArray[np.int64],
    distances: NDArray[np.float32],
    random: np.random.RandomState,
) -> NDArray[np.float32]:
    """Known points unchanged; a new one at the weighted mean of its known neighbors, else at the map's center."""
    known = np.isfinite(start[:, 0])
    points = start.copy()
    weights = np.where(known[indices], 1.0 / (distances + 1e-6), 0.0)
    total = weights.sum(1, keepdims=True)
    means = (weights[:, :, None] * np.nan_to_num(start[indices])).sum(1) / np.maximum(total, 1e-12)
    center = start[known].mean(0)
    spread = float(start[known].std()) or 1.0
    new = ~known
    points[new] = np.where(total[new] > 0, means[new], center)
    points[new] += random.normal(scale=1e-2 * spread, size=(int(new.sum()), 2))
    return points.astype(np.float32)


def _turn_back(
    points: NDArray[np.float32], start: NDArray[np.float32], known: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Rotate or mirror, and shift, so that known points are as near as possible to their previous positions."""
    here, there = points[known], start[known]
    center_here, center_there = here.mean(0), there.mean(0)
    U, _, Vt = np.linalg.svd((here - center_here).T @ (there - center_there))
    return np.asarray((points - center_here) @ (U @ Vt) + center_there, np.float32)


def _place_the_rest(
    vectors: NDArray[np.float32], rows: NDArray[np.int64], points: NDArray[np.float32], seed: int, report: Report
) -> None:
    rest = np.setdiff1d(np.arange(len(vectors)), rows, assume_unique=True)
    if len(rest) == 0:
        return
    anchors = np.sort(np.random.default_rng(seed).permutation(rows)[:ANCHORS])
    base = np.asarray(vectors[anchors], np.float32)
    step = 64 * BLOCK
    for start in range(0, len(rest), step):
        block = rest[start : start + step]
        indices, distances = nearest(vectors[block], base, min(3, len(anchors)))
        weights = 1.0 / (distances + 1e-6)
        weights /= weights.sum(1, keepdims=True)
        points[block] = (weights[:, :, None] * points[anchors[indices]]).sum(1)
        report(Progress(STAGE, min(start + step, len(rest)), len(rest), "placing the rest"))
