"""Implicit gradients from minibatches: the series against a dense solve, and a coreset of a small wide ResNet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from core.coresets.library.implicit import InverseConfig, supervised
from core.coresets.library.stochastic import NetworkProblem, SeriesConfig, Sgd, sgd
from core.coresets.library.variants import forward
from core.errors import InvalidInput
from core.learning.networks.layers import draw_weights
from core.learning.networks.wide_resnet import WideResNet

pytestmark = pytest.mark.usefixtures("one_thread")


def per_row(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def small(n: int = 40, seed: int = 0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    return model, torch.randn(n, 3, dtype=torch.float64), torch.randint(3, (n,))


@pytest.mark.slow(2)
def test_with_whole_batches_and_many_terms_it_is_the_exact_implicit_gradient():
    model, x, y = small()
    exact = supervised(
        model, x, y, per_row, penalty=0.2, mean=True, inverse=InverseConfig(tolerance=1e-12, max_steps=500)
    )
    weights = torch.zeros(40, dtype=torch.float64)
    weights[:10] = 1.0
    theta = exact.solve(weights).parameters
    expected = exact.influence(theta, weights).scores
    problem = NetworkProblem(
        model=model, inputs=x, targets=y, loss=per_row, train=lambda w: theta,
        series=SeriesConfig(terms=400, scale=0.5, batch=20_000, pass_batch=7, penalty=0.2),
    )  # fmt: skip
    assert problem.outer(theta) == pytest.approx(exact.outer(theta), rel=1e-12)
    torch.testing.assert_close(problem.outer_gradient(theta), torch.func.grad(exact.outer_loss)(theta))
    found = problem.influence(theta, weights).scores
    assert np.corrcoef(found, expected)[0, 1] > 0.99  # batches of ten rows drawn with replacement: noise remains
    assert found.argmax() == expected.argmax()


def test_the_series_of_small_batches_is_unbiased():
    """The mean over seeds tends to the series with the whole Hessian."""
    model, x, y = small()
    weights = torch.ones(40, dtype=torch.float64)
    theta = supervised(model, x, y, per_row, penalty=0.2, mean=True).solve(weights).parameters
    target = torch.randn(len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def series(seed: int, batch: int) -> torch.Tensor:
        config = SeriesConfig(terms=8, scale=0.3, batch=batch, penalty=0.2, seed=seed)
        problem = NetworkProblem(model=model, inputs=x, targets=y, loss=per_row, train=lambda w: theta, series=config)
        return problem.inverse_product(theta, weights, target)

    few = torch.stack([series(seed, 4) for seed in range(60)])
    H = torch.autograd.functional.hessian(
        lambda t: per_row(torch.func.functional_call(model, unflatten(model, t), (x,)), y).mean(), theta
    ) + 0.2 * torch.eye(len(theta), dtype=torch.float64)
    exact, term = torch.zeros_like(target), target
    for _ in range(8):
        exact, term = exact + 0.3 * term, term - 0.3 * H @ term
    error = (few.mean(0) - exact).norm() / exact.norm()
    spread = few.std(0).norm() / exact.norm() / 60**0.5
    assert error < 3 * spread and error < 0.1


def unflatten(model: torch.nn.Module, theta: torch.Tensor) -> dict[str, torch.Tensor]:
    sizes = [value.numel() for value in model.parameters()]
    parts = theta.split(sizes)
    return {name: part.view_as(value) for (name, value), part in zip(model.named_parameters(), parts, strict=True)}


def test_a_series_that_diverges_is_refused_with_what_to_do():
    model, x, y = small()
    series = SeriesConfig(terms=200, scale=1e6, batch=8)
    problem = NetworkProblem(
        model=model, inputs=x, targets=y, loss=per_row, train=lambda w: torch.zeros(31), series=series
    )
    theta = torch.randn(31, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="use a smaller one"):
        problem.inverse_product(theta, torch.ones(40), torch.ones(31, dtype=torch.float64))


def test_a_coreset_of_a_wide_resnet_grows_in_batches_without_a_full_gradient():
    """WRN-10-1, 78 thousand parameters, with batch normalization: rows of the rarer pattern are found."""
    rng = np.random.default_rng(0)
    y = (np.arange(60) % 6 == 0).astype(np.int64)  # every sixth picture has the second pattern
    grid = np.mgrid[:8, :8]
    pictures = np.where(y[:, None, None] == 1, np.sin(2.0 * grid[0]), np.sin(2.0 * grid[1]))
    x = torch.from_numpy((pictures + 0.3 * rng.standard_normal((60, 8, 8))).astype(np.float32))[:, None]
    targets = torch.from_numpy(y)
    model = WideResNet(10, 1, 1, 2)
    draw_weights(model, torch.Generator().manual_seed(0))
    train = sgd(model, x, targets, per_row, Sgd(steps=8, batch=8, learning_rate=0.05))
    problem = NetworkProblem(
        model=model, inputs=x, targets=targets, loss=per_row, train=train,
        series=SeriesConfig(terms=10, scale=0.05, batch=8, pass_batch=20),
    )  # fmt: skip
    common = np.flatnonzero(y == 0)[:4].tolist()
    subset = forward(problem, 8, start=common, batch=2)
    assert len(set(subset.rows.tolist())) == 8
    assert y[subset.rows[4:6]].tolist() == [1, 1]  # a model trained on one class improves most with the other
    assert subset.outer[8] < subset.outer[4]
