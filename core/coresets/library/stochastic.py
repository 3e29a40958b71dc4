"""Implicit gradients of networks whose Hessian and gradients need minibatches (Borsos et al., 2021, Section 5.2.3).

    v      = alpha sum_{j < T} (I - alpha H_j)^j grad g,    H_j: the inner Hessian on a new minibatch for each j
    score  = s * grad l_i^T v  for every row, in minibatches

The three costs of Table 8 are the three methods: the outer gradient, the Neumann series, the row derivatives. Memory is
that of one minibatch and four vectors of parameters, for any number of rows. Every term of the series is unbiased:
the expectation of a product of independent factors is the product of their expectations.

The caller provides the training: `train(weights) -> theta` may use any schedule, augmentation or batch normalization.
The paper trains from scratch after every batch of rows. `sgd` is a plain implementation. Normalization layers are in
evaluation mode when influences are taken, so that a row's loss does not depend on the rest of its minibatch.

Symbols: theta flat parameters (p,); alpha = `scale`, below 2 / lambda_max of H for the series to converge; T = `terms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from core.coresets.library.implicit import Influence, Inner, directional_derivatives, flat_model
from core.errors import InvalidInput

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (k, ...), targets (k, ...)) -> (k,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesConfig:
    """The stochastic Neumann series."""

    terms: int = 100
    scale: float = 0.1  # alpha
    batch: int = 128  # rows of a Hessian product
    pass_batch: int = 256  # rows of a gradient or of row derivatives at a time
    penalty: float = 5e-4  # of the inner loss, penalty/2 |theta|^2
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class NetworkProblem:
    """A bilevel problem over rows of a torch module; see the module docstring."""

    model: torch.nn.Module
    inputs: Tensor  # (n, ...)
    targets: Tensor  # (n, ...)
    loss: Loss
    train: Callable[[Tensor], Tensor]  # weights (n,) -> theta (p,)
    series: SeriesConfig = SeriesConfig()

    def __post_init__(self) -> None:
        self.model.eval()

    @property
    def n_rows(self) -> int:
        return len(self.inputs)

    def solve(self, weights: Tensor, start: Tensor | None = None) -> Inner:
        """The caller's training. Its convergence cannot be checked, so a finite result counts as converged."""
        theta = self.train(weights)
        self.model.eval()
        return Inner(theta, bool(torch.isfinite(theta).all()))

    def outer(self, parameters: Tensor) -> float:
        predict, _ = flat_model(self.model)
        with torch.no_grad():
            parts = [self.loss(predict(parameters, x), y).sum() for x, y in self._passes()]
        return float(sum(parts)) / self.n_rows

    def influence(self, parameters: Tensor, weights: Tensor) -> Influence:
        theta = parameters.detach()
        solved = self.inverse_product(theta, weights, self.outer_gradient(theta))
        return Influence(self.row_derivatives(theta, solved) / max(int((weights > 0).sum()), 1), True)

    def outer_gradient(self, theta: Tensor) -> Tensor:
        """(p,) of the mean loss over all rows."""
        predict, _ = flat_model(self.model)
        total = torch.zeros_like(theta)
        for x, y in self._passes():
            total += torch.func.grad(lambda t, x=x, y=y: self.loss(predict(t, x), y).sum())(theta)
        return total / self.n_rows

    def inverse_product(self, theta: Tensor, weights: Tensor, target: Tensor) -> Tensor:
        """About (H + penalty I)^-1 target, H that of the weighted mean loss over the rows with weight."""
        predict, _ = flat_model(self.model)
        rows = torch.nonzero(weights).flatten()
        generator = torch.Generator().manual_seed(self.series.seed)
        term, total = target, torch.zeros_like(target)
        for _ in range(self.series.terms):
            total = total + self.series.scale * term
            chosen = rows[torch.randint(len(rows), (min(self.series.batch, len(rows)),), generator=generator)]
            x, y, w = self.inputs[chosen], self.targets[chosen], weights[chosen].to(theta)

            def loss(t: Tensor, x: Tensor = x, y: Tensor = y, w: Tensor = w) -> Tensor:
                return (w * self.loss(predict(t, x), y)).mean()

            product = torch.func.vjp(torch.func.grad(loss), theta)[1](term)[0] + self.series.penalty * term
            term = term - self.series.scale * product
        if not torch.isfinite(total).all():
            raise InvalidInput(
                f"The Neumann series diverges at a scale of {self.series.scale}; use a smaller one: it must stay below "
                "2 over the largest eigenvalue of the Hessian."
            )
        return total

    def row_derivatives(self, theta: Tensor, direction: Tensor) -> Tensor:
        """(n,) grad l_i(theta)^T direction."""
        predict, _ = flat_model(self.model)
        found = []
        for x, y in self._passes():

            def losses(t: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
                return self.loss(predict(t, x), y)

            found.append(directional_derivatives(losses, theta, direction).detach())
        return torch.cat(found)

    def _passes(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.series.pass_batch
        return zip(self.inputs.split(size), self.targets.split(size), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """SGD with momentum, a cosine rate and the paper's weight decay and first rate (Appendix C), from the same start
    every time. The paper does not say which momentum; this is Nesterov's with 0.9."""

    steps: int
    batch: int = 64
    learning_rate: float = 0.1
    momentum: float = 0.9
    penalty: float = 5e-4
    seed: int = 0


def sgd(model: torch.nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, config: Sgd) -> Callable[[Tensor], Tensor]:
    """`train` for `NetworkProblem`: weights (n,) -> theta (p,), with batch normalization in training mode."""
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def train(weights: Tensor) -> Tensor:
        model.load_state_dict(start)
        model.train()
        rows = torch.nonzero(weights).flatten()
        generator = torch.Generator().manual_seed(config.seed)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config.learning_rate, momentum=config.momentum, nesterov=True,
            weight_decay=config.penalty,
        )  # fmt: skip
        for step in range(config.steps):
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * 0.5 * (1 + math.cos(math.pi * step / config.steps))
            chosen = rows[torch.randint(len(rows), (min(config.batch, len(rows)),), generator=generator)]
            optimizer.zero_grad()
            (weights[chosen].to(inputs) * loss(model(inputs[chosen]), targets[chosen])).mean().backward()
            optimizer.step()
        model.eval()
        return flat_model(model)[1]

    return train
