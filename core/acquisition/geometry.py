"""Distances between rows, in blocks, on the device of the rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 16_384  # rows of a block of distances
WIDE = 4_096  # columns of a block


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(n, k) |x_i - y_j|^2 for x (n, d), y (k, d)."""
    squares = (x * x).sum(1).unsqueeze(1) + (y * y).sum(1).unsqueeze(0)
    return torch.addmm(squares, x, y.T, alpha=-2.0).clamp_min(0)


def nearest(x: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) distance to the nearest of `centers` (k, d), k > 0, and (n,) its position."""
    distances, positions = [], []
    for rows in x.split(BLOCK):
        best = torch.full((len(rows),), torch.inf, dtype=x.dtype, device=x.device)
        where = torch.zeros(len(rows), dtype=torch.int64, device=x.device)
        for start in range(0, len(centers), WIDE):
            block = squared_distances(rows, centers.narrow(0, start, min(WIDE, len(centers) - start)))
            values, columns = block.min(1)
            where = torch.where(values < best, columns + start, where)
            best = torch.minimum(best, values)
        distances.append(best.sqrt())
        positions.append(where)
    return torch.cat(distances), torch.cat(positions)


def distance_with_center(x: Tensor, distance: Tensor, row: int) -> Tensor:
    """(n,) distance to the nearest center after row `row` of x is added to the centers."""
    return torch.minimum(distance, (x - x.narrow(0, row, 1)).norm(dim=1))


def centered_unit(x: Tensor) -> Tensor:
    """Rows minus their mean, scaled to length 1; rows equal to the mean stay zero."""
    rows = x - x.mean(0, keepdim=True)
    scaled: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny ** 0.5)
    return scaled


def mean_neighbor_distance(x: Tensor, among: Tensor, n_neighbors: int) -> Tensor:
    """(n,) mean distance of each row of x to its `n_neighbors` nearest rows of `among`, without the row itself.

    `among` holds x's rows or a sample of them. The nearest of the n_neighbors + 1 nearest rows is the row itself if it
    is in the sample; it is left out for every row, so that all rows are comparable.
    """
    k = min(n_neighbors + 1, len(among))
    parts = [squared_distances(rows, among).topk(k, 1, largest=False).values for rows in x.split(2_048)]
    found = torch.cat(parts).sqrt()
    return found.narrow(1, 1, k - 1).mean(1) if k > 1 else torch.zeros_like(found).sum(1)


def unit_rows(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    """Rows scaled to length 1; zero rows stay zero."""
    scaled: NDArray[np.float32] = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).astype("f4")
    return scaled
