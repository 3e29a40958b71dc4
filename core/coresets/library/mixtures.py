"""Gaussian mixtures as a bilevel problem without labels: the inner solver is expectation-maximization.

    inner   f(theta, w) = -sum_i w_i log sum_k pi_k N(x_i | mu_k, Sigma_k)
                          + sum_k [ strength/2 log|Sigma_k| + strength * scale/2 tr(Sigma_k^-1) - strength log pi_k ]
    outer   g(theta) = mean over all rows of the negative log-likelihood, or f(theta, 1) / n with `outer_prior`: then
                       the fit to all rows is the minimum of g, and no coreset can be better than all data

The second term is the prior that keeps a component from collapsing onto a row; its EM updates stay in closed form:
pi_k ~ N_k + strength, Sigma_k = (scatter_k + strength * scale I) / (N_k + strength), N_k = sum_i w_i r_ik.
EM converges slowly where components overlap, so Newton's method is tried after some steps: the implicit gradient is
correct only at a minimum.
For the implicit gradient theta is a flat unconstrained vector, (log pi, mu, Cholesky factor of the precision with the
logarithm of its diagonal), and H, a few hundred rows wide, is formed and decomposed; directions that change nothing
(a common shift of log pi) are left out of H^-1.

Symbols: x rows (n, d); K components; r responsibilities (n, K).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.coresets.library.implicit import Influence, Inner, directional_derivatives

NEWTON_AFTER, NEWTON_STEPS = (25, 50, 100, 200, 400), 12  # steps of EM before an attempt to finish, steps of one
CUTOFF = 1e-8  # of the largest curvature
Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Mixture:
    """theta: (K,) log-proportions, (K, d) means, (K, d, d) covariances."""

    log_proportions: Tensor
    means: Tensor
    covariances: Tensor

    def flat(self) -> Tensor:
        """The unconstrained vector of the module's text, (K + K d + K d (d + 1) / 2,)."""
        d = self.means.shape[1]
        L = torch.linalg.cholesky(torch.linalg.inv(self.covariances))
        logs = L.diagonal(dim1=1, dim2=2).log()
        below = L[:, *torch.tril_indices(d, d, -1)]
        return torch.cat([self.log_proportions, self.means.flatten(), logs.flatten(), below.flatten()])

    @classmethod
    def from_flat(cls, theta: Tensor, n_components: int, d: int) -> Mixture:
        """The inverse of `flat`, with proportions that sum to 1."""
        log_pi, means, _, L = _unpack(theta, n_components, d)
        return cls(log_pi.log_softmax(0), means, torch.cholesky_inverse(L))


@dataclass(frozen=True, slots=True)
class MixturePrior:
    """`strength` pseudo-observations per component, with covariance `scale` * I."""

    strength: float = 1.0
    scale: float = 0.1


def negative_log_likelihood(theta: Tensor, x: Tensor, n_components: int) -> Tensor:
    """(n,) -log sum_k pi_k N(x_i | mu_k, Sigma_k) for a flat theta; pi is normalized inside."""
    d = x.shape[1]
    log_pi, means, logs, L = _unpack(theta, n_components, d)
    z = torch.einsum("nkd,kde->nke", x[:, None] - means, L)
    parts = log_pi.log_softmax(0) + logs.sum(1) - 0.5 * (z * z).sum(2) - 0.5 * d * math.log(2 * math.pi)
    return -torch.logsumexp(parts, 1)


