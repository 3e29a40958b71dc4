"""Selection of wavelet measurements for digits that a generative model recovers (Fig. 12, right; eq. 13).

    python -m experiments.paper.dictionary_generative [--size small|full] --out DIR

The generative model G is the decoder of a variational autoencoder trained here on MNIST. A digit x is recovered from
the measurements a_j with weight by

    z* = argmin_z  1/2 sum_j w_j (a_j (G(z) - x))^2 + penalty / 2 |z|^2,    recovered: G(z*)

and the outer loss is the smoothed supremum over digits of |G(z*) - x|^2 / |x|^2. The dictionary is the Haar basis.
Rivals: measurements with independent normal entries, random wavelets, and the wavelets with the largest mean absolute
product with the digits (approximate greedy as printed). G is not trained on the digits that are used for the selection
and the measurement.

The small size: 16 x 16 pixels (256 wavelets), 6 latent dimensions, 24 digits for selection, 60 for measurement. The
full size: 32 x 32 (the digits with a border; 1,024 wavelets, the paper has 784), 20 latent dimensions, 100 and 500
digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vjp, vmap
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits, pad

from core.coresets.library.implicit import Influence, Inner
from core.coresets.library.variants import forward
from experiments.datasets import mnist
from experiments.record import Arguments, Parts, Record, curves, mean_and_deviation, run


@dataclass(slots=True, kw_only=True)
class GenerativeRecovery:
    """The bilevel problem over measurements; parameters are the latent vectors (J, p) of all signals."""

    measurements: Tensor  # A (n, d)
    signals: Tensor  # X (J, d)
    generate: Callable[[Tensor], Tensor]  # (p,) -> (d,)
    latent: int  # p
    penalty: float = 1e-2
    sharpness: float = 10.0
    restarts: int = 3
    max_steps: int = 30
    tolerance: float = 1e-4

    @property
    def n_rows(self) -> int:
        return len(self.measurements)

    def _inner(self, z: Tensor, x: Tensor, A: Tensor, w: Tensor) -> Tensor:
        rest = A @ (self.generate(z) - x)
        return 0.5 * (w * rest * rest).sum() + 0.5 * self.penalty * (z @ z)

    def _jacobian(self, z: Tensor) -> Tensor:
        """(d, p) of G: the pull-back u -> J^T u is linear, and its transpose gives a column at a time."""
        values, pull_back = vjp(self.generate, z)
        push = vjp(lambda u: pull_back(u)[0], torch.zeros_like(values))[1]
        return vmap(lambda column: push(column)[0])(torch.eye(self.latent, dtype=z.dtype)).T

    def solve(self, weights: Tensor, start: Tensor | None = None) -> Inner:
        """The best of the given start, zero and random starts for every signal."""
        rows = torch.nonzero(weights).flatten()
        A, w = self.measurements[rows], weights[rows].to(self.measurements.dtype)
        generator = torch.Generator().manual_seed(0)
        shape = (len(self.signals), self.latent)
        starts = [torch.zeros(shape, dtype=A.dtype)] if start is None else [start]
        starts += [torch.randn(shape, generator=generator, dtype=A.dtype) for _ in range(self.restarts)]
        found = [self._descend(Z, A, w) for Z in starts]
        best = torch.stack([value for _, value in found]).argmin(0)
        Z = torch.stack([own for own, _ in found])[best, torch.arange(shape[0])]
        return self._polished(Z, A, w)

    def _polished(self, Z: Tensor, A: Tensor, w: Tensor) -> Inner:
        """Newton steps from near the minimum, each kept for the signals whose gradient it shortens."""
        gradient_of = vmap(grad(lambda z, x: self._inner(z, x, A, w)))
        gradient = gradient_of(Z, self.signals)
        for _ in range(10):
            if float(gradient.norm(dim=1).max()) <= self.tolerance:
                break
            moved = Z - torch.linalg.solve(self._hessians(Z, A, w), gradient)
            after = gradient_of(moved, self.signals)
            better = (after.norm(dim=1) < gradient.norm(dim=1))[:, None]
            Z, gradient = torch.where(better, moved, Z), torch.where(better, after, gradient)
        return Inner(Z, bool((gradient.norm(dim=1) <= self.tolerance).all()))

    def _hessians(self, Z: Tensor, A: Tensor, w: Tensor) -> Tensor:
        """(J, p, p) of the inner losses."""
        found: Tensor = vmap(jacrev(jacrev(lambda z, x: self._inner(z, x, A, w))))(Z, self.signals)
        return found

    def _descend(self, Z: Tensor, A: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Levenberg-Marquardt for all signals at once: (latent vectors, values)."""
        inner = vmap(lambda z, x: self._inner(z, x, A, w))
        value, damping = inner(Z, self.signals), torch.full((len(Z),), 1e-2, dtype=Z.dtype)
        identity = torch.eye(self.latent, dtype=Z.dtype)
        for _ in range(self.max_steps):
            B = A @ vmap(self._jacobian)(Z)  # (J, m, p)
            rest = (vmap(self.generate)(Z) - self.signals) @ A.T
            gradient = torch.einsum("jmp,jm->jp", B, w * rest) + self.penalty * Z
            if float(gradient.norm(dim=1).max()) <= self.tolerance:
                break
            curvature = torch.einsum("jmp,m,jmq->jpq", B, w, B) + self.penalty * identity
            moved = Z - torch.linalg.solve(curvature + damping[:, None, None] * identity, gradient)
            after = inner(moved, self.signals)
            better = after < value
            Z, value = torch.where(better[:, None], moved, Z), torch.where(better, after, value)
            damping = torch.where(better, damping / 4, damping * 6).clamp(1e-9, 1e9)
        return Z, value

    def errors(self, parameters: Tensor) -> Tensor:
        """(J,) squared error of every recovered signal, relative to its energy."""
        rest = vmap(self.generate)(parameters) - self.signals
        return rest.square().sum(1) / self.signals.square().sum(1)

    def outer(self, parameters: Tensor) -> float:
        e = self.errors(parameters)
        return (float(torch.logsumexp(self.sharpness * e, 0)) - math.log(len(e))) / self.sharpness

    def influence(self, parameters: Tensor, weights: Tensor) -> Influence:
        rows = torch.nonzero(weights).flatten()
        A, w = self.measurements[rows], weights[rows].to(self.measurements.dtype)
        shares = torch.softmax(self.sharpness * self.errors(parameters), 0)
        jacobians = vmap(self._jacobian)(parameters)  # (J, d, p)
        rest = vmap(self.generate)(parameters) - self.signals
        scaled = shares[:, None] * 2 * rest / self.signals.square().sum(1, keepdim=True)
        gradient = torch.einsum("jdp,jd->jp", jacobians, scaled)
        V = torch.linalg.solve(self._hessians(parameters, A, w), gradient)
        pushed = torch.einsum("jdp,jp->jd", jacobians, V)
        return Influence(((rest @ self.measurements.T) * (pushed @ self.measurements.T)).sum(0), True)


