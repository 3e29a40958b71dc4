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

from core.coresets.solvers import Operator, Point


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) CE(Y_i, softmax(logits_i)) for logits and soft targets (C, N)."""
    return torch.logsumexp(logits, 0) * targets.sum(0) - (targets * logits).sum(0)


def curvature_product(P: Tensor, S: Tensor) -> Tensor:
    """(diag(p) - p p^T) s for every column: the Hessian of the cross-entropy in the logits. P, S: (C, N)."""
    return P * (S - (P * S).sum(0, keepdim=True))


@dataclass(frozen=True, slots=True)
class SoftmaxRegression:
    """F above as a function that `truncated_newton` can minimize.

    `inverse_gram` (r, r), where given, approximates the inverse of each class's block of H; see `typical_gram`.
    """

    features: Tensor  # X (N, r)
    targets: Tensor  # Y (C, N)
    penalty: float
    scale: float
    weights: Tensor | None = None  # w (N,)
    inverse_gram: Tensor | None = None

    def value(self, W: Tensor) -> Tensor:
        """() F(W), the objective at weights W (C, r)."""
        return self._value(W @ self.features.T, W)

    def _value(self, logits: Tensor, W: Tensor) -> Tensor:
        losses = cross_entropy(logits, self.targets)
        total = losses.sum() if self.weights is None else (losses * self.weights).sum()
        return self.scale * total + 0.5 * self.penalty * (W * W).sum()

    def at(self, W: Tensor) -> Point:
        logits = W @ self.features.T
        P = torch.softmax(logits, 0)
        gradient = self._weighted(P - self.targets) @ self.features + self.penalty * W
        return Point(self._value(logits, W), gradient, self.hessian(P), self.preconditioner())

    def hessian(self, P: Tensor) -> Operator:
        """V -> H V at the weights whose probabilities are P (C, N)."""

        def product(V: Tensor) -> Tensor:
            S = V @ self.features.T
            return self._weighted(curvature_product(P, S)) @ self.features + self.penalty * V

        return product

    def typical_gram(self, P: Tensor) -> Tensor:
        """(r, r) X^T diag(w_i s_i) X, where s_i is the mean of p (1 - p) over classes at probabilities P (C, N).

        The data's part of a class's block of H, with the class's own p (1 - p) replaced by their mean.
        """
        typical = (P * (1 - P)).mean(0)
        if self.weights is not None:
            typical = typical * self.weights
        return self.features.T @ (self.features * typical.unsqueeze(1))

    def preconditioner(self) -> Operator | None:
        inverse = self.inverse_gram
        return None if inverse is None else lambda V: V @ inverse

    def _weighted(self, columns: Tensor) -> Tensor:
        return columns * (self.scale if self.weights is None else self.scale * self.weights)


def inverse_gram(gram: Tensor, scale: float, penalty: float) -> Tensor:
    """(scale * gram + penalty I)^-1 for a positive semi-definite gram (r, r), by Cholesky, for preconditioning.

    The diagonal is raised by the rounding of the largest entry, so that a gram whose small eigenvalues rounded to
    below -penalty is still factorized; a preconditioner may be approximate.
    """
    shifted = scale * gram
    diagonal = shifted.diagonal()
    rounding = torch.finfo(gram.dtype).eps * len(gram) * diagonal.max() if len(gram) else 0.0
    diagonal.add_(penalty + rounding)
    return torch.cholesky_inverse(torch.linalg.cholesky(shifted))
