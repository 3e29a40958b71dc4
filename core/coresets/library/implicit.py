"""Implicit gradients of bilevel problems, for any twice-differentiable torch model and loss (Borsos et al., 2021).

    inner   theta*(w) = argmin_theta  f(theta, w) = s * sum_i w_i l_i(theta) + r(theta)
    outer   G(w)      = g(theta*(w))
    implicit function theorem   dG/dw_i = -s * grad l_i(theta*)^T H^-1 grad g(theta*),   H = d^2 f / d theta^2

`influence_i = -dG/dw_i` is the decrease of the outer loss per unit of weight of row i: higher = wanted more, and the
row that Algorithm 1 adds is its argmax (Proposition 1). H^-1 is applied by conjugate gradients, or by the truncated,
scaled Neumann series  alpha * sum_{j < T} (I - alpha H)^j b  with alpha just below 1 / lambda_max(H).

Every construction of this package (weighted, variants, regularized, joint, streaming, replay) uses a
`BilevelProblem`: three methods, for any model. `ModelProblem` here is the general one, by automatic differentiation;
`linear.SoftmaxProblem`, `mixtures.MixtureProblem` and `dictionary.RecoveryProblem` are closed forms. Rounds use
`bilevel.py`, which is unweighted and optimized for kernel features.

Symbols: n rows; w weights (n,), theta parameters, flat (p,); s = 1, or 1 / (number of rows with weight) when `mean`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from core.coresets.solvers import Operator, Solved, conjugate_gradient


@dataclass(frozen=True, slots=True)
class Inner:
    """The result of the inner solver. Only the problem interprets `parameters`."""

    parameters: Any
    converged: bool


@dataclass(frozen=True, slots=True)
class Influence:
    """(n,) -dG/dw for every row, also those with weight 0, and whether H^-1 was applied to its tolerance."""

    scores: Tensor
    converged: bool


class BilevelProblem(Protocol):
    """A bilevel problem over n rows. Weights are (n,) and not negative; a row of weight 0 is left out."""

    @property
    def n_rows(self) -> int: ...

    def solve(self, weights: Tensor, start: Any = None) -> Inner:
        """theta*(weights), from `start` (earlier parameters) when given."""
        ...

    def outer(self, parameters: Any) -> float:
        """g(theta), the outer loss at the parameters that `solve` gave."""
        ...

    def influence(self, parameters: Any, weights: Tensor) -> Influence:
        """-dG/dw at parameters = theta*(weights)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseConfig:
    """How H^-1 is applied. `damping` is added to H where the inner problem is not convex."""

    method: Literal["cg", "neumann"] = "cg"
    tolerance: float = 1e-8
    max_steps: int = 200  # conjugate-gradient steps, or terms of the series
    damping: float = 0.0


def neumann_series(product: Operator, target: Tensor, *, max_steps: int, tolerance: float = 0.0) -> Solved:
    """alpha * sum_j (I - alpha H)^j target for a positive definite H, alpha = 0.95 / lambda_max by power iteration.

    The residual of the partial sum is the next term over alpha, so it needs no further product.
    """
    alpha = 0.95 / largest_eigenvalue(product, target)
    total, term, scale = torch.zeros_like(target), target, float(target.norm())
    relative, steps = 1.0, 0
    while relative > tolerance and steps < max_steps:
        total = total + alpha * term
        term = term - alpha * product(term)
        relative = float(term.norm()) / max(scale, torch.finfo(target.dtype).tiny)
        steps += 1
    return Solved(total, steps, relative <= tolerance, relative, products=steps)


def largest_eigenvalue(product: Operator, like: Tensor, steps: int = 20) -> float:
    """lambda_max of a positive semi-definite operator, from below and to a few per cent: power iteration."""
    generator = torch.Generator(device=like.device).manual_seed(0)
    vector = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    value = 0.0
    for _ in range(steps):
        vector = vector / vector.norm().clamp_min(torch.finfo(like.dtype).tiny)
        image = product(vector)
        value, vector = float(image.norm()), image
    return max(value, torch.finfo(like.dtype).tiny)


def hessian_product(loss: Callable[[Tensor], Tensor], theta: Tensor) -> Operator:
    """v -> H v at theta. H is symmetric, so a vector-Jacobian product gives it, and all calls reuse one recorded
    graph."""
    transposed = torch.func.vjp(torch.func.grad(loss), theta)[1]
    return lambda v: transposed(v)[0]


def directional_derivatives(losses: Callable[[Tensor], Tensor], theta: Tensor, direction: Tensor) -> Tensor:
    """(n,) grad l_i(theta)^T direction for all rows at once: the pull-back u -> J^T u is linear, its transpose is J."""
    values, pull_back = torch.func.vjp(losses, theta)[:2]
    push = torch.func.vjp(lambda u: pull_back(u)[0], torch.zeros_like(values))[1]
    derivatives: Tensor = push(direction)[0]
    return derivatives


def apply_inverse(product: Operator, target: Tensor, config: InverseConfig) -> Solved:
    """(H + damping I)^-1 target by the configured method."""

    def damped(v: Tensor) -> Tensor:
        return product(v) + config.damping * v

    if config.method == "neumann":
        return neumann_series(damped, target, max_steps=config.max_steps, tolerance=config.tolerance)
    return conjugate_gradient(damped, target, tolerance=config.tolerance, max_steps=config.max_steps)


