"""The unweighted variants of Fig. 1: forward one by one, forward in batches, exchange, elimination; against uniform.

Softmax regression on principal components of MNIST. The paper's order: one by one is at least as good as batches at
small sizes and equal after a quarter of the data; elimination stays below uniform until 90 % of the data are kept.
"""

from __future__ import annotations

import numpy as np
import torch

from core.coresets.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.variants import eliminate, exchange, forward
from experiments.datasets import mnist, rows_per_class
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

COMPONENTS, PENALTY = 40, 1e-3
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


def load(arguments: Arguments, n: int, seed: int):
    """(features (n, d), labels, test features, test labels): principal components of n training rows, scaled alike."""
    x, y, xt, yt = mnist(arguments.data)
    chosen = rows_per_class(y, n // 10, seed)
    x, y = torch.tensor(x[chosen].reshape(n, -1)), torch.tensor(y[chosen])
    center = x.mean(0)
    _, _, V = torch.pca_lowrank(x - center, COMPONENTS, niter=4)
    z = (x - center) @ V
    scale = z.std()
    tests = ((torch.tensor(xt.reshape(len(xt), -1)) - center) @ V) / scale
    return with_bias(z / scale), y, with_bias(tests), torch.tensor(yt)


def study(arguments: Arguments, n: int, seed: int, one_by_one_until: float) -> list[dict]:
    features, y, tests, yt = load(arguments, n, seed)
    problem = SoftmaxProblem(
        features=features, targets=one_hot(y, 10, torch.float32), penalty=PENALTY, mean=True, tolerance=1e-3
    )
    rows: list[dict] = []

    def record(method: str, share: float, chosen) -> None:
        w = torch.zeros(n, dtype=torch.float64)
        w[torch.as_tensor(chosen)] = 1.0
        inner = problem.solve(w)
        accuracy = problem.accuracy(inner.parameters, tests, yt)
        rows.append({"seed": seed, "method": method, "share": share, "accuracy": accuracy,
                     "train_loss": problem.outer(inner.parameters)})  # fmt: skip

    generator = np.random.default_rng(seed)
    start = rows_per_class(y.numpy(), 1, seed).tolist()
    record("all data", 1.0, np.arange(n))
    one = forward(problem, int(one_by_one_until * n), start=start).rows
    batches = forward(problem, int(SHARES[-1] * n), start=start, batch=n // 20).rows
    gone = eliminate(problem, int(SHARES[0] * n), batch=n // 20).rows
    for share in SHARES:
        size = int(share * n)
        record("uniform", share, generator.permutation(n)[:size])
        if share <= one_by_one_until:
            record("forward, one by one", share, one[:size])
        record("forward, batches", share, batches[:size])
        record("elimination", share, gone[:size])
        swapped = exchange(problem, start=generator.permutation(n)[:size].tolist(), batch=n // 20, rounds=10).rows
        record("exchange", share, swapped)
    return rows


def main(arguments: Arguments) -> Record:
    n, seeds, until = (1000, 2, 0.25) if arguments.small else (5000, 5, 0.5)
    rows: list[dict] = []
    for seed in range(seeds):
        rows += study(arguments, n, seed, until)
        say(f"seed {seed} done")
    claims: dict[str, dict] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        for share in sorted({row["share"] for row in rows if row["method"] == method}):
            own = [r["accuracy"] for r in rows if r["method"] == method and r["share"] == share]
            claims[f"{method}, {share}"] = mean_and_deviation(own)
    figure = curves([r for r in rows if r["share"] < 1], "share", "accuracy", by="method",
                    title="Variants of bilevel coresets: softmax regression on MNIST")  # fmt: skip
    return Record(rows, {"n": n, "seeds": seeds, "components": COMPONENTS, "penalty": PENALTY}, claims, figure)


if __name__ == "__main__":
    run("variants_figure", main)
