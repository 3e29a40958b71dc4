"""The basis of the inner problem's rows: its directions, its axes, and when there is none."""

from __future__ import annotations

import pytest
import torch

from core.coresets.softmax import SoftmaxRegression
from core.coresets.solvers import truncated_newton
from core.coresets.span import InnerProblem, new_directions


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """One thread, because the computations are small."""


def problem(n: int, d: int, decay: float, seed: int = 0, dtype: torch.dtype = torch.float64):
    draw = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64))[0]
    rows = (torch.randn(n, d, generator=draw, dtype=torch.float64) * decay ** torch.arange(d)) @ turned
    targets = torch.softmax(3 * torch.randn(3, n, generator=draw, dtype=torch.float64), 0)
    return rows.to(dtype), targets.to(dtype)


def test_new_directions_are_orthonormal_and_outside_the_basis():
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(30, 4, generator=draw))[0].T
    rows = torch.randn(6, 30, generator=draw)
    rows[5] = basis[0] + rows[0]
    found = new_directions(basis, rows, rows @ basis.T, 0.0)
    both = torch.cat([basis, found])
    assert len(found) == 5
    torch.testing.assert_close(both @ both.T, torch.eye(9), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3])
def test_new_directions_of_nearly_equal_rows_are_orthonormal(scale: float, noise: float):
    """One hundred views of an item that differ little or not at all."""
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(60, 4, generator=draw))[0].T
    rows = scale * (torch.randn(60, generator=draw) + noise * torch.randn(100, 60, generator=draw))
    found = new_directions(basis, rows, rows @ basis.T, 0.0)
    both = torch.cat([basis, found])
    assert len(found) >= 1
    torch.testing.assert_close(both @ both.T, torch.eye(len(both)), atol=1e-5, rtol=0)


def test_more_rows_than_columns_have_a_basis_where_few_directions_matter():
    rows, targets = problem(300, 64, 0.7)
    inner = InnerProblem.create(rows, targets, 1e-3, mean=True, cutoff=0.01)
    assert inner.basis is not None and len(inner.basis) <= 32
    torch.testing.assert_close(inner.coordinates, rows @ inner.basis.T)
    assert inner.left_out == pytest.approx(float((rows - inner.coordinates @ inner.basis).norm()), rel=1e-6)
    assert inner.solve(1e-10).converged
    function = SoftmaxRegression(rows, targets, 1e-3, 1 / 300)
    start = torch.zeros(3, 64, dtype=torch.float64)
    expected = truncated_newton(function, start, tolerance=1e-10, max_inner_steps=300).value
    off = float((inner.lift() - expected).norm() / expected.norm())
    assert off < 1e-3  # the directions left out hold less than a hundredth of the penalty
    assert off < 0.1 * float((inner.weights @ inner.basis - expected).norm() / expected.norm())


def test_more_rows_than_columns_use_all_directions_where_many_matter():
    rows, targets = problem(300, 64, 1.0)
    inner = InnerProblem.create(rows, targets, 1e-3, mean=True, cutoff=0.01)
    assert inner.basis is None and inner.coordinates is rows
    inner.solve(1e-10)
    assert float(SoftmaxRegression(rows, targets, 1e-3, 1 / 300).at(inner.lift()).gradient.norm()) <= 1e-10


def test_the_axes_are_principal_and_rows_that_join_keep_the_solution():
    rows, targets = problem(120, 200, 0.95)
    inner = InnerProblem.create(rows[:40], targets[:, :40], 1e-3, mean=True, cutoff=0.0)
    gram = inner.coordinates.T @ inner.coordinates
    carried = gram.diagonal()
    assert bool((carried[:-1] >= carried[1:]).all())
    assert float((gram - torch.diag(carried)).abs().max()) < 1e-10 * float(carried.max())
    inner.solve(1e-10)
    before = inner.weights @ inner.basis
    inner.add(rows[40:], targets[:, 40:])
    torch.testing.assert_close(inner.weights @ inner.basis, before)
    torch.testing.assert_close(inner.coordinates @ inner.basis, rows)


def test_rows_that_join_in_any_number_keep_their_order_in_a_few_blocks():
    rows, targets = problem(400, 500, 0.95)
    inner = InnerProblem.create(rows[:140], targets[:, :140], 1e-3, mean=True, cutoff=0.0)
    ends = [141, 142, 145, 200, 330, 331, 400]
    for begin, end in zip([140, *ends], ends, strict=False):
        inner.add(rows[begin:end], targets[:, begin:end])
        assert torch.equal(torch.cat(inner.blocks), rows[:end])
        assert len(inner.blocks) <= 1 + end.bit_length()
        torch.testing.assert_close(inner.coordinates @ inner.basis, rows[:end])
    V, columns = rows[:3] + 1.0, targets
    torch.testing.assert_close(inner.spread(V), V @ rows.T)
    torch.testing.assert_close(inner.combine(columns), columns @ rows)
