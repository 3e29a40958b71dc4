"""Algorithm 1: its picks, its rate in the convex case, and a golden problem solved by another implementation."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from core.coresets.library.implicit import ModelProblem
from core.coresets.library.linear import SoftmaxProblem, kernel_factor, one_hot
from core.coresets.library.regularized import project_to_simplex
from core.coresets.library.weighted import Coreset, PursuitConfig, build_coreset, correct_weights
from core.errors import InvalidInput

GOLDEN = Path(__file__).parents[3] / "golden" / "representer_digits_weighted.npz"


def v_design_problem(n=30, d=3, penalty=0.05):
    """min_w tr(X A(w)^-1 X^T) / n, A = X^T diag(w) X + penalty I, as a bilevel problem that is convex in w.

    With B B^T = X^T X / n the inner problem in theta (d, d) is  sum_i w_i |x_i^T theta|^2 / 2 + penalty/2 |theta|^2
    - <B, theta>, solved by theta* = A^-1 B, and the outer one <B, theta*> = tr(X A^-1 X^T) / n.
    """
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.linspace(0.3, 2, d)
    B = torch.linalg.cholesky(X.T @ X / n)
    problem = ModelProblem(
        n=n,
        row_losses=lambda theta, rows: 0.5 * ((X[rows] @ theta.view(d, d)) ** 2).sum(1),
        outer_loss=lambda theta: (B * theta.view(d, d)).sum(),
        regularizer=lambda theta: 0.5 * penalty * (theta * theta).sum() - (B * theta.view(d, d)).sum(),
        initial=torch.zeros(d * d, dtype=torch.float64),
        solver_tolerance=1e-10,
    )

    def closed_form(w):
        A = X.T.numpy() @ (w[:, None] * X.numpy()) + penalty * np.eye(d)
        inverse = np.linalg.inv(A)
        value = np.trace(X.numpy() @ inverse @ X.T.numpy()) / n
        return value, -((X.numpy() @ inverse @ B.numpy()) ** 2).sum(1)

    return problem, closed_form


def test_on_v_design_the_gap_closes_at_least_as_one_over_the_steps():
    """Theorem 3, convex case, over the simplex; the optimum is from an unrelated solver."""
    problem, closed_form = v_design_problem()
    best = minimize(
        closed_form, np.full(30, 1 / 30), jac=True, bounds=[(0, 1)] * 30, method="SLSQP", options={"ftol": 1e-14},
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
    )  # fmt: skip
    assert best.success
    config = PursuitConfig(size=12, corrections=8, project=project_to_simplex)
    found = build_coreset(problem, [0], config)
    weights = found.full_weights(30)
    assert float(weights.sum()) == pytest.approx(1)
    assert found.outer[-1] == pytest.approx(closed_form(weights.numpy())[0], rel=1e-6)
    gaps = np.array(found.outer) - best.fun
    assert gaps.min() > -1e-7
    steps = np.arange(len(gaps))
    rate = gaps[0] * 3  # the constant that the first step allows
    assert np.all(gaps <= rate / (steps + 3) + 1e-6)
    assert gaps[-1] < 0.02 * best.fun
    assert np.all(np.diff(found.outer) <= 1e-12)


def test_the_row_that_joins_is_the_argmax_of_influence():
    problem, closed_form = v_design_problem()
    found = build_coreset(problem, [0, 1], PursuitConfig(size=3, corrections=0, initial_weight=0.5))
    weights = np.zeros(30)
    weights[:2] = 0.5
    slopes = -closed_form(weights)[1]
    slopes[:2] = -np.inf
    assert int(found.rows[2]) == int(slopes.argmax())


def test_correcting_the_weights_never_raises_the_outer_loss_and_keeps_the_rows():
    problem, _ = v_design_problem()
    rows = torch.tensor([3, 9, 20])
    start = Coreset(rows=rows, weights=torch.full((3,), 0.1, dtype=torch.float64), outer=())
    better = correct_weights(problem, start, PursuitConfig(size=3, corrections=5))
    assert better.outer[1] < better.outer[0]
    assert better.rows.tolist() == [3, 9, 20]
    assert float(better.weights.min()) >= 0


def test_a_coreset_can_be_grown_further_without_losing_its_rows():
    problem, _ = v_design_problem()
    small = build_coreset(problem, [0], PursuitConfig(size=4, corrections=4))
    large = build_coreset(problem, small, PursuitConfig(size=6, corrections=4))
    assert large.rows[:4].tolist() == small.rows.tolist()
    assert large.outer[-1] <= small.outer[-1]


def test_an_impossible_size_is_refused_with_the_numbers():
    problem, _ = v_design_problem()
    with pytest.raises(InvalidInput, match="31 of 30 rows"):
        build_coreset(problem, [0], PursuitConfig(size=31))


def test_rescaling_finds_a_total_weight_that_is_far_off_and_keeps_every_joining_row_useful():
    """Noisy labels, so that large weights overfit: with summed losses their total stands against the penalty."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 10, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 1.5 * torch.randn(200, generator=generator, dtype=torch.float64) > 0).long()
    problem = SoftmaxProblem(features=x, targets=one_hot(y, 2), penalty=1e-3)
    config = {"size": 20, "batch": 4, "corrections": 3, "initial_weight": 10.0}
    plain = build_coreset(problem, range(8), PursuitConfig(**config))
    scaled = build_coreset(problem, range(8), PursuitConfig(**config, rescale=True))
    assert all(after <= before for before, after in itertools.pairwise(scaled.outer))
    assert scaled.outer[-1] < plain.outer[-1]
    assert float(scaled.weights.sum()) < 0.1 * 80
    reached = problem.outer(problem.solve(torch.full((200,), 1 / 200).double()).parameters)
    assert scaled.outer[-1] < 1.05 * reached


@pytest.mark.slow
def test_the_representer_proxy_on_digits_is_at_least_as_good_as_the_golden_run_at_every_size():
    """Same start and same candidates per step; the golden outer losses are of an independent implementation.

    The first 12 sizes, where the two are closest, are run here. `python -m experiments.paper.representer_digits` runs
    all 50.
    """
    golden = np.load(GOLDEN)
    X = torch.tensor(golden["X"])
    kernel = torch.exp(-float(golden["gamma"]) * torch.cdist(X, X) ** 2)
    problem = SoftmaxProblem(
        features=kernel_factor(kernel),
        targets=one_hot(torch.tensor(golden["y"]), 10),
        penalty=2e-4,  # the golden problem has 1e-4 tr(alpha^T K alpha), without the half
        mean=True,
        tolerance=1e-4,
    )
    candidates = torch.tensor(golden["candidates"])
    config = PursuitConfig(size=12, corrections=30, shortlist=12)
    found = build_coreset(problem, golden["start_ind"].tolist(), config, candidates=lambda size: candidates[size])
    assert np.all(np.array(found.outer) <= golden["outer_loss"][:12])
    for size in range(1, 12):
        assert int(found.rows[size]) in golden["candidates"][size]
    tight = SoftmaxProblem(features=problem.features, targets=problem.targets, penalty=2e-4, mean=True, tolerance=1e-8)
    exact = tight.outer(tight.solve(found.full_weights(len(X))).parameters)
    assert exact == pytest.approx(found.outer[-1], rel=0.05)
