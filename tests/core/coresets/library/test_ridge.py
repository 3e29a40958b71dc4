"""Kernel ridge regression as a bilevel problem: closed forms against finite differences and a primal solve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.coresets.library.ridge import RidgeProblem
from core.coresets.library.variants import forward
from core.coresets.library.weighted import PursuitConfig, build_coreset
from core.errors import InvalidInput


def problem(n: int = 12, d: int = 4, penalty: float = 0.3, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    phi = torch.randn(n, d, generator=draw, dtype=torch.float64)
    y = torch.randn(n, 2, generator=draw, dtype=torch.float64)
    return RidgeProblem(kernel=phi @ phi.T, targets=y, penalty=penalty), phi, y


def some_weights(n: int) -> torch.Tensor:
    weights = torch.zeros(n, dtype=torch.float64)
    weights[[1, 4, 5, 9]] = torch.tensor([1.0, 0.5, 2.0, 1.3], dtype=torch.float64)
    return weights


def test_the_solution_is_that_of_the_primal_problem():
    ridge, phi, y = problem()
    w = some_weights(12)
    theta = torch.linalg.solve(
        phi.T @ (w[:, None] * phi) + 0.3 * torch.eye(4, dtype=torch.float64), phi.T @ (w[:, None] * y)
    )
    torch.testing.assert_close(ridge.solve(w).parameters, phi @ theta, rtol=1e-9, atol=1e-9)


def test_the_influence_is_the_derivative_of_the_outer_loss_also_at_weight_zero():
    ridge, _, _ = problem()
    w = some_weights(12)
    scores = ridge.influence(ridge.solve(w).parameters, w).scores.numpy()

    def outer(weights: torch.Tensor) -> float:
        return ridge.outer(ridge.solve(weights).parameters)

    for row in range(12):
        step, up, down = 1e-5, w.clone(), w.clone()
        up[row] += step
        if w[row] > 0:
            down[row] -= step
            slope = (outer(up) - outer(down)) / (2 * step)
        else:  # one-sided, second order
            further = w.clone()
            further[row] += 2 * step
            slope = (4 * outer(up) - 3 * outer(w) - outer(further)) / (2 * step)
        assert scores[row] == pytest.approx(-slope, rel=1e-4, abs=1e-5)


def test_the_constructions_run_on_it_and_weights_help():
    ridge, _, _ = problem(n=30)
    plain = forward(ridge, 6, start=[0])
    weighted = build_coreset(ridge, [0], PursuitConfig(size=6))
    everything = ridge.outer(ridge.solve(torch.ones(30, dtype=torch.float64)).parameters)
    random = np.mean([
        ridge.outer(ridge.solve(torch.bincount(torch.randperm(30)[:6], minlength=30).double()).parameters)
        for _ in range(20)
    ])  # fmt: skip
    assert everything < weighted.outer[-1] < plain.outer[6] < random


def test_a_penalty_of_zero_and_a_kernel_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match="above 0"):
        RidgeProblem(kernel=torch.eye(2), targets=torch.ones(2, 1), penalty=0.0)
    with pytest.raises(InvalidInput, match="does not fit"):
        RidgeProblem(kernel=torch.eye(3), targets=torch.ones(2, 1), penalty=1.0)
