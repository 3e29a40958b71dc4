"""Selection of measurements that recover sparse signals: bilevel selection against random rows and approximate greedy.

Signals are sparse in R^d; the dictionary has Gaussian measurements of unequal energy and redundancy (rows are equal up
to noise). "largest products" is approximate greedy as printed: the measurements with the largest mean absolute inner
product with the signals. "approximate greedy" is a stronger rival: it evaluates a few random candidates per step and
keeps the one with the lowest true outer loss (stochastic greedy). Methods are evaluated on new signals of the same
distribution with the same recovery.
"""

from __future__ import annotations

import numpy as np
import torch

from core.coresets.library.dictionary import RecoveryProblem
from core.coresets.library.variants import forward
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say


def signals(count: int, d: int, sparsity: int, generator: np.random.Generator) -> torch.Tensor:
    """Sparse, and unequally: the first coordinates are used more often."""
    U = np.zeros((count, d))
    share = 1.0 / (1.0 + np.arange(d))
    for u in U:
        u[generator.choice(d, sparsity, replace=False, p=share / share.sum())] = generator.normal(size=sparsity)
    return torch.tensor(U)


def dictionary(n: int, d: int, generator: np.random.Generator) -> torch.Tensor:
    """n rows around n/4 directions, so that rows are redundant."""
    directions = generator.normal(size=(n // 4, d))
    rows = directions[generator.integers(n // 4, size=n)] + 0.3 * generator.normal(size=(n, d))
    return torch.tensor(rows / np.sqrt(d))


def approximate_greedy(problem: RecoveryProblem, size: int, start: int, tries: int, generator) -> list[int]:
    chosen = [start]
    while len(chosen) < size:
        left = np.setdiff1d(np.arange(problem.n_rows), chosen)
        tried = generator.permutation(left)[:tries].tolist()
        chosen.append(min(tried, key=lambda row: loss(problem, [*chosen, row])))
    return chosen


def loss(problem: RecoveryProblem, rows) -> float:
    weights = torch.zeros(problem.n_rows, dtype=torch.float64)
    weights[torch.as_tensor(rows)] = 1.0
    return problem.outer(problem.solve(weights).parameters)


def study(recovery: str, scale: dict, seed: int) -> list[dict]:
    generator = np.random.default_rng(seed)
    d, n = scale["d"], scale["n"]
    A = dictionary(n, d, generator)
    settings = {"measurements": A, "recovery": recovery, "penalty": 1e-3, "smoothing": 0.02, "sharpness": 10.0}
    settings |= {"max_steps": 60, "tolerance": 1e-4}
    problem = RecoveryProblem(signals=signals(scale["signals"], d, 3, generator), **settings)
    fresh = RecoveryProblem(signals=signals(200, d, 3, generator), **settings)
    start = int(generator.integers(n))
    largest = scale["sizes"][-1]
    orders = {
        "bilevel": forward(problem, largest, start=[start]).rows.tolist(),
        "approximate greedy": approximate_greedy(problem, largest, start, scale["tries"], generator),
        "random": generator.permutation(n)[:largest].tolist(),
        "largest products": (problem.signals @ A.T).abs().mean(0).argsort(descending=True)[:largest].tolist(),
    }
    rows = []
    for method, order in orders.items():
        for size in scale["sizes"]:
            weights = torch.zeros(n, dtype=torch.float64)
            weights[torch.as_tensor(order[:size])] = 1.0
            errors = fresh.errors(fresh.solve(weights).parameters)
            rows.append({
                "recovery": recovery, "method": method, "size": size, "seed": seed,
                "outer": loss(problem, order[:size]), "fresh_mean": float(errors.mean()),
                "fresh_worst": float(errors.max()),
            })  # fmt: skip
    return rows


def main(arguments: Arguments) -> Record:
    if arguments.small:
        scale = {"d": 24, "n": 96, "signals": 16, "sizes": [8, 12, 16, 20], "tries": 5, "seeds": 20}
    else:
        scale = {"d": 64, "n": 512, "signals": 64, "sizes": [16, 24, 32, 48], "tries": 10, "seeds": 10}
    rows = []
    for recovery in ("l2", "l1"):
        for seed in range(scale["seeds"]):
            rows += study(recovery, scale, seed)
        say(f"{recovery} done")
    claims = {
        f"{recovery}, {method}, {size}": mean_and_deviation(
            [r["fresh_mean"] for r in rows if (r["recovery"], r["method"], r["size"]) == (recovery, method, size)]
        )
        for recovery in ("l2", "l1")
        for method in ("bilevel", "approximate greedy", "largest products", "random")
        for size in scale["sizes"]
    }
    shown = [{**row, "method": f"{row['recovery']}: {row['method']}"} for row in rows]
    figure = curves(shown, "size", "fresh_mean", by="method", title="Recovery error on fresh sparse signals")
    return Record(rows, scale, claims, figure)


if __name__ == "__main__":
    run("dictionary_selection", main)
