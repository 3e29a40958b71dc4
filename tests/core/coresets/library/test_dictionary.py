"""Recovery of signals from chosen measurements: inner optimum, implicit gradient, and the gain of a selection."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from core.coresets.library.dictionary import RecoveryProblem
from core.coresets.library.variants import forward


def sparse_problem(recovery, n=24, d=10, n_signals=6):
    generator = np.random.default_rng(0)
    U = np.zeros((n_signals, d))
    for signal in U:
        signal[generator.permutation(d)[:2]] = generator.normal(size=2) + 1
    A = generator.normal(size=(n, d)) * np.exp(generator.normal(size=(n, 1)))
    return RecoveryProblem(
        measurements=torch.tensor(A), signals=torch.tensor(U), recovery=recovery, penalty=0.05, smoothing=0.05,
        max_steps=3000, tolerance=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("recovery", ["l2", "l1"])
def test_the_inner_solution_is_the_minimum_of_its_objective(recovery):
    problem = sparse_problem(recovery)
    weights = torch.zeros(24, dtype=torch.float64)
    weights[:6] = torch.linspace(0.5, 2, 6)
    inner = problem.solve(weights)
    assert inner.converged
    A, U, w = problem.measurements.numpy(), problem.signals.numpy(), weights.numpy()
    for u, z in zip(U, inner.parameters.numpy(), strict=True):

        def objective(z, u=u):
            size = (z**2).sum() / 2 if recovery == "l2" else np.sqrt(z**2 + 0.05**2).sum()
            return 0.5 * (w * (A @ (z - u)) ** 2).sum() + 0.05 * size

        best = minimize(objective, np.zeros(10), method="BFGS", options={"gtol": 1e-8})
        np.testing.assert_allclose(z, best.x, atol=1e-4)


@pytest.mark.parametrize("recovery", ["l2", "l1"])
def test_influence_is_the_finite_difference(recovery):
    problem = sparse_problem(recovery)
    weights = torch.ones(24, dtype=torch.float64)
    scores = problem.influence(problem.solve(weights).parameters, weights).scores
    for row in (0, 7, 23):
        ends = []
        for sign in (1, -1):
            moved = weights.clone()
            moved[row] += sign * 1e-4
            ends.append(problem.outer(problem.solve(moved).parameters))
        assert float(scores[row]) == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-3, abs=1e-9)


def test_the_outer_loss_lies_between_the_mean_and_the_worst_error():
    problem = sparse_problem("l2")
    Z = problem.solve(torch.ones(24, dtype=torch.float64)).parameters
    errors = problem.errors(Z)
    assert float(errors.mean()) <= problem.outer(Z) + 1e-12
    assert problem.outer(Z) <= float(errors.max())
    problem.sharpness = 1e5
    assert problem.outer(Z) == pytest.approx(float(errors.max()), abs=1e-4)


@pytest.mark.parametrize("recovery", ["l2", "l1"])
def test_chosen_measurements_recover_better_than_random_ones(recovery):
    problem = sparse_problem(recovery)
    problem.max_steps, problem.tolerance = 300, 1e-7
    chosen = forward(problem, 8, start=[0]).outer[8]
    random = []
    for seed in range(10):
        weights = torch.zeros(24, dtype=torch.float64)
        weights[np.random.default_rng(seed).permutation(24)[:8]] = 1.0
        random.append(problem.outer(problem.solve(weights).parameters))
    assert chosen < np.median(random)