def _unpack(theta: Tensor, K: int, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    log_pi, means, logs, below = theta.split([K, K * d, K * d, K * d * (d - 1) // 2])
    i, j = torch.tril_indices(d, d, -1)
    lower = torch.zeros(K, d, d, dtype=theta.dtype).index_put(
        (torch.arange(K)[:, None], i[None], j[None]), below.view(K, -1)
    )
    return log_pi, means.view(K, d), logs.view(K, d), lower + torch.diag_embed(logs.view(K, d).exp())


@dataclass(slots=True, kw_only=True)
class MixtureProblem:
    """Fit K Gaussians to weighted rows so that all rows are likely. `initial` is the first start of EM."""

    x: Tensor  # (n, d)
    initial: Mixture
    prior: MixturePrior = MixturePrior()
    max_steps: int = 300
    tolerance: float = 1e-7  # on the change of the means and covariances in one step of EM
    outer_prior: bool = False
    warm: bool = True  # False: every inner problem starts at `initial`, so that a coreset is made for that start

    @property
    def n_rows(self) -> int:
        return len(self.x)

    @property
    def n_components(self) -> int:
        return len(self.initial.means)

    def solve(self, weights: Tensor, start: Mixture | None = None) -> Inner:
        rows = torch.nonzero(weights).flatten()
        x, w = self.x[rows], weights[rows].to(self.x.dtype)
        mixture = start if start is not None and self.warm else self.initial
        for step in range(1, self.max_steps + 1):
            updated = self._maximize(x, w, responsibilities(mixture, x))
            change = max(
                float((updated.means - mixture.means).abs().max()),
                float((updated.covariances - mixture.covariances).abs().max()),
            )
            mixture = updated
            if change <= self.tolerance:
                return Inner(mixture, True)
            if step in NEWTON_AFTER and (finished := self._finish(weights, mixture)) is not None:
                return Inner(finished, True)
        return Inner(mixture, False)

    def _finish(self, weights: Tensor, mixture: Mixture) -> Mixture | None:
        """The minimum near `mixture` by Newton's method, with quadratic convergence; None where f is not convex yet."""
        loss, theta = self._inner_loss(weights), mixture.flat()
        gradient = torch.func.grad(loss)(theta)
        goal = self.tolerance * float(weights.sum())
        for _ in range(NEWTON_STEPS):
            values, vectors = self._curvature(loss, theta)
            if values[0] < -CUTOFF * values[-1]:
                return None
            closer = theta - _pseudo_inverse_product(values, vectors, gradient)
            after = torch.func.grad(loss)(closer)
            if not after.norm() < 0.5 * gradient.norm():
                return None
            theta, gradient = closer, after
            if gradient.norm() <= goal:
                return Mixture.from_flat(theta, self.n_components, self.x.shape[1])
        return None

    @staticmethod
    def _curvature(loss: Loss, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues, ascending, and eigenvectors of the Hessian."""
        H = torch.func.jacrev(torch.func.grad(loss))(theta)
        values, vectors = torch.linalg.eigh(0.5 * (H + H.T))
        return values, vectors

    def _maximize(self, x: Tensor, w: Tensor, r: Tensor) -> Mixture:
        s = self.prior.strength
        mass = w[:, None] * r  # (n, K)
        N = mass.sum(0)
        means = (mass.T @ x) / N.clamp_min(1e-300)[:, None]
        centered = x[:, None] - means
        scatter = torch.einsum("nk,nkd,nke->kde", mass, centered, centered)
        eye = torch.eye(x.shape[1], dtype=x.dtype)
        covariances = (scatter + s * self.prior.scale * eye) / (N + s)[:, None, None]
        pi = (N + s) / (N + s).sum()
        return Mixture(pi.log(), means, covariances)

    def objective(self, weights: Tensor, mixture: Mixture) -> float:
        """f(theta, weights), which EM minimizes; for the choice between several starts."""
        return float(self._inner_loss(weights)(mixture.flat()))

    def _inner_loss(self, weights: Tensor) -> Loss:
        rows = torch.nonzero(weights).flatten()
        x, w = self.x[rows], weights[rows].to(self.x.dtype)

        def loss(theta: Tensor) -> Tensor:
            return (w * negative_log_likelihood(theta, x, self.n_components)).sum() + self._penalty(theta)

        return loss

    def _penalty(self, theta: Tensor) -> Tensor:
        """The second term of f: minus the logarithm of the prior."""
        s = self.prior.strength
        log_pi, _, logs, L = _unpack(theta, self.n_components, self.x.shape[1])
        return -s * logs.sum() + 0.5 * s * self.prior.scale * (L * L).sum() - s * log_pi.log_softmax(0).sum()

    def _outer_loss(self, theta: Tensor) -> Tensor:
        likelihood = negative_log_likelihood(theta, self.x, self.n_components).mean()
        return likelihood + self._penalty(theta) / self.n_rows if self.outer_prior else likelihood

    def outer(self, parameters: Mixture) -> float:
        return float(self._outer_loss(parameters.flat()))

    def influence(self, parameters: Mixture, weights: Tensor) -> Influence:
        theta, K = parameters.flat(), self.n_components
        gradient = torch.func.grad(self._outer_loss)(theta)
        values, vectors = self._curvature(self._inner_loss(weights), theta)
        v = _pseudo_inverse_product(values, vectors, gradient)
        scores = directional_derivatives(lambda t: negative_log_likelihood(t, self.x, K), theta, v)
        return Influence(scores, bool(values[0] > -1e-6 * values[-1]))


def _pseudo_inverse_product(values: Tensor, vectors: Tensor, target: Tensor) -> Tensor:
    """H^-1 target. At a minimum no curvature is negative; what is below the cutoff is a direction without effect."""
    keep = values > CUTOFF * values[-1]
    return vectors[:, keep] @ ((vectors[:, keep].T @ target) / values[keep])


def responsibilities(mixture: Mixture, x: Tensor) -> Tensor:
    """(n, K) posterior probability of every component for every row."""
    d = x.shape[1]
    L = torch.linalg.cholesky(mixture.covariances)
    z = torch.linalg.solve_triangular(L, (x[:, None] - mixture.means).permute(1, 2, 0), upper=False)  # (K, d, n)
    log_volume = L.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * d * math.log(2 * math.pi)
    joint: Tensor = (mixture.log_proportions - log_volume)[:, None] - 0.5 * (z * z).sum(1)  # (K, n)
    return joint.softmax(0).T


def start_mixture(means: Tensor, scale: float) -> Mixture:
    """Equal proportions and covariance scale * I around the given means (K, d)."""
    K, d = means.shape
    eye = torch.eye(d, dtype=means.dtype)
    return Mixture(torch.full((K,), -math.log(K), dtype=means.dtype), means, (scale * eye).repeat(K, 1, 1))
