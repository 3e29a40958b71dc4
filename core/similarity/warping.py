"""Which clips sound alike, however fast and whenever in the clip they are spoken: warped distances between cepstra.

    c_t     CEPSTRA coefficients of frame t of the log-mel picture: the cosine transform over its bins without the
            first, which is loudness, less their mean over the clip, which is channel and voice; scaled to the pool's
            deviation, higher ones counting less
    d(x,y)  = min over warpings of  sum |c_t(x) - c_s(y)|,   |t - s| <= BAND                    (Sakoe and Chiba, 1978)

Candidates first, because warping all pairs of a large pool is too dear: the clips nearest by the moduli of the Fourier
transform of c over time, which a shift leaves alone, then warping among them.
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
LEAST_WEIGHT = 0.5  # of the highest coefficient
BAND = 0.25  # of the frames
MODULI = 12  # lowest frequencies over time
CANDIDATES = 200  # clips that are warped onto each clip
PAIRS, PAIRS_EACH = 20_000, 20  # that tell the typical distance
BLOCK = 256
FAR = np.float32(3e38)


def cepstra(pictures: Rows, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(m, T, CEPSTRA) of the log-mel pictures (n, M, T, 1) of `rows`, comparable across voices (module docstring)."""
    found = np.concatenate([_cepstra(pictures.take(rows[i : i + BLOCK])) for i in range(0, len(rows), BLOCK)])
    weights = np.linspace(1.0, LEAST_WEIGHT, found.shape[2], dtype=np.float32)
    found *= weights / (found.std((0, 1)) + np.float32(1e-6))
    return found


def _cepstra(pictures: NDArray) -> NDArray[np.float32]:
    found = dct(pictures[..., 0], axis=1, norm="ortho")[:, 1 : CEPSTRA + 1].transpose(0, 2, 1)
    return np.ascontiguousarray(found - found.mean(1, keepdims=True), np.float32)


def moduli(c: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, d) what a shift of the clip in time leaves alone."""
    return np.abs(np.fft.rfft(c, axis=1)[:, :MODULI]).reshape(len(c), -1).astype(np.float32)


def alike(
    pictures: Rows, rows: NDArray[np.int64], k: int, report: Report = ignore
) -> tuple[NDArray[np.int64], NDArray[np.float32], float]:
    """The k clips of `rows` that sound most like each of them: positions in `rows` (m, k) and distances (m, k),
    nearest first; fewer where `rows` has no k others. And the typical distance of two clips."""
    k, n_candidates = (min(number, len(rows) - 1) for number in (k, CANDIDATES))
    c = cepstra(pictures, rows)
    points = moduli(c)
    candidates = nearest(points, points, n_candidates + 1)[0]
    itself = candidates == np.arange(len(rows))[:, None]
    itself[~itself.any(1), -1] = True  # among equal clips it may not be in its own list
    candidates = candidates[~itself].reshape(len(rows), n_candidates)
    distances = np.empty(candidates.shape, np.float32)
    band = max(int(BAND * c.shape[1]), 1)

    def fill(start: int) -> int:
        warp(c, candidates[start : start + BLOCK], distances[start : start + BLOCK], start, band)
        return min(start + BLOCK, len(rows))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # the loop runs outside the interpreter lock
        try:
            for done in pool.map(fill, range(0, len(rows), BLOCK)):
                report(Progress("predict", done, len(rows), "comparing clips"))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # whoever cancels does not wait for the blocks to come
            raise
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    nearest_first = np.take_along_axis(candidates, order, 1), np.take_along_axis(distances, order, 1)
    return *nearest_first, typical_distance(c, band)


def typical_distance(c: NDArray[np.float32], band: int) -> float:
    """The median warped distance between clips drawn at random, from at most PAIRS pairs."""
    rng = np.random.default_rng(0)
    some = c[rng.permutation(len(c))[: PAIRS // PAIRS_EACH]]
    others = rng.integers(1, len(some), (len(some), PAIRS_EACH)) + np.arange(len(some))[:, None]
    distances = np.empty(others.shape, np.float32)
    warp(some, others % len(some), distances, 0, band)
    return float(np.median(distances))


@compiled(fastmath={"reassoc", "contract", "nsz"})
def warp(c: Any, candidates: Any, distances: Any, start: int, band: int) -> None:
    """Fills distances (b, k) between clips start..start+b of c (n, T, d) and their candidates (b, k)."""
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
