"""The preconditioner in two levels against dense Hessians and eigenvectors."""

from __future__ import annotations

import pytest
import torch

from core.coresets import preconditioner
from core.coresets.preconditioner import TwoLevel, coupled_gram, inverse_gram, leading_axes, typical_curvature
from core.coresets.softmax import SoftmaxRegression
from core.coresets.solvers import conjugate_gradient


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """One thread, because the computations are small."""


def problem(n: int, r: int, n_classes: int, decay: float = 0.8, seed: int = 0):
    """Rows (n, r) of a decaying spectrum, in axes that are not principal, and probabilities (C, n)."""
    draw = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(r, r, generator=draw, dtype=torch.float64))[0]
    X = (torch.randn(n, r, generator=draw, dtype=torch.float64) * 5 * decay ** torch.arange(r)) @ turned
    P = torch.softmax(2 * torch.randn(n_classes, n, generator=draw, dtype=torch.float64), 0)
    return X, P


def dense_hessian(X: torch.Tensor, P: torch.Tensor, scale: float, penalty: float) -> torch.Tensor:
    """(C r, C r), from its definition."""
    curvature = torch.stack([torch.diag(p) - torch.outer(p, p) for p in P.T])
    dense = scale * torch.einsum("iab,ij,ik->ajbk", curvature, X, X).reshape(P.shape[0] * X.shape[1], -1)
    return dense + penalty * torch.eye(len(dense), dtype=X.dtype)


def as_matrix(operator, n_classes: int, r: int) -> torch.Tensor:
    units = torch.eye(n_classes * r, dtype=torch.float64)
    return torch.stack([operator(unit.reshape(n_classes, r)).flatten() for unit in units], 1)


def test_the_coupled_gram_is_the_curvature_of_all_classes():
    X, P = problem(12, 4, 3)
    expected = dense_hessian(X, P, 1.0, 0.0)
    torch.testing.assert_close(coupled_gram(X, P), expected)


def test_with_an_axis_for_every_direction_it_is_the_inverse_of_the_hessian():
    X, P = problem(20, 5, 3)
    found = as_matrix(TwoLevel.at(X, P, 1 / 20, 1e-3), 3, 5)
    torch.testing.assert_close(found @ dense_hessian(X, P, 1 / 20, 1e-3), torch.eye(15, dtype=torch.float64))


def test_without_room_for_an_axis_every_class_is_treated_alike(monkeypatch):
    monkeypatch.setattr(preconditioner, "DENSE", 2)
    X, P = problem(20, 5, 3)
    V = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    A = (X.T * typical_curvature(P)) @ X / 20 + 1e-3 * torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(TwoLevel.at(X, P, 1 / 20, 1e-3)(V), V / A.diagonal())


def test_off_the_axes_it_is_the_projected_diagonal(monkeypatch):
    """M^-1 from its definition, with dense projectors."""
    monkeypatch.setattr(preconditioner, "DENSE", 6)
    X, P = problem(30, 5, 3)
    found = TwoLevel.at(X, P, 1 / 30, 1e-3)
    U = torch.block_diag(*[found.axes] * 3)
    off = torch.eye(5, dtype=torch.float64) - found.axes @ found.axes.T
    D = ((X @ off).T * typical_curvature(P)) @ (X @ off) / 30 + 1e-3 * torch.eye(5, dtype=torch.float64)
    on_axes = U @ torch.linalg.inv(U.T @ dense_hessian(X, P, 1 / 30, 1e-3) @ U) @ U.T
    expected = on_axes + torch.block_diag(*[off @ torch.diag(1 / D.diagonal()) @ off] * 3)
    torch.testing.assert_close(as_matrix(found, 3, 5), expected)


@pytest.mark.parametrize("n_iterations", [0, 2])
def test_it_is_symmetric_and_positive_definite_for_any_axes(monkeypatch, n_iterations: int):
    monkeypatch.setattr(preconditioner, "ITERATIONS", n_iterations)
    monkeypatch.setattr(preconditioner, "DENSE", 12)
    X, P = problem(60, 10, 4, decay=0.97)
    found = as_matrix(TwoLevel.at(X, P, 1 / 60, 1e-2), 4, 10)
    torch.testing.assert_close(found, found.T)
    assert float(torch.linalg.eigvalsh(found).min()) > 0


def test_the_axes_span_the_leading_eigenvectors():
    X, _ = problem(200, 40, 2)
    gram = X.T @ X
    axes = leading_axes(X, 6)
    torch.testing.assert_close(axes.T @ axes, torch.eye(6, dtype=torch.float64))
    carried = torch.linalg.eigvalsh(axes.T @ gram @ axes)
    torch.testing.assert_close(carried, torch.linalg.eigvalsh(gram)[-6:], rtol=1e-2, atol=0)


@pytest.mark.parametrize("n", [300, 3000])  # the second is many rows, of which a part is used
def test_conjugate_gradients_take_half_the_steps_or_fewer(n: int):
    X, P = problem(n, 60, 10)
    hessian = SoftmaxRegression(X, P, 1e-3, 1 / n).hessian(P)
    alike = inverse_gram((X.T * typical_curvature(P)) @ X, 1 / n, 1e-3)
    target = torch.randn(10, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one = conjugate_gradient(hessian, target, precondition=lambda V: V @ alike, tolerance=1e-4)
    two = conjugate_gradient(hessian, target, precondition=TwoLevel.at(X, P, 1 / n, 1e-3), tolerance=1e-4)
    assert one.converged and two.converged
    assert two.steps <= one.steps / 2


def test_features_of_huge_scale_are_factorized():
    X = 1e4 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    X[:, 1] = X[:, 0]
    assert torch.isfinite(inverse_gram(X.T @ X, 1.0, 1e-4)).all()
    found = TwoLevel.at(X, torch.full((3, 50), 1 / 3), 1 / 50, 1e-4)(torch.randn(3, 8))
    assert torch.isfinite(found).all()
