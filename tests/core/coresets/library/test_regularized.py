"""Projection onto the simplex against two unrelated solvers; the shrinking construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.regularized import ShrinkConfig, shrink_coreset
from core.coresets.library.simplex import project_to_simplex
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
