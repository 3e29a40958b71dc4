"""Conjugate gradients and truncated Newton, for parameters of any shape, that report whether they converged.

`conjugate_gradient` solves H v = b from products with H alone. `truncated_newton` minimizes a smooth convex function by
Newton steps whose systems are solved by conjugate gradients, loosely far from the optimum and tightly near it, with a
backtracking line search. Both use the device and the precision of their inputs. On CUDA a comparison
with a tolerance requires a synchronization, so conjugate gradients check the residual only every few steps there.

A result has the value, the number of steps, the residual, and `converged`. The caller decides what to do with a result
that has not converged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Operator = Callable[[Tensor], Tensor]
"""A linear map from parameters to parameters of the same shape."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The result of a solver."""

    value: Tensor
    steps: int  # conjugate-gradient steps, or Newton steps
    converged: bool
    residual: float  # |H v - b| / |b|, or the norm of the gradient
    products: int = 0  # Hessian products spent


@dataclass(frozen=True, slots=True)
class Point:
    """A smooth function around one set of parameters."""

    value: Tensor  # () the function
    gradient: Tensor  # as the parameters
    product: Operator  # V -> H V
    precondition: Operator | None = None  # an approximation of V -> H^-1 V


class Smooth(Protocol):
    """A function with its derivatives."""

    def at(self, parameters: Tensor) -> Point: ...


def conjugate_gradient(
    product: Operator,
    target: Tensor,
    *,
    start: Tensor | None = None,
    precondition: Operator | None = None,
    tolerance: float = 1e-6,
    max_steps: int = 100,
) -> Solved:
    """Solve H v = target for a symmetric positive definite H; stops when |H v - target| <= tolerance * |target|.

    v and target have the same shape; `product(v)` is H v and `precondition(r)` an approximation of H^-1 r.
    """
    every = 10 if target.is_cuda else 1
    value = torch.zeros_like(target) if start is None else start
    residual = target.clone() if start is None else target - product(value)
    scale = target.norm()
    products = 0 if start is None else 1
    relative = _relative(residual, scale)
    if relative <= tolerance:
        return Solved(value, 0, True, relative, products)
    state = (value, residual, *_first_direction(residual, precondition))
    step = 0
    for step in range(1, max_steps + 1):
        state = conjugate_gradient_step(product, precondition, *state)
        if step % every == 0 or step == max_steps:
            relative = _relative(state[1], scale)
            if relative <= tolerance:
                break
    return Solved(state[0], step, relative <= tolerance, relative, products + step)


def conjugate_gradient_step(
    product: Operator, precondition: Operator | None, value: Tensor, residual: Tensor, direction: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step, free of transfers from the device. rho = <residual, M^-1 residual>; at the solution nothing changes."""
    image = product(direction)
    curvature = (direction * image).sum()
    alpha = torch.where(curvature > 0, rho / curvature, 0.0)
    value = torch.addcmul(value, alpha, direction)
    residual = torch.addcmul(residual, alpha, image, value=-1)
    improved = residual if precondition is None else precondition(residual)
    rho_next = (residual * improved).sum()
    beta = torch.where(rho > 0, rho_next / rho, 0.0)
    return value, residual, torch.addcmul(improved, beta, direction), rho_next


def _first_direction(residual: Tensor, precondition: Operator | None) -> tuple[Tensor, Tensor]:
    direction = residual if precondition is None else precondition(residual)
    return direction, (residual * direction).sum()


def _relative(residual: Tensor, scale: Tensor) -> float:
    return float(torch.linalg.vector_norm(residual) / scale.clamp_min(torch.finfo(scale.dtype).tiny))


def truncated_newton(
    function: Smooth, start: Tensor, *, tolerance: float, max_steps: int = 50, max_inner_steps: int = 100
) -> Solved:
    """Minimize `function` from `start` until the norm of its gradient is at most `tolerance`.

    The forcing term of the k-th system is min(1/4, (|g_k| / |g_0|)^(1/2)), which gives superlinear convergence. Ends
    early, not converged, when no step along the Newton direction lowers the value by more than rounding.
    """
    parameters, point = start, function.at(start)
    norm = float(point.gradient.norm())
    first, products, step = norm, 0, 0
    while norm > tolerance and step < max_steps:
        forcing = max(min(0.25, (norm / first) ** 0.5), min(0.1, 0.3 * tolerance / norm))
        inner = conjugate_gradient(
            point.product,
            -point.gradient,
            precondition=point.precondition,
            tolerance=forcing,
            max_steps=max_inner_steps,
        )
        products += inner.products
        moved = _line_search(function, parameters, point, inner.value)
        if moved is None:
            break
        step += 1
        parameters, point = moved
        norm = float(point.gradient.norm())
    return Solved(parameters, step, norm <= tolerance, norm, products)


def _line_search(function: Smooth, parameters: Tensor, point: Point, direction: Tensor) -> tuple[Tensor, Point] | None:
    """The first of the steps 1, 1/2, 1/4 … with sufficient decrease, None when there is none.

    Sufficient is the value lowered in proportion to the slope (Armijo, 1e-4) or, near the optimum, where the value is
    all rounding, the norm of the gradient halved while the value stays.
    """
    slope = float((point.gradient * direction).sum())
    value, norm = float(point.value), float(point.gradient.norm())
    length = 1.0
    for _ in range(30):
        candidate = parameters + length * direction
        reached = function.at(candidate)
        change = float(reached.value) - value
        if change <= 1e-4 * length * slope:
            return candidate, reached
        if change <= 1e-3 * abs(value) and float(reached.gradient.norm()) <= 0.5 * norm:
            return candidate, reached
        length /= 2
    return None
