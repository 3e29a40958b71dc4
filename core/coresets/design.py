"""Bayesian A- and V-optimal experimental design on fixed features: a bilevel problem with a closed-form inner optimum.

The inner problem is ridge regression y = theta . z + noise. Its posterior covariance under row weights w does not
depend on the answers y, so a first batch can be chosen before any label:

    Sigma(w) = (penalty I + sum_i w_i z_i z_i^T / noise)^-1
    V        g_V(w) = 1/n tr(Z Sigma(w) Z^T)      mean predictive variance over the pool
    A        g_A(w) = tr(Sigma(w))                total variance of the parameters
    both     g(w)   = tr(M Sigma(w)),             M = Z^T Z / n for V, I for A
    gradient dg/dw_i = -1/noise z_i^T Sigma M Sigma z_i

Adding row i with weight 1 changes Sigma by a rank-one term and lowers g by

    gain_i = z_i^T Sigma M Sigma z_i / (noise + z_i^T Sigma z_i)

which `greedy` maximizes. Rows that represent others (streams) are weighted in V by the number they represent,
M = Z^T diag(v) Z / sum v. Both quadratic forms are kept for all candidates at once and updated in O(n q) per pick from
the pick's u = Sigma z / sqrt(noise + z^T Sigma z):  Sigma <- Sigma - u u^T.

Symbols: Z features (n, q); z one row; Sigma, M (q, q). Borsos et al. (2021) give A and V as instances of their
framework; the greedy closed form for both is the one above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import InvalidInput
from core.types import Progress, Report, ignore

Criterion = Literal["V", "A"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The prior: parameters with variance 1/penalty, answers with variance `noise`."""

    penalty: float = 1.0
    noise: float = 0.1
    criterion: Criterion = "V"

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and self.noise > 0):
            raise InvalidInput(f"Penalty {self.penalty} and noise {self.noise} must both be above 0.")


@dataclass(frozen=True, slots=True)
class Design:
    """A greedy design, in the order chosen."""

    rows: NDArray[np.int64]  # (m,)
    gains: NDArray[np.float64]  # (m,) by how much each lowered the criterion
    values: NDArray[np.float64]  # (m + 1,) the criterion before the first pick and after each


def posterior_covariance(Z: Tensor, weights: Tensor, prior: Prior) -> Tensor:
    """Sigma(w) (q, q) for features Z (n, q) and weights (n,)."""
    information = (Z * (weights / prior.noise).unsqueeze(1)).T @ Z
    information.diagonal().add_(prior.penalty)
    return torch.cholesky_inverse(torch.linalg.cholesky(information))


def criterion_matrix(Z: Tensor, prior: Prior, stands_for: Tensor | None = None) -> Tensor:
    """M (q, q): Z^T Z / n for V, weighted by `stands_for` (n,) where given; the identity for A."""
    if prior.criterion == "A":
        return torch.eye(Z.shape[1], dtype=Z.dtype, device=Z.device)
    if stands_for is None:
        return Z.T @ Z / len(Z)
    share = (stands_for / stands_for.sum()).to(Z)
    return (Z * share.unsqueeze(1)).T @ Z


def value(Z: Tensor, weights: Tensor, prior: Prior) -> Tensor:
    """() g(w), the criterion of a design with weights w."""
    return (criterion_matrix(Z, prior) * posterior_covariance(Z, weights, prior)).sum()


def gradient(Z: Tensor, weights: Tensor, prior: Prior) -> Tensor:
    """(n,) dg/dw, all entries at most 0: an answer never increases the variance."""
    Sigma = posterior_covariance(Z, weights, prior)
    image = Z @ Sigma  # (n, q)
    return -((image @ criterion_matrix(Z, prior)) * image).sum(1) / prior.noise


def quadratic_form(Z: Tensor, A: Tensor, block: int = 8192) -> Tensor:
    """(n,) z^T A z for every row, a block of rows at a time."""
    return torch.cat([((rows @ A) * rows).sum(1) for rows in Z.split(block)])


class Forms:
    """The two quadratic forms of every row of Z (n, q), under a growing design."""

    def __init__(self, Z: Tensor, given: Tensor, prior: Prior, stands_for: Tensor | None = None) -> None:
        """`given` (k, q): rows whose answers are known already. From the prior, Sigma = I / penalty, one by one."""
        self.Z, self.noise = Z, prior.noise
        self.M = criterion_matrix(Z, prior, stands_for)
        self.Sigma = torch.eye(Z.shape[1], dtype=Z.dtype, device=Z.device) / prior.penalty
        self.value = self.M.diagonal().sum() / prior.penalty  # () g
        self.variance = (Z * Z).sum(1) / prior.penalty  # (n,) z^T Sigma z
        self.influence = quadratic_form(Z, self.M) / prior.penalty**2  # (n,) z^T Sigma M Sigma z
        for z in given.unbind(0):
            self.add(z)

    def gains(self) -> Tensor:
        """(n,) the decrease of g by each row."""
        return self.influence / (self.noise + self.variance)

    def add(self, z: Tensor) -> None:
        """Add a row (q,) with weight 1."""
        image = self.Sigma @ z
        u = image / (self.noise + z @ image).sqrt()  # (q,)
        Mu = self.M @ u
        a, b, c = self.Z @ u, self.Z @ (self.Sigma @ Mu), u @ Mu  # (n,), (n,), ()
        self.influence = (self.influence - 2 * a * b + c * a * a).clamp_min(0)
        self.variance = (self.variance - a * a).clamp_min(0)
        self.value = self.value - c
        self.Sigma = self.Sigma - torch.outer(u, u)


def greedy(  # noqa: PLR0913 - who may be chosen, who is known, and what each counts for
    features: Any,
    m: int,
    prior: Prior | None = None,
    *,
    given: NDArray[np.bool_] | None = None,
    candidates: NDArray[np.bool_] | None = None,
    stands_for: NDArray[np.float64] | None = None,
    report: Report = ignore,
) -> Design:
    """Choose m rows of features (n, q), one by one, each lowering the criterion most.

    `given` rows are in the design from the start, with answers known; `candidates` may be chosen (all others when
    None); `stands_for` (n,) is the weight of each row in V (1 when None). Of rows equal in all features at most one
    is chosen while others remain.
    """
    Z = torch.as_tensor(features)
    prior = prior or Prior()
    n = len(Z)
    known = torch.as_tensor(np.zeros(n, bool) if given is None else given, device=Z.device)
    open_rows = torch.as_tensor(np.ones(n, bool) if candidates is None else candidates, device=Z.device) & ~known
    if m > int(open_rows.sum()):
        raise InvalidInput(f"Asked for {m} rows but only {int(open_rows.sum())} may be chosen. Lower the batch size.")
    if not bool(torch.isfinite(Z.sum())):
        raise InvalidInput("Features contain values that are not finite numbers.")
    forms = Forms(Z, Z[known], prior, None if stands_for is None else torch.as_tensor(stands_for, device=Z.device))
    fresh = torch.ones_like(open_rows)
    rows: list[int] = []
    values = [float(forms.value)]
    for step in range(m):
        allowed = open_rows & fresh
        allowed = allowed if bool(allowed.any()) else open_rows
        row = int(torch.where(allowed, forms.gains(), -torch.inf).argmax())
        rows.append(row)
        open_rows[row] = False
        fresh &= (Z[:, 0] != Z[row, 0]) | (Z[row] != Z).any(1)
        forms.add(Z[row])
        values.append(float(forms.value))
        report(Progress("select", step + 1, m, f"mean variance {values[-1]:.4f}"))
    return Design(np.array(rows, np.int64), -np.diff(values), np.array(values))
