"""Designs without a prior, and the propositions of the paper's appendix, by Monte Carlo and by limits."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from core.coresets.library.frequentist import a_objective, bayesian_v_objective, greedy, unexplained, v_objective
from core.errors import InvalidInput

N, D, NOISE = 12, 3, 0.25


@pytest.fixture
def X() -> torch.Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def weights() -> torch.Tensor:
    w = torch.zeros(N, dtype=torch.float64)
    w[[0, 2, 5, 7, 8]] = 1.0
    return w


def estimates(X, weights, theta, draws: int, penalty: float = 0.0):
    """(draws, D) estimates of `theta` (draws, D) from noisy answers at the rows with weight."""
    rng = np.random.default_rng(1)
    S = X[weights > 0].numpy()
    y = theta @ S.T + np.sqrt(NOISE) * rng.standard_normal((draws, len(S)))
    return y @ np.linalg.pinv(S.T @ S + penalty * NOISE * np.eye(D)).dot(S.T).T


def test_propositions_4_and_5_are_the_expected_errors(X, weights):
    theta = np.tile([0.5, -1.0, 2.0], (200_000, 1))
    error = estimates(X, weights, theta, 200_000) - theta
    assert a_objective(X, weights, NOISE) == pytest.approx(0.5 * (error**2).sum(1).mean(), rel=0.02)
    predicted = error @ X.numpy().T
    assert v_objective(X, weights, NOISE) == pytest.approx(0.5 * (predicted**2).mean(), rel=0.02)


def test_proposition_7_is_the_expected_error_under_the_prior(X, weights):
    penalty = 0.7
    theta = np.random.default_rng(2).standard_normal((200_000, D)) / np.sqrt(penalty)
    predicted = (estimates(X, weights, theta, 200_000, penalty) - theta) @ X.numpy().T
    assert bayesian_v_objective(X, weights, NOISE, penalty) == pytest.approx(0.5 * (predicted**2).mean(), rel=0.02)


def test_the_bayesian_objective_tends_to_the_one_without_a_prior(X, weights):
    gaps = [
        abs(bayesian_v_objective(X, weights, NOISE, penalty) - v_objective(X, weights, NOISE))
        for penalty in (1.0, 1e-2, 1e-4, 1e-6)
    ]
    assert all(later < 0.1 * earlier for earlier, later in pairwise(gaps)) and gaps[-1] < 1e-6


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_propositions_6_and_2_the_summary_and_the_design_differ_by_half_the_noise_as_n_grows(penalty):
    """g - g_V = sigma^2 / 2 - 1/n E[sum over S of eps_i (x_i theta_hat - x_i theta)], and the second term vanishes."""
    gaps = []
    for n in (10, 100, 1_000):
        X = np.random.default_rng(3).standard_normal((n, D))
        S, draws = X[:6], 20_000
        rng = np.random.default_rng(4)
        theta = rng.standard_normal((draws, D))
        noise = np.sqrt(NOISE) * rng.standard_normal((draws, 6))
        found = (theta @ S.T + noise) @ (np.linalg.inv(S.T @ S + penalty * NOISE * np.eye(D)) @ S.T).T
        inside = (noise * ((found - theta) @ S.T)).sum(1).mean() / n
        gaps.append(abs(-inside))  # (g - g_V) - sigma^2 / 2; the rows outside S contribute 0 exactly in expectation
        exact = NOISE * np.trace(S @ np.linalg.inv(S.T @ S + penalty * NOISE * np.eye(D)) @ S.T) / n
        assert inside == pytest.approx(exact, rel=0.05)
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.1) and gaps[2] == pytest.approx(gaps[0] / 100, rel=0.1)


def test_lemma_9_the_hessian_of_the_bayesian_objective_is_the_printed_product_and_is_convex(X, weights):
    penalty = 0.5
    w = weights + 0.1

    def objective(v: torch.Tensor) -> torch.Tensor:
        precision = (X * v[:, None]).T @ X / NOISE + penalty * torch.eye(D, dtype=X.dtype)
        return torch.trace(X @ torch.linalg.inv(precision) @ X.T) / (2 * N)

    assert float(objective(w)) == pytest.approx(bayesian_v_objective(X, w, NOISE, penalty))
    found = torch.autograd.functional.hessian(objective, w)
    F = torch.linalg.inv((X * w[:, None]).T @ X + penalty * NOISE * torch.eye(D, dtype=X.dtype))
    printed = NOISE / (2 * N) * 2 * (X @ F @ X.T) * (X @ F @ X.T @ X @ F @ X.T)
    torch.testing.assert_close(found, printed, rtol=1e-8, atol=1e-10)
    assert torch.linalg.eigvalsh(found).min() > -1e-10
    length = float(X.norm(dim=1).max())
    assert torch.linalg.eigvalsh(found).max() <= N * length**6 / (penalty**3 * NOISE**2)


def test_greedy_explains_first_and_is_optimal_for_the_rank():
    X = torch.randn(8, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    design = greedy(X, 4)
    assert design.unexplained[2] == pytest.approx(0.0, abs=1e-8)
    assert design.unexplained[0] > design.unexplained[1] > design.unexplained[2]
    assert sorted(design.values[2:], reverse=True) == design.values[2:]
    best_first = min(unexplained(X, torch.eye(8, dtype=X.dtype)[row]) for row in range(8))
    assert design.unexplained[0] == pytest.approx(best_first, abs=1e-8)
    pairs = {rows: v_objective(X, torch.eye(8, dtype=X.dtype)[list(rows)].sum(0)) for rows in combinations(range(8), 4)}
    assert design.values[3] <= np.median(list(pairs.values()))
    with pytest.raises(InvalidInput, match="9 of 8"):
        greedy(X, 9)