def haar(side: int) -> Tensor:
    """(side^2, side^2) orthonormal Haar wavelets of pictures with a side that is a power of two."""
    one = torch.ones(1, 1, dtype=torch.float64)
    while len(one) < side:
        coarse = torch.kron(one, torch.tensor([[1.0, 1.0]], dtype=torch.float64))
        fine = torch.kron(torch.eye(len(one), dtype=torch.float64), torch.tensor([[1.0, -1.0]], dtype=torch.float64))
        one = torch.cat([coarse, fine]) / math.sqrt(2)
    return torch.kron(one, one)


def digits(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1] with a border, (n, side^2): training and test digits."""
    x, _, xt, _ = mnist(arguments.data)
    parts = []
    for part in (x[:20_000], xt):
        picture = pad(torch.tensor(part * 0.3081 + 0.1307)[:, None].clamp(0, 1), (2, 2, 2, 2))
        parts.append((avg_pool2d(picture, 2) if arguments.small else picture).flatten(1))
    return parts[0], parts[1]


def trained_decoder(x: Tensor, latent: int, steps: int, seed: int) -> nn.Module:
    """The decoder of a variational autoencoder with one hidden layer on each side."""
    torch.manual_seed(seed)
    d, width = x.shape[1], 128
    encoder = nn.Sequential(nn.Linear(d, width), nn.ELU(), nn.Linear(width, 2 * latent))
    decoder = nn.Sequential(nn.Linear(latent, width), nn.ELU(), nn.Linear(width, d))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (128,))]
        mean, log_variance = encoder(batch).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        fit = binary_cross_entropy_with_logits(decoder(z), batch, reduction="none").sum(1)
        optimizer.zero_grad()
        (fit + divergence).mean().backward()
        optimizer.step()
    return nn.Sequential(decoder, nn.Sigmoid()).double().requires_grad_(False)


def study(arguments: Arguments, scale: dict, seed: int) -> list[dict]:
    generator = np.random.default_rng(seed)
    train, test = digits(arguments)
    model = trained_decoder(train[: scale["train"]], scale["latent"], scale["steps"], seed)
    pool = train[scale["train"] :].double()
    chosen = pool[generator.permutation(len(pool))[: scale["signals"]]]
    fresh = test[generator.permutation(len(test))[: scale["fresh"]]].double()
    A, largest = haar(math.isqrt(train.shape[1])), scale["sizes"][-1]
    settings = {"generate": model, "latent": scale["latent"]}
    problem = GenerativeRecovery(measurements=A, signals=chosen, **settings)
    products = (chosen @ A.T).abs().mean(0).argsort(descending=True)
    normal = torch.tensor(generator.normal(size=(largest, A.shape[1]))) / math.sqrt(A.shape[1])
    rows_of = {
        "bilevel": A[forward(problem, largest, start=[int(generator.integers(len(A)))]).rows],
        "largest products": A[products[:largest]],
        "random wavelets": A[torch.from_numpy(generator.permutation(len(A))[:largest])],
        "normal": normal,
    }
    rows = []
    for method, own in rows_of.items():
        for size in scale["sizes"]:
            measured = GenerativeRecovery(measurements=own[:size], signals=fresh, **settings)
            errors = measured.errors(measured.solve(torch.ones(size, dtype=torch.float64)).parameters)
            found = {"error": float(errors.mean()), "worst": float(errors.max())}
            rows.append({"method": method, "size": size, "seed": seed, **found})
    return rows


def main(arguments: Arguments) -> Record:
    scale = {"train": 10_000, "latent": 6, "steps": 800, "signals": 24, "fresh": 60, "sizes": [6, 9, 12, 18]}
    if not arguments.small:
        scale = {
            "train": 19_000,
            "latent": 20,
            "steps": 20_000,
            "signals": 100,
            "fresh": 500,
            "sizes": [20, 40, 60, 100],
        }
    parts = Parts(arguments.out, scale | {"size": arguments.size})
    rows: list[dict] = []
    for seed in [int(name) for name in arguments.only] or range(5):
        rows += parts.rows(f"seed {seed}", partial(study, arguments, scale, seed))
    claims = {}
    for key in dict.fromkeys((row["method"], row["size"]) for row in rows):
        own = [row["error"] for row in rows if (row["method"], row["size"]) == key]
        claims[f"{key[0]}, {key[1]}"] = mean_and_deviation(own)
    figure = curves(rows, "size", "error", by="method", title="Digits recovered by a generative model")
    return Record(rows, parts.settings, claims, figure, parts.earlier_seconds)


if __name__ == "__main__":
    run("dictionary_generative", main)
