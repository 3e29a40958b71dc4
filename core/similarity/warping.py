"""Distances between audio clips by dynamic time warping of cepstra (Sakoe and Chiba, 1978).

    c_t     the first CEPSTRA coefficients of frame t of the log-mel spectrogram: the cosine transform over its bins
            without the first coefficient (loudness), minus the clip's mean (channel and voice), scaled to the pool's
            deviation, with smaller weights for higher coefficients
    d(x,y)  = min over warping paths of  sum |c_t(x) - c_s(y)|,   |t - s| <= BAND

The cost of a path grows with the square of the number of frames, so longer clips are averaged to WARP_FRAMES frames.

Warping all pairs of a large pool is too expensive. Candidates are the nearest clips by the moduli of the Fourier
transform of c over time, which do not change when a clip is shifted; only these are warped.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct

from core.numba_compilation import compiled
from core.similarity.neighbors import nearest
from core.types import Progress, Report, Rows, ignore

CEPSTRA = 13
MIN_WEIGHT = 0.5  # of the highest coefficient; the lowest has weight 1
WARP_FRAMES = 32  # of the clips that are warped: 1 s at a hop of 32 ms
BAND = 0.25  # share of the frames by which a path may leave the diagonal
MODULI = 12  # lowest frequencies over time
CANDIDATES = 200  # clips that are compared with each clip by warping
PAIRS, PAIRS_EACH = 20_000, 20  # random pairs of the typical distance: in all, and of one clip
BLOCK = 256
FAR = np.float32(3e38)


def cepstra(pictures: Rows, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(m, T, CEPSTRA) scaled coefficients c of the log-mel spectrograms (n, M, frames, 1) at `rows`; T is the number of
    frames, at most WARP_FRAMES."""
    found = _unscaled(pictures, rows)
    found *= _scale(found)
    return found


