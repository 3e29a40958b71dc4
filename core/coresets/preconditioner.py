"""A preconditioner in two levels for Newton systems of softmax regression.

    M^-1 = (H_UU)^-1 on the axes U, and A^-1 on what is orthogonal to them, alike for every class
    H_UU = scale * sum_i (diag(p_i) - p_i p_i^T) (x) U^T x_i x_i^T U + penalty I
    A    = scale * X^T diag(s) X + penalty I,   s_i the mean of p (1 - p) over classes

The Hessian couples classes through softmax. A alone ignores that, and conjugate gradients spend their steps on the
coupling in the few directions in which the rows are strong. There it is cheap to be exact: k axes of C classes make a
dense matrix of C k rows, at most `DENSE`. Where the penalty outweighs the curvature, A is good enough. The axes are the
leading eigenvectors of A, by subspace iteration; M is positive definite however close they came.

Symbols: X rows (N, r); P probabilities (C, N); U axes (r, k), orthonormal; V (C, r).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DENSE = 200  # rows of the dense matrix at most
ITERATIONS = 2
ROWS_PER_DIRECTION = 3  # are enough for a preconditioner


@dataclass(frozen=True, slots=True)
class TwoLevel:
    """V -> M^-1 V."""

    axes: Tensor  # U (r, k)
    coupled: Tensor  # (C k, C k) inverse of H_UU
    alike: Tensor  # (r, r) A^-1 on what is orthogonal to U, 0 on U

    @classmethod
    def at(cls, X: Tensor, P: Tensor, scale: float, penalty: float) -> TwoLevel:
        """At probabilities P (C, N) of rows X (N, r), from a part of the rows where they are many."""
        every = max(1, len(X) // (ROWS_PER_DIRECTION * max(X.shape[1], 1)))
        X, P, scale = X[::every], P[:, ::every], scale * len(X) / len(X[::every])
        gram = X.T @ (X * typical_curvature(P).unsqueeze(1))
        axes = leading_axes(gram, min(len(gram), DENSE // max(len(P), 1)))
        alike = inverse_gram(gram, scale, penalty)
        alike = alike - axes @ (axes.T @ alike)
        alike = alike - (alike @ axes) @ axes.T
        return cls(axes, inverse_gram(coupled_gram(X @ axes, P), scale, penalty), alike)

    def __call__(self, V: Tensor) -> Tensor:
        strong = V @ self.axes
        return V @ self.alike + (self.coupled @ strong.flatten()).view_as(strong) @ self.axes.T


def typical_curvature(P: Tensor) -> Tensor:
    """(N,) the mean of p (1 - p) over classes at probabilities P (C, N)."""
    return (P * (1 - P)).mean(0)


def leading_axes(gram: Tensor, k: int) -> Tensor:
    """(r, k) orthonormal, close to the leading eigenvectors of a positive semi-definite gram (r, r).

    Subspace iteration from the k columns with the largest diagonal.
    """
    axes = gram[:, torch.topk(gram.diagonal(), k).indices]
    for _ in range(ITERATIONS):
        axes = gram @ torch.linalg.qr(axes)[0]
    orthonormal: Tensor = torch.linalg.qr(axes)[0]
    return orthonormal


def coupled_gram(rows: Tensor, P: Tensor) -> Tensor:
    """(C k, C k) sum_i (diag(p_i) - p_i p_i^T) (x) u_i u_i^T for rows u (N, k), probabilities P (C, N)."""
    (n, k), n_classes = rows.shape, len(P)
    weighted = (P.unsqueeze(1) * rows.T).reshape(n_classes * k, n)
    gram = -(weighted @ weighted.T)
    own = (weighted @ rows).reshape(n_classes, k, k)
    gram.view(n_classes, k, n_classes, k).diagonal(dim1=0, dim2=2).add_(own.permute(1, 2, 0))
    return gram


def inverse_gram(gram: Tensor, scale: float, penalty: float) -> Tensor:
    """(scale * gram + penalty I)^-1 for a positive semi-definite gram, by Cholesky, for preconditioning.

    The diagonal is raised by the rounding of the largest entry, so that a gram whose small eigenvalues rounded to
    below -penalty is still factorized; a preconditioner may be approximate.
    """
    shifted = scale * gram
    diagonal = shifted.diagonal()
    rounding = torch.finfo(gram.dtype).eps * len(gram) * diagonal.max() if len(gram) else 0.0
    diagonal.add_(penalty + rounding)
    return torch.cholesky_inverse(torch.linalg.cholesky(shifted))
