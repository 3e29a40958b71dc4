"""A two-level preconditioner for Newton systems of softmax regression.

    M^-1 = (H_UU)^-1 on the axes U, and D^-1, projected, on their orthogonal complement, the same for every class
    H_UU = scale * sum_i (diag(p_i) - p_i p_i^T) (x) U^T x_i x_i^T U + penalty I
    D    = the diagonal of scale * X'^T diag(s) X' + penalty I,   X' = X (I - U U^T),   s_i the mean of p (1 - p) over
           classes

The Hessian couples classes through softmax and directions through the rows. In the few directions in which the rows are
large, the exact inverse is cheap: k axes of C classes give a dense matrix of C k rows, at most `DENSE`. In the other
directions the coordinates are close to principal ones (`core.coresets.span`) or the penalty outweighs the curvature, so
the diagonal is sufficient. The axes approximate the leading eigenvectors of X^T diag(s) X by subspace iteration. M is
positive definite for any approximation.

Symbols: X rows (N, r); P probabilities (C, N); U axes (r, k), orthonormal; V (C, r).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.coresets.products import matmul

DENSE = 200  # rows of the dense matrix at most
ITERATIONS = 2
ROWS = 400  # a sample of so many rows suffices for a preconditioner


@dataclass(frozen=True, slots=True)
class TwoLevel:
    """V -> M^-1 V."""

    axes: Tensor  # U (r, k)
    coupled: Tensor  # (C k, C k) inverse of H_UU
    alike: Tensor  # (r,) inverse of D

    @classmethod
    def at(cls, X: Tensor, P: Tensor, scale: float, penalty: float) -> TwoLevel:
        """At probabilities P (C, N) of rows X (N, r), from a part of the rows where they are many."""
        part = X
        if len(X) > ROWS:
            rows = torch.linspace(0, len(X) - 1, ROWS, device=X.device).long()
            part, P, scale = X[rows], P[:, rows], scale * len(X) / ROWS
        curved = part * typical_curvature(P).sqrt().unsqueeze(1)
        axes = leading_axes(curved, min(X.shape[1], DENSE // max(len(P), 1)))
        rest = torch.addmm(curved, curved @ axes, axes.T, alpha=-1)
        alike = 1.0 / (scale * rest.square().sum(0) + penalty)
        return cls(axes, inverse_gram(coupled_gram(part @ axes, P), scale, penalty), alike)

    def __call__(self, V: Tensor) -> Tensor:
        strong = V @ self.axes
        weak = torch.addmm(V, strong, self.axes.T, alpha=-1).mul_(self.alike)
        strong = (self.coupled @ strong.flatten()).view_as(strong)
        return weak.addmm_(strong.addmm_(weak, self.axes, alpha=-1), self.axes.T)


def typical_curvature(P: Tensor) -> Tensor:
    """(N,) the mean of p (1 - p) over classes at probabilities P (C, N)."""
    return (P * (1 - P)).mean(0)


def leading_axes(rows: Tensor, k: int) -> Tensor:
    """(r, k) orthonormal, close to the leading eigenvectors of rows^T rows for rows (n, r).

    Subspace iteration from the k coordinates in which the rows are largest.
    """
    axes = rows.T @ rows[:, torch.topk(rows.square().sum(0), k).indices]
    for _ in range(ITERATIONS):
        axes = rows.T @ (rows @ torch.linalg.qr(axes)[0])
    orthonormal: Tensor = torch.linalg.qr(axes)[0]
    return orthonormal


def coupled_gram(rows: Tensor, P: Tensor) -> Tensor:
    """(C k, C k) sum_i (diag(p_i) - p_i p_i^T) (x) u_i u_i^T for rows u (N, k), probabilities P (C, N)."""
    (n, k), n_classes = rows.shape, len(P)
    weighted = (P.unsqueeze(1) * rows.T).reshape(n_classes * k, n)
    gram = -matmul(weighted, weighted.T)
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
