"""Softmax regression on fixed features in closed form: loss, gradient and Hessian products, class-first.

    F(W) = scale * sum_i w_i CE(Y_i, softmax(W x_i)) + penalty/2 |W|^2
    dF/dW = scale * ((P - Y) diag(w)) X + penalty * W
    H V = scale * (diag(w) (P o (S - 1 (P o S summed over classes)))) X + penalty * V,   S = V X^T

Symbols: X features (N, r); Y soft targets (C, N), each column summing to 1; w row weights (N,), None for all ones;
W, V weights (C, r); P = softmax(W X^T) over classes (C, N). Classes come first everywhere: the two products then run
over contiguous rows of X, several times faster on a CPU than the transposed layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.coresets.products import matmul
from core.coresets.solvers import Operator, Point


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) CE(Y_i, softmax(logits_i)) for logits and soft targets (C, N)."""
    return -(targets * torch.log_softmax(logits, 0)).sum(0)


def curvature_product(P: Tensor, S: Tensor) -> Tensor:
    """(diag(p) - p p^T) s for every column: the Hessian of the cross-entropy in the logits. P, S: (C, N)."""
    product = P * S
    return product.addcmul_(P, product.sum(0, keepdim=True), value=-1)


@dataclass(frozen=True, slots=True)
class SoftmaxRegression:
    """F above as a function that `truncated_newton` can minimize."""

    features: Tensor  # X (N, r)
    targets: Tensor  # Y (C, N)
    penalty: float
    scale: float
    weights: Tensor | None = None  # w (N,)
    precondition: Operator | None = None  # an approximation of V -> H^-1 V

    def value(self, W: Tensor) -> Tensor:
        """() F(W), the objective at weights W (C, r)."""
        return self._value(torch.log_softmax(W @ self.features.T, 0), W)

    def _value(self, log_P: Tensor, W: Tensor) -> Tensor:
        losses = self.targets * log_P
        total = losses.sum() if self.weights is None else (losses * self.weights).sum()
        return 0.5 * self.penalty * (W * W).sum() - self.scale * total

    def at(self, W: Tensor) -> Point:
        log_P = torch.log_softmax(matmul(W, self.features.T), 0)
        P = log_P.exp()
        gradient = self.scale * matmul(self._weighted(P - self.targets), self.features) + self.penalty * W
        return Point(self._value(log_P, W), gradient, self.hessian(P), self.precondition)

    def hessian(self, P: Tensor) -> Operator:
        """V -> H V at the weights whose probabilities are P (C, N)."""

        def product(V: Tensor) -> Tensor:
            curved = self._weighted(curvature_product(P, matmul(V, self.features.T)))
            return torch.add(self.penalty * V, matmul(curved, self.features), alpha=self.scale)

        return product

    def _weighted(self, columns: Tensor) -> Tensor:
        return columns if self.weights is None else columns * self.weights
