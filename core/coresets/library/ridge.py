"""Kernel ridge regression as a bilevel problem: every quantity in closed form.

    inner   f*(w) = argmin_f  sum_i w_i |f(x_i) - y_i|^2 + penalty |f|^2     in the kernel's space
            f*    = K[:, S] alpha,   (K[S, S] + penalty diag(1 / w_S)) alpha = y_S,   S the rows with weight
    outer   g(f)  = sum_i |f(x_i) - y_i|^2
    influence_i   = 2 <r_i, (M r)_i>,   r = f*(x) - y,
            M     = phi (phi^T diag(w) phi + penalty I)^-1 phi^T
                  = 1 / penalty (K - K[:, S] (K[S, S] + penalty diag(1 / w_S))^-1 K[S, :])

Symbols: K kernel matrix (n, n); phi its factor, K = phi phi^T; y targets (n, k). One Cholesky factorization of the
(|S|, |S|) matrix serves the solution and the influence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.coresets.library.implicit import Influence, Inner
from core.errors import InvalidInput


@dataclass(slots=True, kw_only=True)
class RidgeProblem:
    """See the module. Parameters are the predictions f*(x) of all rows (n, k)."""

    kernel: Tensor  # (n, n)
    targets: Tensor  # (n, k)
    penalty: float

    def __post_init__(self) -> None:
        if self.penalty <= 0:
            raise InvalidInput(f"The penalty is {self.penalty}; kernel ridge regression needs one above 0.")
        if self.kernel.shape != (len(self.targets), len(self.targets)):
            raise InvalidInput(f"A kernel of {tuple(self.kernel.shape)} does not fit {len(self.targets)} targets.")

    @property
    def n_rows(self) -> int:
        return len(self.kernel)

    def _factor(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The rows with weight (s,), and the Cholesky factor (s, s) of K[S, S] + penalty diag(1 / w_S)."""
        rows = torch.nonzero(weights).flatten()
        inverse = self.penalty / weights[rows].to(self.kernel.dtype)
        return rows, torch.linalg.cholesky(self.kernel[rows][:, rows] + torch.diag(inverse))

    def solve(self, weights: Tensor, start: Tensor | None = None) -> Inner:
        rows, factor = self._factor(weights)
        alpha = torch.cholesky_solve(self.targets[rows], factor)
        return Inner(self.kernel[:, rows] @ alpha, True)

    def outer(self, parameters: Tensor) -> float:
        return float((parameters - self.targets).square().sum())

    def influence(self, parameters: Tensor, weights: Tensor) -> Influence:
        rows, factor = self._factor(weights)
        residual = parameters - self.targets
        image = self.kernel @ residual
        inside = torch.cholesky_solve(image[rows], factor)
        return Influence(2 / self.penalty * (residual * (image - self.kernel[:, rows] @ inside)).sum(1), True)
