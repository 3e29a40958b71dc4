"""Products by generated code against the same products in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.coresets import products
from core.coresets.bilevel import Objective, greedy, inner_rows
from core.coresets.products import matmul, tiled


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """The arithmetic is small."""


@pytest.fixture(params=[True, False], ids=["generated", "torch"])
def _either_code(request, monkeypatch):
    """Both ways where this machine has both; no product is too small."""
    if not request.param:
        monkeypatch.setattr(products, "GENERATES", False)
    monkeypatch.setattr(products, "LEAST", 0)


def filled(m: int, n: int, layout: str) -> torch.Tensor:
    """(m, n) normal, in one of the layouts that a matrix may have in memory."""
    draw = torch.Generator().manual_seed(m + n)
    if layout == "transposed":
        return torch.randn(n, m, generator=draw).T
    if layout == "columns of a wider matrix":
        return torch.randn(m, n + 3, generator=draw)[:, 1 : n + 1]
    return torch.randn(m, n, generator=draw)


@pytest.mark.usefixtures("_either_code")
@pytest.mark.parametrize("product", [matmul, tiled])
@pytest.mark.parametrize("layouts", [("rows", "rows"), ("rows", "transposed"), ("transposed", "rows")])
@pytest.mark.parametrize("shape", [(10, 33, 150), (150, 33, 10), (70, 40, 64), (5, 7, 1)])
def test_products_are_those_of_double_precision(product, layouts: tuple[str, str], shape: tuple[int, int, int]):
    m, k, n = shape
    A, B = filled(m, k, layouts[0]), filled(k, n, layouts[1])
    found = product(A, B)
    assert found.shape == (m, n)
    torch.testing.assert_close(found.double(), A.double() @ B.double(), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("_either_code")
@pytest.mark.parametrize("product", [matmul, tiled])
def test_matrices_with_gaps_in_memory_are_multiplied(product):
    A, B = filled(20, 30, "columns of a wider matrix"), filled(30, 40, "columns of a wider matrix")
    torch.testing.assert_close(product(A, B).double(), A.double() @ B.double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(product(A, B[:, ::2]).double(), A.double() @ B[:, ::2].double(), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("_either_code")
@pytest.mark.parametrize("product", [matmul, tiled])
def test_empty_products_have_their_shape(product):
    assert product(torch.ones(3, 4), torch.ones(4, 0)).shape == (3, 0)
    assert product(torch.ones(0, 4), torch.ones(4, 5)).shape == (0, 5)
    assert product(torch.ones(3, 0), torch.ones(0, 5)).tolist() == torch.zeros(3, 5).tolist()


@pytest.mark.usefixtures("_either_code")
def test_double_precision_stays_and_gradients_pass():
    A = torch.randn(6, 5, dtype=torch.float64)
    assert matmul(A, A.T).dtype == torch.float64
    W = torch.ones(6, 5, requires_grad=True)
    matmul(W, torch.full((5, 4), 2.0)).sum().backward()
    assert W.grad is not None and W.grad.tolist() == torch.full((6, 5), 8.0).tolist()


@pytest.mark.parametrize(("q", "bias", "d"), [(5, True, 6), (5, False, 5), (300, True, 304), (1023, True, 1040)])
def test_rows_of_the_inner_problem_end_with_the_bias_and_zeros(q: int, bias: bool, d: int):
    rows = torch.randn(4, q)
    found = inner_rows(rows, Objective(bias=bias))
    assert found.shape == (4, d)
    assert found[:, :q].tolist() == rows.tolist()
    assert found[:, q:].tolist() == [([1.0] * bias + [0.0] * d)[: d - q]] * 4


def test_generated_code_and_padding_change_no_pick(monkeypatch):
    """Long rows, where both are used, against the search in double precision."""
    draw = np.random.default_rng(0)
    spectrum = 0.97 ** np.arange(300)
    pool = (draw.normal(size=(200, 300)) * spectrum).astype(np.float32)
    targets = draw.dirichlet(np.full(4, 0.3), 200).astype(np.float32)
    views = {row: pool[row] + 0.05 * draw.normal(size=(30, 300)) * spectrum for row in range(200)}
    base = np.concatenate([views[row] for row in range(4)]).astype(np.float32)
    arrays = (base, np.repeat(np.eye(4, dtype=np.float32), 30, 0), pool, targets)
    monkeypatch.setattr(products, "LEAST", 0)
    found = greedy(*arrays, 6, 1e-3, views=lambda row: views[row].astype(np.float32))
    exact = greedy(*(a.astype(np.float64) for a in arrays), 6, 1e-3, views=lambda row: views[row])
    assert found.rows.tolist() == exact.rows.tolist()
    assert found.problems() == ()
    np.testing.assert_allclose(found.outer_losses, exact.outer_losses, atol=1e-3)