RowLosses = Callable[[Tensor, Tensor], Tensor]
"""(theta (p,), rows (k,) int64) -> (k,) inner losses of those rows."""


@dataclass(slots=True, kw_only=True)
class ModelProblem:
    """A bilevel problem given by its losses as functions of flat parameters; see `supervised` for torch modules."""

    n: int
    row_losses: RowLosses
    outer_loss: Callable[[Tensor], Tensor]  # theta -> ()
    initial: Tensor  # theta (p,), the start if there is no earlier solution
    penalty: float = 0.0  # of the default regularizer penalty/2 |theta|^2
    regularizer: Callable[[Tensor], Tensor] | None = None  # replaces the default regularizer
    mean: bool = False
    inverse: InverseConfig = InverseConfig()
    solver_tolerance: float = 1e-8  # on the largest entry of the inner gradient
    solver_steps: int = 200

    @property
    def n_rows(self) -> int:
        return self.n

    def inner_loss(self, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """theta -> f(theta, weights), over the rows that have weight."""
        rows = torch.nonzero(weights).flatten()
        w = weights[rows] / max(len(rows), 1) if self.mean else weights[rows]

        def loss(theta: Tensor) -> Tensor:
            return (w * self.row_losses(theta, rows)).sum() + self._regularize(theta)

        return loss

    def _regularize(self, theta: Tensor) -> Tensor:
        return 0.5 * self.penalty * (theta * theta).sum() if self.regularizer is None else self.regularizer(theta)

    def solve(self, weights: Tensor, start: Tensor | None = None) -> Inner:
        loss = self.inner_loss(weights)
        if start is not None and (near := self._polish(loss, start.detach())).converged:
            return near
        theta = (self.initial if start is None else start).detach().clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS(
            [theta],
            max_iter=self.solver_steps,
            tolerance_grad=self.solver_tolerance,
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(theta)
            value.backward()
            return value

        optimizer.step(closure)
        return self._polish(loss, theta.detach())

    def _polish(self, loss: Callable[[Tensor], Tensor], theta: Tensor) -> Inner:
        """Newton steps while they lower the gradient: a line search on values is limited by their rounding."""
        gradient = torch.func.grad(loss)(theta)
        for _ in range(5):
            if gradient.abs().max() <= self.solver_tolerance:
                break
            step = conjugate_gradient(hessian_product(loss, theta), gradient, tolerance=1e-4, max_steps=200).value
            closer = torch.func.grad(loss)(theta - step)
            if not closer.norm() < 0.5 * gradient.norm():
                break
            theta, gradient = theta - step, closer
        return Inner(theta, bool(gradient.abs().max() <= self.solver_tolerance))

    def outer(self, parameters: Tensor) -> float:
        with torch.no_grad():
            return float(self.outer_loss(parameters))

    def influence(self, parameters: Tensor, weights: Tensor) -> Influence:
        theta = parameters.detach()
        gradient = torch.func.grad(self.outer_loss)(theta)
        solved = apply_inverse(hessian_product(self.inner_loss(weights), theta), gradient, self.inverse)
        everyone = torch.arange(self.n, device=theta.device)
        scale = 1.0 / max(int((weights > 0).sum()), 1) if self.mean else 1.0
        slopes = directional_derivatives(lambda t: self.row_losses(t, everyone), theta, solved.value)
        return Influence(scale * slopes, solved.converged)


Predict = Callable[[Tensor, Tensor], Tensor]
"""(theta (p,), inputs (k, ...)) -> outputs (k, ...)."""


def flat_model(model: torch.nn.Module) -> tuple[Predict, Tensor]:
    """A torch module as a function of one flat parameter vector, with its current parameters. Buffers do not change."""
    named = {name: value.detach() for name, value in model.named_parameters()}
    sizes = [value.numel() for value in named.values()]

    def predict(theta: Tensor, inputs: Tensor) -> Tensor:
        parts = zip(named.items(), theta.split(sizes), strict=True)
        parameters = {name: part.view_as(value) for (name, value), part in parts}
        outputs: Tensor = torch.func.functional_call(model, parameters, (inputs,))
        return outputs

    return predict, torch.cat([value.flatten() for value in named.values()])


def supervised(
    model: torch.nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    penalty: float,
    **settings: Any,
) -> ModelProblem:
    """Train `model` on weighted rows so that the mean loss over all rows is small.

    `loss(outputs, targets)` gives one value per row; inputs (n, ...), targets (n, ...). The model should be in
    evaluation mode and smooth (tanh, softplus, ELU): H ignores kinks. `settings` go to `ModelProblem`.
    """
    predict, initial = flat_model(model)

    def row_losses(theta: Tensor, rows: Tensor) -> Tensor:
        return loss(predict(theta, inputs[rows]), targets[rows])

    def outer_loss(theta: Tensor) -> Tensor:
        return loss(predict(theta, inputs), targets).mean()

    return ModelProblem(
        n=len(inputs), row_losses=row_losses, outer_loss=outer_loss, initial=initial, penalty=penalty, **settings
    )
