"""Experimental design without a prior (lambda = 0): the objectives of Borsos et al. (2021), Propositions 4 and 5.

    A   G(w) = noise / 2     tr( (X^T D(w) X)^+ )            parameters
    V   G(w) = noise / (2 n) tr( X (X^T D(w) X)^+ X^T )      predictions over all rows

+ is the pseudo-inverse: with fewer chosen rows than features the least-squares estimate is that of smallest norm, and
the objective is its variance alone. What the chosen rows cannot determine adds bias, not variance; `unexplained` is
that share, tr(X^T X (I - P)) / tr(X^T X) with P the projection on the chosen rows' span. `greedy` therefore lowers
`unexplained` first, and compares variances only between rows that explain equally much.

With a prior (lambda > 0) the objective is that of `core.coresets.design`; for a full-rank design it tends to V as
lambda tends to 0. Symbols: X (n, d); D(w) = diag(w); noise = sigma^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.errors import InvalidInput

RANK_TOLERANCE = 1e-10  # of the pseudo-inverse, relative to the largest eigenvalue


def _information(X: Tensor, weights: Tensor) -> Tensor:
    return (X * weights[:, None]).T @ X


def a_objective(X: Tensor, weights: Tensor, noise: float = 1.0) -> float:
    """Half the expected squared error of the parameters that the rows with weight determine."""
    return float(noise / 2 * torch.linalg.pinv(_information(X, weights), rtol=RANK_TOLERANCE, hermitian=True).trace())


def v_objective(X: Tensor, weights: Tensor, noise: float = 1.0) -> float:
    """Half the mean over all rows of the variance of their predictions."""
    inverse = torch.linalg.pinv(_information(X, weights), rtol=RANK_TOLERANCE, hermitian=True)
    return float(noise / (2 * len(X)) * ((X @ inverse) * X).sum())


def bayesian_v_objective(X: Tensor, weights: Tensor, noise: float, penalty: float) -> float:
    """1 / (2 n) tr( X (X^T D(w) X / noise + penalty I)^-1 X^T ): Proposition 7."""
    precision = _information(X, weights) / noise + penalty * torch.eye(X.shape[1], dtype=X.dtype)
    return float(torch.linalg.solve(precision, X.T).T.mul(X).sum() / (2 * len(X)))


def unexplained(X: Tensor, weights: Tensor) -> float:
    """The share of the rows' squared length outside the span of the rows with weight."""
    information = _information(X, weights)
    span = torch.linalg.pinv(information, rtol=RANK_TOLERANCE, hermitian=True) @ information
    return float(1 - ((X @ span) * X).sum() / X.square().sum())


@dataclass(frozen=True, slots=True)
class FrequentistDesign:
    """A greedy design, in the order chosen."""

    rows: list[int]
    values: list[float]  # V after each row
    unexplained: list[float]  # after each row


def greedy(X: Tensor, size: int, noise: float = 1.0) -> FrequentistDesign:
    """Rows (size,) by V-optimal design without a prior; every candidate is evaluated at every step."""
    if not 1 <= size <= len(X):
        raise InvalidInput(f"Asked for {size} of {len(X)} rows; give 1 to {len(X)}.")
    design = FrequentistDesign([], [], [])
    weights = torch.zeros(len(X), dtype=X.dtype)
    for _ in range(size):
        found = []
        for row in range(len(X)):
            if weights[row]:
                continue
            weights[row] = 1.0
            found.append((round(unexplained(X, weights), 9), v_objective(X, weights, noise), row))
            weights[row] = 0.0
        left, value, best = min(found)
        weights[best] = 1.0
        design.rows.append(best)
        design.values.append(value)
        design.unexplained.append(left)
    return design
