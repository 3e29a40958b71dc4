"""k-means on the device of the rows. k-means++ starts use a numpy generator, so they are the same on all devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.acquisition.geometry import nearest


@dataclass(frozen=True, slots=True)
class Clusters:
    """A clustering of n rows."""

    centers: Tensor  # (k, d)
    assigned: Tensor  # (n,) position of the nearest center
    distance: Tensor  # (n,) to that center
    converged: bool


def weighted_draw(weights: Tensor, uniform: float) -> int:
    """The row where the cumulative share of `weights` (n,) passes `uniform` in [0, 1); a row of weight 0 is never
    returned.

    Without any positive weight, all rows are equally likely.
    """
    total = weights.double().cumsum(0)
    if not float(total[-1]) > 0:
        total = torch.arange(1, len(weights) + 1, dtype=torch.float64, device=weights.device)
    target = uniform * total[-1]
    return int(torch.searchsorted(total, target.reshape(1), right=True).clamp_max(len(weights) - 1))


def spread_starts(x: Tensor, k: int, draw: np.random.Generator) -> Tensor:
    """(k, d) k-means++ starts: each is drawn in proportion to its squared distance to the nearest earlier one."""
    rows = [int(draw.integers(len(x)))]
    squared = (x - x[rows[0]]).square().sum(1)
    while len(rows) < k:
        row = weighted_draw(squared, draw.random())
        rows.append(row)
        squared = torch.minimum(squared, (x - x[row]).square().sum(1))
    return x[torch.tensor(rows, device=x.device)]


def cluster_means(x: Tensor, assigned: Tensor, centers: Tensor) -> Tensor:
    """(k, d) the mean of each cluster's rows; a cluster without rows keeps its center."""
    sums = torch.zeros_like(centers).index_add(0, assigned, x)
    counts = torch.zeros_like(centers).sum(1).index_add(0, assigned, torch.ones_like(x).mean(1))
    means = sums / counts.clamp_min(1).unsqueeze(1)
    return torch.where(counts.unsqueeze(1) > 0, means, centers)


def k_means(x: Tensor, k: int, draw: np.random.Generator, max_steps: int = 50) -> Clusters:
    """Lloyd's algorithm on x (n, d) with k <= n clusters from k-means++ starts."""
    return lloyd(x, spread_starts(x, k, draw), max_steps)


def lloyd(x: Tensor, centers: Tensor, max_steps: int = 50) -> Clusters:
    """Clusters of x (n, d) from `centers` (k, d), until no row changes its cluster."""
    distance, assigned = nearest(x, centers)
    for _ in range(max_steps):
        centers = cluster_means(x, assigned, centers)
        distance, now = nearest(x, centers)
        if bool((now == assigned).all()):
            return Clusters(centers, now, distance, True)
        assigned = now
    return Clusters(centers, assigned, distance, False)
