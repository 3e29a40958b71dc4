"""Conjugate gradients and truncated Newton against dense solves, finite differences and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from core.coresets.preconditioner import TwoLevel
from core.coresets.softmax import SoftmaxRegression, cross_entropy
from core.coresets.solvers import conjugate_gradient, conjugate_gradient_step, truncated_newton
from tests.core.fake_cuda import fake_cuda


def regression(*, n: int = 40, r: int = 6, n_classes: int = 3, penalty: float = 1e-2, weighted: bool = True):
    draw = torch.Generator().manual_seed(3)
    X = torch.randn(n, r, generator=draw, dtype=torch.float64)
    Y = torch.softmax(2 * torch.randn(n_classes, n, generator=draw, dtype=torch.float64), 0)
    w = torch.rand(n, generator=draw, dtype=torch.float64) if weighted else None
    return SoftmaxRegression(X, Y, penalty, 1 / n, weights=w)


def spd(size: int) -> torch.Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def test_conjugate_gradients_match_a_dense_solve():
    A, b = spd(30), torch.arange(30, dtype=torch.float64).reshape(5, 6)
    solved = conjugate_gradient(lambda v: (A @ v.flatten()).reshape(5, 6), b, tolerance=1e-12, max_steps=200)
    assert solved.converged
    torch.testing.assert_close(solved.value.flatten(), torch.linalg.solve(A, b.flatten()), rtol=1e-8, atol=1e-10)


def test_an_exact_preconditioner_needs_one_step():
    A, b = spd(30), torch.ones(30, dtype=torch.float64)
    inverse = torch.linalg.inv(A)
    solved = conjugate_gradient(lambda v: A @ v, b, precondition=lambda r: inverse @ r, tolerance=1e-9)
    assert (solved.steps, solved.converged) == (1, True)


def test_running_out_of_steps_is_reported():
    A, b = spd(30), torch.ones(30, dtype=torch.float64)
    solved = conjugate_gradient(lambda v: A @ v, b, tolerance=1e-12, max_steps=3)
    assert (solved.steps, solved.converged) == (3, False)
    assert solved.residual > 1e-12


def test_a_warm_start_at_the_solution_takes_no_step():
    A, b = spd(10), torch.ones(10, dtype=torch.float64)
    solved = conjugate_gradient(lambda v: A @ v, b, start=torch.linalg.solve(A, b), tolerance=1e-9)
    assert (solved.steps, solved.converged) == (0, True)


def test_a_zero_right_hand_side_gives_zero():
    solved = conjugate_gradient(lambda v: 2 * v, torch.zeros(4))
    assert solved.converged and not solved.value.any()


def test_gradient_and_hessian_products_match_automatic_differentiation():
    function = regression()
    W = torch.randn(3, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    V = torch.randn(3, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    point = function.at(W)

    def loss(W):
        return (function.weights * cross_entropy(W @ function.features.T, function.targets)).mean() + 0.005 * (
            W * W
        ).sum()

    _, product = torch.autograd.functional.hvp(loss, W, V)
    (gradient,) = torch.autograd.grad(loss(W.requires_grad_()), W)
    torch.testing.assert_close(point.value, loss(W).detach())
    torch.testing.assert_close(point.gradient, gradient)
    torch.testing.assert_close(point.product(V), product)


def test_truncated_newton_reaches_the_optimum_that_scipy_finds():
    function = regression()
    solved = truncated_newton(function, torch.zeros(3, 6, dtype=torch.float64), tolerance=1e-10)

    def flat(w: np.ndarray) -> tuple[float, np.ndarray]:
        point = function.at(torch.from_numpy(w.reshape(3, 6)))
        return float(point.value), point.gradient.numpy().ravel()

    found = scipy.optimize.minimize(flat, np.zeros(18), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert solved.converged
    np.testing.assert_allclose(solved.value.numpy().ravel(), found.x, atol=1e-6)


def test_truncated_newton_reports_when_it_stops_short():
    solved = truncated_newton(regression(), torch.zeros(3, 6, dtype=torch.float64), tolerance=1e-12, max_steps=1)
    assert (solved.steps, solved.converged) == (1, False)


def test_a_start_far_away_still_converges():
    function = regression(penalty=1e-4)
    start = 200 * torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert truncated_newton(function, start, tolerance=1e-8).converged


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_and_steps_stay_on_the_device_of_their_inputs(device: str):
    with fake_cuda() if device == "cuda" else FakeTensorMode():
        X, Y = torch.randn(40, 6, device=device), torch.rand(3, 40, device=device)
        precondition = TwoLevel.at(X, Y / Y.sum(0), 1 / 40, 1e-2)
        function = SoftmaxRegression(X, Y, 1e-2, 1 / 40, precondition=precondition)
        point = function.at(torch.zeros(3, 6, device=device))
        rho = (point.gradient * point.gradient).sum()
        state = (torch.zeros_like(point.gradient), point.gradient, point.gradient, rho)
        for tensor in conjugate_gradient_step(point.product, point.precondition, *state):
            assert tensor.device.type == device
