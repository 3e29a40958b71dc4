"""The implicit gradient against finite differences and dense solves, with both methods for the inverse Hessian."""

from __future__ import annotations

import pytest
import torch

from core.coresets.library.implicit import InverseConfig, largest_eigenvalue, neumann_series, supervised
from core.coresets.library.linear import SoftmaxProblem, one_hot


def network_problem(**settings):
    """A two-layer tanh network of 20 parameters on 8 rows, well regularized so that its optimum is isolated."""
    torch.manual_seed(0)
    inputs = torch.randn(8, 3, dtype=torch.float64)
    targets = torch.sin(inputs @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)).repeat(1, 2)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()
    return supervised(
        model, inputs, targets, lambda out, y: ((out - y) ** 2).sum(1), penalty=1.0,
        solver_tolerance=1e-11, solver_steps=300, **settings,
    )  # fmt: skip


def finite_differences(problem, weights, solution, step=1e-4):
    slopes = []
    for row in range(problem.n_rows):
        ends = []
        for sign in (1, -1):
            moved = weights.clone()
            moved[row] += sign * step
            ends.append(problem.outer(problem.solve(moved, solution).parameters))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return torch.tensor(slopes, dtype=torch.float64)


@pytest.mark.parametrize(("method", "steps"), [("cg", 100), ("neumann", 3000)])
def test_influence_is_minus_the_derivative_of_the_outer_loss_for_a_network(method, steps):
    problem = network_problem(inverse=InverseConfig(method=method, tolerance=1e-7, max_steps=steps))
    weights = torch.linspace(0.3, 1.5, 8, dtype=torch.float64)
    inner = problem.solve(weights)
    assert inner.converged
    found = problem.influence(inner.parameters, weights)
    assert found.converged
    slopes = finite_differences(problem, weights, inner.parameters)
    torch.testing.assert_close(-found.scores, slopes, rtol=1e-4, atol=1e-8)


def test_a_row_without_weight_has_the_influence_of_joining():
    """Proposition 1: the scores of rows outside the set are the one-sided derivatives with respect to their weights."""
    problem = network_problem(mean=False)
    weights = torch.zeros(8, dtype=torch.float64)
    weights[:5] = 1.0
    inner = problem.solve(weights)
    scores = problem.influence(inner.parameters, weights).scores
    before, gains = problem.outer(inner.parameters), []
    for row in range(5, 8):
        joined = weights.clone()
        joined[row] = 1e-5
        gains.append((before - problem.outer(problem.solve(joined, inner.parameters).parameters)) / 1e-5)
    torch.testing.assert_close(scores[5:], torch.tensor(gains, dtype=torch.float64), rtol=1e-3, atol=1e-6)
    assert int(scores[5:].argmax()) == int(torch.tensor(gains, dtype=torch.float64).argmax())


def test_the_neumann_series_is_the_inverse_and_reports_its_own_residual():
    torch.manual_seed(1)
    A = torch.randn(8, 8, dtype=torch.float64)
    H, b = A @ A.T + torch.eye(8), torch.randn(8, dtype=torch.float64)
    assert largest_eigenvalue(lambda v: H @ v, b) == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=0.1)
    exact = neumann_series(lambda v: H @ v, b, max_steps=5000, tolerance=1e-12)
    torch.testing.assert_close(exact.value, torch.linalg.solve(H, b))
    short = neumann_series(lambda v: H @ v, b, max_steps=5)
    assert not short.converged
    assert short.residual == pytest.approx(float((H @ short.value - b).norm() / b.norm()))


@pytest.mark.parametrize("d", [3, 20])
@pytest.mark.parametrize("mean", [False, True])
def test_the_closed_form_of_softmax_regression_is_the_general_one(d, mean):
    """With more features than rows (d = 20) the closed form works in the span of the rows."""
    torch.manual_seed(2)
    features, labels = torch.randn(15, d, dtype=torch.float64), torch.randint(0, 3, (15,))
    closed = SoftmaxProblem(features=features, targets=one_hot(labels, 3), penalty=0.2, mean=mean, tolerance=1e-10)
    model = torch.nn.Linear(d, 3, bias=False).double()
    general = supervised(
        model, features, labels, lambda out, y: torch.nn.functional.cross_entropy(out, y, reduction="none"),
        penalty=0.2, mean=mean, solver_tolerance=1e-11,
    )  # fmt: skip
    weights = torch.zeros(15, dtype=torch.float64)
    weights[:7] = torch.linspace(0.5, 2, 7)
    W, theta = closed.solve(weights).parameters, general.solve(weights).parameters
    torch.testing.assert_close(W.flatten(), theta, rtol=0, atol=1e-7)
    assert closed.outer(W) == pytest.approx(general.outer(theta), abs=1e-8)
    torch.testing.assert_close(
        closed.influence(W, weights).scores, general.influence(theta, weights).scores, rtol=1e-5, atol=1e-7
    )
