"""The unweighted variants of Fig. 3: forward one by one, forward in batches, exchange, elimination; against uniform.

Softmax regression on MNIST, on principal components (more rows than directions) and on the tangent kernel of a dense
network (as many directions as rows). The paper's order: one by one is at least as good as batches at small sizes and
equal after a quarter of the data; elimination stays below uniform until 90 % of the data are kept. Elimination is run
in three variants: with the exact influence after every batch, with the first term of the Neumann series alone instead
of H^-1, and all at once by the influence at the fit to all data.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from core.coresets.library.implicit import Influence
from core.coresets.library.linear import SoftmaxProblem, kernel_factor, one_hot, with_bias
from core.coresets.library.variants import eliminate, exchange, forward
from core.kernels.networks import fnn
from core.kernels.ntk import kernel
from experiments.datasets import mnist, rows_per_class
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

COMPONENTS, PENALTY = 40, 1e-3
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


def load(arguments: Arguments, n: int, seed: int):
    """(features (n, d), labels, test features, test labels): principal components of n training rows, scaled in the
    same way."""
    x, y, xt, yt = mnist(arguments.data)
    chosen = rows_per_class(y, n // 10, seed)
    x, y = torch.tensor(x[chosen].reshape(n, -1)), torch.tensor(y[chosen])
    center = x.mean(0)
    V = torch.linalg.svd(x - center, full_matrices=False).Vh[:COMPONENTS].T
    z = (x - center) @ V
    scale = z.std()
    tests = ((torch.tensor(xt.reshape(len(xt), -1)) - center) @ V) / scale
    return with_bias(z / scale), y, with_bias(tests), torch.tensor(yt)


def load_tangent(arguments: Arguments, n: int, seed: int):
    """As `load`, with features whose inner products are the neural tangent kernel; 2,000 rows to test on."""
    x, y, xt, yt = mnist(arguments.data)
    chosen = rows_per_class(y, n // 10, seed)
    train, test = (torch.tensor(a)[..., None].double() for a in (x[chosen], xt[:2000]))
    z = kernel_factor(kernel(train, None, fnn()))
    tests = kernel(test, train, fnn()) @ z / (z * z).sum(0)
    return z.float(), torch.tensor(y[chosen]), tests.float(), torch.tensor(yt[:2000])


PROXIES = {"principal components": load, "tangent kernel": load_tangent}


class FirstTerm(SoftmaxProblem):
    """Influence with the outer gradient itself instead of H^-1 times it."""

    def influence(self, parameters, weights) -> Influence:
        residual = torch.softmax(parameters @ self.features.T, 0) - self.targets.T
        gradient = residual @ self.features
        return Influence(((gradient @ self.features.T) * residual).sum(0), True)


def orders(problem: SoftmaxProblem, start: list[int], one_by_one_until: float) -> dict[str, torch.Tensor]:
    """Rows, best first, of every variant that orders them."""
    n = problem.n_rows
    crude = FirstTerm(**{field.name: getattr(problem, field.name) for field in fields(problem)})
    smallest, largest = int(SHARES[0] * n), int(SHARES[-1] * n)
    return {
        "forward, one by one": forward(problem, int(one_by_one_until * n), start=start).rows,
        "forward, batches of 1 %": forward(problem, n // 4, start=start, batch=n // 100).rows,
        "forward, batches of 5 %": forward(problem, largest, start=start, batch=n // 20).rows,
        "elimination": eliminate(problem, smallest, batch=n // 20).rows,
        "elimination, first term": eliminate(crude, smallest, batch=n // 20).rows,
        "elimination, at once": eliminate(problem, smallest, batch=n).rows,
    }


def study(arguments: Arguments, proxy: str, n: int, seed: int, one_by_one_until: float) -> list[dict]:
    features, y, tests, yt = PROXIES[proxy](arguments, n, seed)
    problem = SoftmaxProblem(
        features=features, targets=one_hot(y, 10, torch.float32), penalty=PENALTY, mean=True, tolerance=1e-3
    )
    rows: list[dict] = []

    def record(method: str, share: float, chosen) -> None:
        w = torch.zeros(n, dtype=torch.float64)
        w[torch.as_tensor(chosen)] = 1.0
        inner = problem.solve(w)
        accuracy = problem.accuracy(inner.parameters, tests, yt)
        rows.append({"proxy": proxy, "seed": seed, "method": method, "share": share, "accuracy": accuracy,
                     "train_loss": problem.outer(inner.parameters)})  # fmt: skip

    generator = np.random.default_rng(seed)
    record("all data", 1.0, np.arange(n))
    found = orders(problem, rows_per_class(y.numpy(), 1, seed).tolist(), one_by_one_until)
    for share in SHARES:
        size = int(share * n)
        record("uniform", share, generator.permutation(n)[:size])
        for method, order in found.items():
            if size <= len(order):
                record(method, share, order[:size])
        swapped = exchange(problem, start=generator.permutation(n)[:size].tolist(), batch=n // 20, rounds=10).rows
        record("exchange", share, swapped)
    return rows


def main(arguments: Arguments) -> Record:
    n, seeds, until = (1000, 5, 0.25) if arguments.small else (5000, 5, 0.5)
    rows: list[dict] = []
    for proxy in arguments.only or PROXIES:
        for seed in range(seeds):
            rows += study(arguments, proxy, n, seed, until)
        say(f"{proxy} done")
    claims: dict[str, dict] = {}
    for key in dict.fromkeys((row["proxy"], row["method"], row["share"]) for row in rows):
        own = [100 * r["accuracy"] for r in rows if (r["proxy"], r["method"], r["share"]) == key]
        claims.setdefault(f"{key[0]}: {key[1]}", {})[f"{key[2]}"] = mean_and_deviation(own)
    shown = [{**r, "method": f"{r['method']} ({r['proxy']})"} for r in rows if r["share"] < 1]
    figure = curves(shown, "share", "accuracy", by="method",
                    title="Variants of bilevel coresets: softmax regression on MNIST")  # fmt: skip
    return Record(rows, {"n": n, "seeds": seeds, "components": COMPONENTS, "penalty": PENALTY}, claims, figure)


if __name__ == "__main__":
    run("variants_figure", main)
