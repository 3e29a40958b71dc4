"""Selection of measurements from which sparse signals can be recovered (Borsos et al., 2021, eq. 13).

Given n possible linear measurements a_i of signals u_j in R^d, a subset is selected. Each signal is recovered from the
selected measurements alone, and the objective is the worst recovery:

    inner, for every signal j   z_j*(w) = argmin_z  1/2 sum_i w_i (a_i^T z - a_i^T u_j)^2 + penalty * R(z)
    R        L2: |z|^2 / 2      L1: sum_k sqrt(z_k^2 + smoothing^2), twice differentiable and |z|_1 in the limit
    outer    (1/t) log mean_j exp(t * e_j),  e_j = |z_j* - u_j|^2 / |u_j|^2:  the supremum over signals, smoothed

The Hessian is one d x d block per signal, A^T diag(w) A + penalty * R''(z_j), so everything is a batch of small dense
solves. With L1 the inner problem is solved by majorization: R is bounded by a quadratic with curvature
1 / sqrt(z_k^2 + smoothing^2) at the current z, whose minimum has a closed form, until z converges.

Symbols: A measurements (n, d); U signals (J, d); Z recovered (J, d); w (n,); t = sharpness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from core.coresets.library.implicit import Influence, Inner


@dataclass(slots=True, kw_only=True)
class RecoveryProblem:
    """See the module. `recovery` is the regularizer of the inner problem."""

    measurements: Tensor  # A (n, d)
    signals: Tensor  # U (J, d)
    recovery: Literal["l2", "l1"] = "l1"
    penalty: float = 1e-2
    smoothing: float = 1e-3
    sharpness: float = 10.0
    max_steps: int = 200
    tolerance: float = 1e-7

    @property
    def n_rows(self) -> int:
        return len(self.measurements)

    def _gram(self, weights: Tensor) -> Tensor:
        rows = torch.nonzero(weights).flatten()
        A = self.measurements[rows]
        return (A * weights[rows].to(A.dtype)[:, None]).T @ A

    def solve(self, weights: Tensor, start: Tensor | None = None) -> Inner:
        gram, identity = self._gram(weights), torch.eye(self.signals.shape[1], dtype=self.signals.dtype)
        target = self.signals @ gram  # (J, d)
        if self.recovery == "l2":
            return Inner(torch.linalg.solve(gram + self.penalty * identity, target.T).T, True)
        Z = torch.linalg.solve(gram + self.penalty * identity, target.T).T if start is None else start
        for _ in range(self.max_steps):
            bound = self.penalty * (Z * Z + self.smoothing**2).rsqrt()
            moved = torch.linalg.solve(gram + torch.diag_embed(bound), target)
            change = float((moved - Z).abs().max())
            Z = moved
            if change <= self.tolerance:
                return Inner(Z, True)
        return Inner(Z, False)

    def errors(self, parameters: Tensor) -> Tensor:
        """(J,) squared error of every recovered signal, relative to its energy."""
        return ((parameters - self.signals) ** 2).sum(1) / (self.signals**2).sum(1)

    def outer(self, parameters: Tensor) -> float:
        e = self.errors(parameters)
        return (float(torch.logsumexp(self.sharpness * e, 0)) - math.log(len(e))) / self.sharpness

    def influence(self, parameters: Tensor, weights: Tensor) -> Influence:
        shares = torch.softmax(self.sharpness * self.errors(parameters), 0)
        rest = parameters - self.signals
        gradient = shares[:, None] * 2 * rest / (self.signals**2).sum(1, keepdim=True)  # dg/dZ (J, d)
        V = torch.linalg.solve(self._gram(weights) + self._curvature(parameters), gradient)
        scores = ((rest @ self.measurements.T) * (V @ self.measurements.T)).sum(0)
        return Influence(scores, True)

    def _curvature(self, Z: Tensor) -> Tensor:
        """penalty * R''(z_j), (J, d, d)."""
        if self.recovery == "l2":
            return self.penalty * torch.diag_embed(torch.ones_like(Z))
        return self.penalty * torch.diag_embed(self.smoothing**2 * (Z * Z + self.smoothing**2) ** -1.5)
