"""Histograms of oriented gradients: the shapes in a picture, tolerant of small shifts (Dalal and Triggs, 2005).

    h_kl(b) = sum over pixels of  a_k(y) a_l(x) |g| t_b(angle of g)
    vector  = sqrt(h / |h|)

a_k is a triangle around the center of the k-th of CELLS cells on a side and reaches to the centers of its neighbors.
t_b is a triangle around the b-th of BINS orientations in [0, pi), so that a dark stroke on a light background equals a
light stroke on a dark one. Square roots keep single strong edges from dominating distances.

Symbols: g (y, x) central differences of the mean over channels; h (CELLS, CELLS, BINS) the histograms of a picture.

Departures and details
- Histograms are normalized over the whole picture instead of over blocks of cells.
- This implementation processes whole pools of small pictures; libraries compute one picture at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CELLS, BINS = 8, 8
BLOCK = 256  # pictures at a time

Array = NDArray[np.float32]


def cell_weights(length: int, cells: int = CELLS) -> Array:
    """(cells, length) a_k at every pixel of a side."""
    width = length / cells
    centers = (np.arange(cells) + 0.5) * width - 0.5
    distance = np.abs(np.arange(length) - centers[:, None]) / width
    return np.maximum(0.0, 1.0 - distance).astype(np.float32)


def gradient_histograms(pictures: Array) -> Array:
    """(n, CELLS * CELLS * BINS) vectors of pictures (n, H, W, C); those of pictures without edges are 0."""
    vectors = np.zeros((len(pictures), CELLS * CELLS * BINS), np.float32)
    rows, columns = cell_weights(pictures.shape[1]), cell_weights(pictures.shape[2])
    for start in range(0, len(pictures), BLOCK):
        block = np.asarray(pictures[start : start + BLOCK], np.float32).mean(3)
        h = np.stack([rows @ votes @ columns.T for votes in orientation_votes(block)], 3)
        h = h.reshape(len(block), -1)
        sums = np.linalg.norm(h, axis=1, keepdims=True)
        vectors[start : start + BLOCK] = np.sqrt(h / np.where(sums > 0, sums, 1.0))
    return vectors


def orientation_votes(gray: Array) -> Array:
    """(BINS, n, H, W) |g| t_b of gray pictures (n, H, W); gradients across the border are 0."""
    g_y, g_x = np.zeros_like(gray), np.zeros_like(gray)
    g_y[:, 1:-1] = gray[:, 2:] - gray[:, :-2]
    g_x[:, :, 1:-1] = gray[:, :, 2:] - gray[:, :, :-2]
    position = np.mod(np.arctan2(g_y, g_x), np.pi) * np.float32(BINS / np.pi)
    distance = np.abs(position - np.arange(BINS, dtype=np.float32)[:, None, None, None])
    votes: Array = np.hypot(g_y, g_x) * np.maximum(0.0, 1.0 - np.minimum(distance, BINS - distance))
    return votes
