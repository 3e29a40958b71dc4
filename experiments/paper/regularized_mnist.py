"""Regularized weighted coresets (Algorithm 2) for softmax regression on principal components of MNIST.

Claim of the paper: a weighted coreset of at most 10 % reaches the test accuracy of all data. All rows are shrunk under
the L_1/2 penalty on the simplex, then the remaining weights are corrected on the cone. Uniform rows of the same
number, and all data, train the same model with the same penalty.
"""

from __future__ import annotations

import numpy as np
import torch

from core.coresets.library.linear import SoftmaxProblem, one_hot
from core.coresets.library.regularized import ShrinkConfig, shrink_coreset
from core.coresets.library.weighted import PursuitConfig, correct_weights
from experiments.paper.variants_figure import load
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

SHARES = (0.02, 0.05, 0.1)
PENALTIES = (1e-2, 3e-3, 1e-3)


def study(arguments: Arguments, n: int, penalty: float, seed: int) -> list[dict]:
    features, y, tests, yt = load(arguments, n, seed)
    problem = SoftmaxProblem(features=features, targets=one_hot(y, 10, torch.float32), penalty=penalty, tolerance=1e-3)
    rows: list[dict] = []

    def record(method: str, share: float, weights: torch.Tensor) -> None:
        found = problem.accuracy(problem.solve(weights).parameters, tests, yt)
        rows.append({"seed": seed, "penalty": penalty, "method": method, "share": share, "accuracy": 100 * found})

    record("all data", 1.0, torch.full((n,), 1 / n, dtype=torch.float64))
    for share in SHARES:
        size = int(share * n)
        weights = torch.zeros(n, dtype=torch.float64)
        weights[np.random.default_rng(seed).permutation(n)[:size]] = 1 / size
        record("uniform", share, weights)
        shrunk = shrink_coreset(problem, ShrinkConfig(size=size, corrections=0))
        record("regularized, simplex", share, shrunk.full_weights(n))
        corrected = correct_weights(problem, shrunk, PursuitConfig(size=size, corrections=20, relative=True))
        record("regularized, corrected", share, corrected.full_weights(n))
    return rows


def main(arguments: Arguments) -> Record:
    n, seeds = (4000, 5) if arguments.small else (20_000, 5)
    rows: list[dict] = []
    for penalty in PENALTIES:
        for seed in range(seeds):
            rows += study(arguments, n, penalty, seed)
        say(f"penalty {penalty} done")
    keys = dict.fromkeys((row["penalty"], row["method"], row["share"]) for row in rows)
    claims = {
        f"penalty {key[0]}, {key[1]}, {key[2]}": mean_and_deviation(
            [r["accuracy"] for r in rows if (r["penalty"], r["method"], r["share"]) == key]
        )
        for key in keys
    }
    shown = [{**row, "method": f"{row['method']} (penalty {row['penalty']})"} for row in rows if row["share"] < 1]
    figure = curves(shown, "share", "accuracy", by="method", title="Regularized weighted coresets on MNIST")
    return Record(rows, {"n": n, "seeds": seeds, "penalties": PENALTIES}, claims, figure)


if __name__ == "__main__":
    run("regularized_mnist", main)
