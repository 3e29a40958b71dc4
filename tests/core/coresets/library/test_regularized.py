"""Projection onto the simplex against two unrelated solvers; the shrinking construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.regularized import (
    PrintedConfig,
    ShrinkConfig,
    project_to_simplex,
    shrink_as_printed,
    shrink_coreset,
)
from core.errors import InvalidInput


def test_the_projection_is_the_optimum_of_the_quadratic_program():
    for seed in range(5):
        v = np.random.default_rng(seed).normal(size=8) * 2
        solved = minimize(
            lambda w, v=v: ((w - v) ** 2).sum(), np.full(8, 1 / 8), bounds=[(0, None)] * 8, method="SLSQP",
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(project_to_simplex(torch.tensor(v)).numpy(), solved.x, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30), st.floats(0.1, 20))
def test_the_projection_is_a_shift_found_by_bisection(values, total):
    v = np.array(values)
    shift = brentq(lambda tau: np.maximum(v - tau, 0).sum() - total, v.min() - total - 1, v.max(), xtol=1e-13)
    found = project_to_simplex(torch.tensor(v), total).numpy()
    np.testing.assert_allclose(found, np.maximum(v - shift, 0), atol=1e-7)
    assert found.sum() == pytest.approx(total)


def test_a_point_of_the_simplex_stays_and_an_empty_one_is_refused():
    inside = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    torch.testing.assert_close(project_to_simplex(inside), inside)
    with pytest.raises(InvalidInput):
        project_to_simplex(torch.zeros(0))


def logistic(n=120):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    slope = torch.tensor([1.0, -1, 0.5, 0, 0], dtype=torch.float64)
    y = (x @ slope + 0.5 * torch.randn(n, generator=generator) > 0).long()
    return SoftmaxProblem(features=with_bias(x), targets=one_hot(y, 2), penalty=0.01)


@pytest.mark.slow
def test_shrinking_reaches_exactly_the_size_on_the_simplex_and_beats_uniform_subsets():
    problem = logistic()
    found = shrink_coreset(problem, ShrinkConfig(size=10))
    assert len(found.rows) == 10
    assert float(found.weights.sum()) == pytest.approx(1)
    assert float(found.weights.min()) >= 0
    everything, shrunk, corrected = found.outer
    assert corrected <= shrunk
    uniform = []
    for seed in range(20):
        weights = torch.zeros(120, dtype=torch.float64)
        weights[np.random.default_rng(seed).permutation(120)[:10]] = 0.1
        uniform.append(problem.outer(problem.solve(weights).parameters))
    assert corrected < min(uniform)
    assert corrected < everything + 0.3 * (np.mean(uniform) - everything)


def test_a_size_of_all_rows_keeps_them_all():
    problem = logistic(20)
    assert sorted(shrink_coreset(problem, ShrinkConfig(size=20, corrections=0)).rows.tolist()) == list(range(20))
    with pytest.raises(InvalidInput, match="21 of 20"):
        shrink_coreset(problem, ShrinkConfig(size=21))


def test_algorithm_2_as_printed_takes_its_steps_in_order():
    """Two iterations by hand: gradient, projection, mixing, and the cut at the end."""
    problem = logistic(20)
    config = PrintedConfig(iterations=2, beta=1e-3, learning_rate=0.05)
    w = torch.full((20,), 1 / 20, dtype=torch.float64)
    for _ in range(2):
        parameters = problem.solve(w).parameters
        gradient = -problem.influence(parameters, w).scores + config.beta / (2 * w.sqrt())
        w = (1 - 1e-8) * project_to_simplex(w - 0.05 * gradient) + 1e-8
    found = shrink_as_printed(problem, config)
    kept = torch.nonzero(w >= 1e-4).flatten()
    assert sorted(found.rows.tolist()) == kept.tolist()
    torch.testing.assert_close(found.weights, w[found.rows], rtol=1e-5, atol=1e-9)
    assert 0.9 < float(found.weights.sum()) <= 1.0 + 20e-8


def test_algorithm_2_as_printed_reaches_a_size_by_doubling_beta():
    problem = logistic(60)
    config = PrintedConfig(iterations=400, beta=1e-4, learning_rate=0.02, size=15, patience=3)
    found = shrink_as_printed(problem, config)
    assert len(found.rows) <= 15 and found.notes == ()
    assert float(found.weights.min()) >= 1e-4
    unfinished = shrink_as_printed(problem, PrintedConfig(iterations=1, size=15))
    assert "rows were left" in unfinished.notes[0]
