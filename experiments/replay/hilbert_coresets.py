"""Hilbert coresets (Campbell and Broderick, 2018 and 2019): a sparse weighted sum of vectors near the whole.

Rows are vectors L_n in a Hilbert space, and L is their sum. With the weighted Fisher information distance the inner
product is E[grad l_n(theta)^T grad l_m(theta)] over a distribution of theta, here the Laplace approximation of the
posterior. Random features replace it: for j = 1 ... J draw theta_j and a coordinate d_j,

    v_n[j] = sqrt(D / J) (grad l_n(theta_j))[d_j]

Two constructions of the weights w >= 0, both with closed-form steps:

    Frank-Wolfe    minimizes |L - sum w_n L_n| over the polytope sum_n w_n |L_n| = sum_n |L_n|
    GIGA           follows geodesics on the unit sphere toward L / |L|; the scale is chosen last
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def logistic_features(x: FloatArray, y: NDArray[np.int64], thetas: FloatArray, seed: int) -> FloatArray:
    """(n, J) random features of the logistic loss of rows x (n, D) with labels 0 and 1, for J parameters (J, D)."""
    signs = np.where(y > 0, 1.0, -1.0)
    coordinates = np.random.default_rng(seed).integers(x.shape[1], size=len(thetas))
    margins = signs[:, None] * (x @ thetas.T)  # (n, J)
    slopes = -signs[:, None] / (1.0 + np.exp(np.clip(margins, -500, 500)))
    found: FloatArray = np.sqrt(x.shape[1] / len(thetas)) * slopes * x[:, coordinates]
    return found


def laplace_draws(x: FloatArray, theta: FloatArray, penalty: float, count: int, seed: int) -> FloatArray:
    """(count, D) draws from the normal approximation at the minimum theta of sum of losses + penalty / 2 |theta|^2."""
    p = 1.0 / (1.0 + np.exp(-np.clip(x @ theta, -500, 500)))
    precision = (x * (p * (1 - p))[:, None]).T @ x + penalty * np.eye(x.shape[1])
    factor = np.linalg.cholesky(precision)
    noise = np.random.default_rng(seed).normal(size=(x.shape[1], count))
    draws: FloatArray = theta + np.linalg.solve(factor.T, noise).T
    return draws


def frank_wolfe(vectors: FloatArray, steps: int) -> FloatArray:
    """(n,) weights, at most `steps` of them above 0."""
    norms = np.linalg.norm(vectors, axis=1)
    used = norms > 0
    total, target = norms.sum(), vectors.sum(0)
    directions = np.where(used[:, None], vectors / np.where(used, norms, 1.0)[:, None], 0.0)
    weights, reached = np.zeros(len(vectors)), np.zeros(vectors.shape[1])
    for step in range(steps):
        at = int(np.where(used, directions @ (target - reached), -np.inf).argmax())
        toward = total * directions[at] - reached
        length = toward @ toward
        gamma = 1.0 if step == 0 else float(np.clip(toward @ (target - reached) / max(length, 1e-300), 0, 1))
        weights *= 1 - gamma
        weights[at] += gamma * total / norms[at]
        reached = reached + gamma * toward
    return weights


def giga(vectors: FloatArray, steps: int) -> FloatArray:
    """(n,) weights, at most `steps` of them above 0."""
    norms = np.linalg.norm(vectors, axis=1)
    used = norms > 0
    target = vectors.sum(0)
    length = np.linalg.norm(target)
    goal = target / length
    units = np.where(used[:, None], vectors / np.where(used, norms, 1.0)[:, None], 0.0)
    at = int(np.where(used, units @ goal, -np.inf).argmax())
    weights, y = np.zeros(len(vectors)), units[at]
    weights[at] = 1.0
    for _ in range(steps - 1):
        along = units @ y
        lengths = np.sqrt(np.maximum(1 - along**2, 0.0))  # of the rows' parts orthogonal to y
        tangent = goal - (goal @ y) * y
        open_rows = used & (lengths > 1e-8)
        if np.linalg.norm(tangent) < 1e-12 or not open_rows.any():
            break
        at = int(np.where(open_rows, units @ tangent / np.maximum(lengths, 1e-8), -np.inf).argmax())
        gamma = _geodesic_step(goal @ units[at], goal @ y, units[at] @ y)
        y, weights = (1 - gamma) * y + gamma * units[at], (1 - gamma) * weights
        weights[at] += gamma
        scale = np.linalg.norm(y)
        y, weights = y / scale, weights / scale
    scaled: FloatArray = np.where(used, weights * length * max(goal @ y, 0.0) / np.where(used, norms, 1.0), 0.0)
    return scaled


def _geodesic_step(to_goal: float, reached: float, between: float) -> float:
    """The share of the new direction that makes the largest cosine with the goal."""
    toward, stay = to_goal - reached * between, reached - to_goal * between
    return float(np.clip(toward / (toward + stay), 0, 1)) if toward + stay > 0 else 0.0
