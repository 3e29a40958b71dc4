"""Softmax regression on fixed features as a bilevel problem, in closed form; binary logistic regression is two classes.

    inner   f(W, w) = s * sum_i w_i CE(Y_i, softmax(W x_i)) + penalty/2 |W|^2
    outer   g(W)    = sum_i v_i CE(Y_i, softmax(W x_i)) / sum_i v_i  over the rows and, where given, the validation rows
    influence_i     = s * <V x_i, P_i - Y_i>,   V = H^-1 dg/dW

With fewer rows in the inner problem than features, W* is a combination of those rows (representer theorem), so the
inner problem is solved in an orthonormal basis Q of them; H outside that span is the penalty alone. With the factor of
a kernel matrix as features this is exactly the representer proxy.

Symbols: x features (n, d), a column of ones last for a bias; Y soft targets (n, C); v outer weights (n,), all ones
unless rows represent others (streaming); W (C, d); s = 1, or 1 / (number of rows with weight) when `mean`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.coresets.library.implicit import Influence, Inner
from core.coresets.preconditioner import inverse_gram
from core.coresets.softmax import SoftmaxRegression, cross_entropy
from core.coresets.solvers import conjugate_gradient, truncated_newton


def one_hot(labels: Tensor, n_classes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """(n, C) of class positions (n,)."""
    return torch.nn.functional.one_hot(labels.long(), n_classes).to(dtype)


def with_bias(features: Tensor) -> Tensor:
    """(n, d + 1): a last column of ones."""
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def kernel_factor(kernel: Tensor, tolerance: float = 1e-10) -> Tensor:
    """(n, r) features x with x x^T = kernel (n, n), in float64; directions below tolerance * largest are dropped."""
    values, vectors = torch.linalg.eigh(kernel.double())
    keep = values > tolerance * values[-1]
    factor: Tensor = vectors[:, keep] * values[keep].sqrt()
    return factor


@dataclass(slots=True, kw_only=True)
class SoftmaxProblem:
    """See the module. Arithmetic is in the precision of `features`."""

    features: Tensor  # (n, d)
    targets: Tensor  # (n, C)
    penalty: float
    mean: bool = False
    outer_weights: Tensor | None = None  # v (n,)
    validation: tuple[Tensor, Tensor] | None = None  # (k, d), (k, C) rows of the outer loss alone, each with v = 1
    tolerance: float = 1e-6  # of the inner gradient, relative to that at W = 0; of H^-1, relative to its target
    max_steps: int = 200

    @property
    def n_rows(self) -> int:
        return len(self.features)

    def _scale(self, n_support: int) -> float:
        return 1.0 / max(n_support, 1) if self.mean else 1.0

    def _reduced(self, weights: Tensor, W: Tensor) -> tuple[SoftmaxRegression, Tensor | None]:
        """The inner problem over the rows with weight, and its basis Q (r, d); None: all directions."""
        rows = torch.nonzero(weights).flatten()
        X, w = self.features[rows], weights[rows].to(self.features.dtype)
        basis = None
        if len(rows) < X.shape[1]:
            basis = torch.linalg.qr(X.T).Q.T.contiguous()
            X = X @ basis.T
            W = W @ basis.T
        scale = self._scale(len(rows))
        P = torch.softmax(W @ X.T, 0)
        curvature = float((P * (1 - P) * w).mean() / w.mean())
        inverse = inverse_gram((X * w[:, None]).T @ X, max(curvature, 1e-3) * scale, self.penalty)
        return SoftmaxRegression(X, self.targets[rows].T, self.penalty, scale, w, lambda V: V @ inverse), basis

    def solve(self, weights: Tensor, start: Tensor | None = None) -> Inner:
        d, C = self.features.shape[1], self.targets.shape[1]
        W = self.features.new_zeros(C, d) if start is None else start
        regression, basis = self._reduced(weights, W)
        W = W if basis is None else W @ basis.T
        first = float(regression.at(torch.zeros_like(W)).gradient.norm())
        solved = truncated_newton(regression, W, tolerance=self.tolerance * first, max_inner_steps=self.max_steps)
        found = solved.value if basis is None else solved.value @ basis
        return Inner(found, solved.converged)

    def _outer_share(self) -> Tensor:
        v = self.features.new_ones(self.n_rows) if self.outer_weights is None else self.outer_weights
        return (v / v.sum()).to(self.features.dtype)

    def _outer_parts(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Features, targets and shares of the outer loss: of the rows, then of the validation rows."""
        share = self._outer_share()
        if self.validation is None:
            return [(self.features, self.targets, share)]
        features, targets = self.validation
        v = self.n_rows if self.outer_weights is None else float(self.outer_weights.sum())
        total = v + len(features)
        ours = (self.features, self.targets, share * (v / total))
        return [ours, (features, targets, features.new_full((len(features),), 1 / total))]

    def outer(self, parameters: Tensor) -> float:
        parts = [(s * cross_entropy(parameters @ X.T, Y.T)).sum() for X, Y, s in self._outer_parts()]
        return float(sum(parts))

    def influence(self, parameters: Tensor, weights: Tensor) -> Influence:
        """Of every row, at the solution `parameters` of `weights`; without any row that solution is 0."""
        X = self.features
        residual = torch.softmax(parameters @ X.T, 0) - self.targets.T  # (C, n)
        parts = [((torch.softmax(parameters @ Z.T, 0) - Y.T) * s) @ Z for Z, Y, s in self._outer_parts()]
        gradient = torch.stack(parts).sum(0)
        if not bool(weights.any()):  # the penalty alone
            return Influence(self._scale(0) / self.penalty * ((gradient @ X.T) * residual).sum(0), True)
        regression, basis = self._reduced(weights, parameters)
        inside = gradient if basis is None else gradient @ basis.T
        W = parameters if basis is None else parameters @ basis.T
        P = torch.softmax(W @ regression.features.T, 0)
        solved = conjugate_gradient(
            regression.hessian(P),
            inside,
            precondition=regression.precondition,
            tolerance=self.tolerance,
            max_steps=self.max_steps,
        )
        V = solved.value
        if basis is not None:
            V = V @ basis + (gradient - inside @ basis) / self.penalty
        scale = self._scale(int((weights > 0).sum()))
        return Influence(scale * ((V @ X.T) * residual).sum(0), solved.converged)

    def accuracy(self, parameters: Tensor, features: Tensor, labels: Tensor) -> float:
        """Share of rows (k, d) whose most probable class is their label (k,)."""
        return float(((features @ parameters.T).argmax(1) == labels).double().mean())
