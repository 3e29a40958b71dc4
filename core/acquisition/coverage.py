"""Greedy generalized coverage: the objective of prob_cover, max_herding and uncertainty_herding.

    C(L) = sum_x u(x) max_{l in L} k(x, l)

With a top-hat k this is the probability mass within a radius (ProbCover); with a Gaussian k it is MaxHerding's
objective; with weights u it is uncertainty coverage. C is monotone and submodular, so repeatedly adding the row of
largest gain reaches at least 1 - 1/e of the optimum.

Symbols: k similarity (evaluated rows E, candidates K); u weights (E,); covered (E,) the maximum over L so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.acquisition.geometry import squared_distances


@dataclass(frozen=True, slots=True)
class Covering:
    """Positions among the candidates in the order in which they were chosen, and the gain of each."""

    positions: list[int]
    gains: list[float]
    exhausted: int | None  # the pick at which all gains were 0; None if that did not happen


def gaussian(x: Tensor, y: Tensor, radius: float) -> Tensor:
    """(n, k) exp(-|x - y|^2 / radius^2)."""
    return torch.exp(squared_distances(x, y).mul_(-1.0 / radius**2))


def top_hat(x: Tensor, y: Tensor, radius: float) -> Tensor:
    """(n, k) 1 where |x - y| <= radius, else 0."""
    return (squared_distances(x, y) <= radius**2).to(x.dtype)


def covered_by(similarity: Callable[[Tensor, Tensor], Tensor], x: Tensor, centers: Tensor) -> Tensor:
    """(n,) maximum of the similarity over the centers (possibly none), in blocks."""
    covered = torch.zeros_like(x).sum(1)
    for block in centers.split(1024):
        if len(block):
            covered = torch.maximum(covered, similarity(x, block).amax(1))
    return covered


def gains(K: Tensor, u: Tensor, covered: Tensor) -> Tensor:
    """(candidates,) the increase of C by each candidate. K (E, candidates), u and covered (E,); in blocks of rows."""
    total = torch.zeros_like(K.narrow(0, 0, 1)).squeeze(0)
    for rows, weights, done in zip(K.split(1024), u.split(1024), covered.split(1024), strict=True):
        total = total + weights @ (rows - done.unsqueeze(1)).clamp_min(0)
    return total


def greedy_cover(
    K: Tensor, u: Tensor, covered: Tensor, m: int, picked: Callable[[int], None] = lambda done: None
) -> Covering:
    """Choose m of the candidates of K (E, candidates). When all gains are 0, coverage starts again from 0."""
    blocked = torch.zeros(K.shape[1], dtype=torch.bool, device=K.device)
    positions: list[int] = []
    reached: list[float] = []
    exhausted = None
    for step in range(m):
        gain = torch.where(blocked, -torch.inf, gains(K, u, covered))
        if float(gain.max()) <= 0:
            exhausted = step if exhausted is None else exhausted
            covered = torch.zeros_like(covered)
            gain = torch.where(blocked, -torch.inf, gains(K, u, covered))
        position = int(gain.argmax())
        positions.append(position)
        reached.append(float(gain[position]))
        blocked[position] = True
        covered = torch.maximum(covered, K[:, position])
        picked(step + 1)
    return Covering(positions, reached, exhausted)