def _unscaled(pictures: Rows, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.concatenate([_cepstra(pictures.take(rows[i : i + BLOCK])) for i in range(0, len(rows), BLOCK)])


def _scale(found: NDArray[np.float32]) -> NDArray[np.float32]:
    """(CEPSTRA,) factors of the coefficients `found` (m, T, CEPSTRA)."""
    weights = np.linspace(1.0, MIN_WEIGHT, found.shape[2], dtype=np.float32)
    return np.asarray(weights / (found.std((0, 1)) + np.float32(1e-6)), np.float32)


def _cepstra(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    found = dct(average_frames(pictures[..., 0]), axis=1, norm="ortho")[:, 1 : CEPSTRA + 1].transpose(0, 2, 1)
    return np.ascontiguousarray(found - found.mean(1, keepdims=True), np.float32)


def average_frames(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, M, T) of spectrograms (n, M, frames): means of neighboring frames where there are more than WARP_FRAMES."""
    n_frames = pictures.shape[2]
    if n_frames <= WARP_FRAMES:
        return pictures
    edges = np.arange(WARP_FRAMES + 1) * n_frames // WARP_FRAMES
    sums = np.add.reduceat(pictures, edges[:-1], axis=2)
    return np.asarray(sums / np.diff(edges), np.float32)


def moduli(c: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, d) moduli of the Fourier transform over time of c (n, T, CEPSTRA): invariant to shifts of the clip."""
    return np.abs(np.fft.rfft(c, axis=1)[:, :MODULI]).reshape(len(c), -1).astype(np.float32)


def nearest_clips(
    pictures: Rows, rows: NDArray[np.int64], k: int, report: Report = ignore
) -> tuple[NDArray[np.int64], NDArray[np.float32], float]:
    """The k nearest clips to each of `rows` (m,): positions in `rows` (m, k) and distances (m, k), nearest first, and
    the typical distance of two clips. If there are fewer than k other clips, k is their number."""
    k, n_candidates = (min(number, len(rows) - 1) for number in (k, CANDIDATES))
    c = cepstra(pictures, rows)
    points = moduli(c)
    candidates = nearest(points, points, n_candidates + 1)[0]
    itself = candidates == np.arange(len(rows))[:, None]
    itself[~itself.any(1), -1] = True  # a clip with many equal ones may be missing from its own list
    candidates = candidates[~itself].reshape(len(rows), n_candidates)
    band = _band(c)
    distances = _warped(c, candidates, 0, band, report)
    return *_nearest_first(candidates, distances, k), typical_distance(c, band)


def nearest_in_graph(
    pictures: Rows, rows: NDArray[np.int64], new: NDArray[np.int64], k: int, report: Report = ignore
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k clips among `rows` (m,) that are nearest to each of `new` (b,): positions in `rows` (b, k) and distances
    (b, k), nearest first. Coefficients are scaled by the deviation of `rows` alone."""
    k, n_candidates = (min(number, len(rows)) for number in (k, CANDIDATES))
    if not len(new):
        return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
    known, added = _unscaled(pictures, rows), _unscaled(pictures, new)
    scale = _scale(known)
    c = np.concatenate([known * scale, added * scale])
    candidates = nearest(moduli(c[len(rows) :]), moduli(c[: len(rows)]), n_candidates)[0]
    return _nearest_first(candidates, _warped(c, candidates, len(rows), _band(c), report), k)


def _band(c: NDArray[np.float32]) -> int:
    return max(int(BAND * c.shape[1]), 1)


def _warped(
    c: NDArray[np.float32], candidates: NDArray[np.int64], first: int, band: int, report: Report
) -> NDArray[np.float32]:
    """(b, n) distances between the clips of c from `first` on and their candidates (b, n)."""
    distances = np.empty(candidates.shape, np.float32)

    def fill(start: int) -> int:
        warp(c, candidates[start : start + BLOCK], distances[start : start + BLOCK], first + start, band)
        return min(start + BLOCK, len(candidates))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # `warp` releases the interpreter lock
        try:
            for done in pool.map(fill, range(0, len(candidates), BLOCK)):
                report(Progress("predict", done, len(candidates), "comparing clips"))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a cancellation drops the remaining blocks
            raise
    return distances


def _nearest_first(
    candidates: NDArray[np.int64], distances: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(candidates, order, 1), np.take_along_axis(distances, order, 1)


def typical_distance(c: NDArray[np.float32], band: int) -> float:
    """The median distance between random clips of c (n, T, CEPSTRA), over at most PAIRS pairs; seeded."""
    rng = np.random.default_rng(0)
    some = c[rng.permutation(len(c))[: PAIRS // PAIRS_EACH]]
    others = rng.integers(1, len(some), (len(some), PAIRS_EACH)) + np.arange(len(some))[:, None]
    distances = np.empty(others.shape, np.float32)
    warp(some, others % len(some), distances, 0, band)
    return float(np.median(distances))


@compiled(fastmath={"reassoc", "contract", "nsz"})
def warp(c: Any, candidates: Any, distances: Any, start: int, band: int) -> None:
    """Fill distances (b, k) between the clips start..start+b of c (n, T, d) and their candidates (b, k)."""
    n_frames, size = c.shape[1], c.shape[2]
    before, now = np.empty(n_frames + 1, np.float32), np.empty(n_frames + 1, np.float32)
    for i in range(candidates.shape[0]):
        x = c[start + i]
        for j in range(candidates.shape[1]):
            y = c[candidates[i, j]]
            before[:] = FAR
            before[0] = 0.0
            for t in range(n_frames):
                now[:] = FAR
                for s in range(max(0, t - band), min(n_frames, t + band + 1)):
                    square = np.float32(0.0)
                    for e in range(size):
                        gap = x[t, e] - y[s, e]
                        square += gap * gap
                    now[s + 1] = np.sqrt(square) + min(before[s + 1], now[s], before[s])
                before, now = now, before
            distances[i, j] = before[n_frames]
