"""Coresets for binary logistic regression against uniform, k-means++ and sensitivity sampling (a9a, ijcnn1, phishing).

Claim of the paper: weighted coresets of at most 2 % and unweighted ones of at most 4 % of the data reach the accuracy
of all data. Every method trains the same model, mean weighted cross-entropy + penalty/2 |W|^2, on its rows and weights
(a weighted coreset sums: the mean's 1 / m is part of its weights).
"Reaches" means within one standard error of the test set, sqrt(p (1 - p) / n_test), of the accuracy with all data. The
small size takes 10,000 random training rows of ijcnn1, which makes a share of the data fewer rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus

from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.sensitivity import logistic_sensitivity, sample
from core.coresets.library.variants import forward
from core.coresets.library.weighted import PursuitConfig, build_coreset
from experiments.datasets import libsvm, rows_per_class
from experiments.record import Arguments, Record, curves, run, say

PENALTY = 1e-3
SHARES = (0.005, 0.01, 0.02, 0.04)
SMALL = {"ijcnn1": 10_000}
START = 20


def weights_on(n: int, rows, values) -> torch.Tensor:
    """(n,) with a mean of 1 on `rows`, so that the mean loss over them keeps its scale."""
    weights = torch.zeros(n, dtype=torch.float64)
    values = torch.as_tensor(np.asarray(values), dtype=torch.float64)
    weights[torch.as_tensor(rows)] = values * len(values) / values.sum()
    return weights


def baselines(x, y, size: int, seed: int) -> dict[str, tuple]:
    """Rows and weights of the three sampling baselines."""
    generator = np.random.default_rng(seed)
    n = len(x)
    signed = np.where(y > 0, 1.0, -1.0)[:, None] * x
    _, centers = kmeans_plusplus(x.astype(np.float64), size, random_state=seed)
    centers = np.unique(centers)
    nearest = torch.cdist(torch.tensor(x), torch.tensor(x[centers])).argmin(1).numpy()
    probabilities = logistic_sensitivity(signed.astype(np.float64), 6, radius=1.0 / np.sqrt(x.shape[1]), seed=seed)
    return {
        "uniform": (generator.permutation(n)[:size], np.ones(size)),
        "k-means++": (centers, np.bincount(nearest, minlength=len(centers)) + 1e-9),
        "sensitivity": sample(probabilities, size, generator),
    }


def study(name: str, arguments: Arguments, rows: list[dict]) -> dict:
    x, y, xt, yt = libsvm(arguments.data, name)
    if arguments.small and name in SMALL:
        some = np.random.default_rng(0).permutation(len(x))[: SMALL[name]]
        x, y = x[some], y[some]
    features, tests = with_bias(torch.tensor(x)), with_bias(torch.tensor(xt))
    labels = torch.tensor(yt)
    problem = SoftmaxProblem(features=features, targets=one_hot(torch.tensor(y), 2, torch.float32),
                             penalty=PENALTY, mean=True, tolerance=1e-4)  # fmt: skip
    summed = replace(problem, mean=False)  # for weighted coresets: see core.coresets.library.weighted
    n = len(x)

    def record(method: str, share: float, weights: torch.Tensor, seed: int, problem: SoftmaxProblem = problem) -> None:
        inner = problem.solve(weights)
        rows.append({
            "data": name, "method": method, "share": share, "seed": seed, "rows": int((weights > 0).sum()),
            "accuracy": problem.accuracy(inner.parameters, tests, labels),
            "train_loss": problem.outer(inner.parameters),
        })  # fmt: skip

    record("all data", 1.0, torch.ones(n, dtype=torch.float64), 0)
    for seed in range(3 if arguments.small else 5):
        for share in SHARES:
            for method, (chosen, values) in baselines(x, y, int(share * n), seed).items():
                record(method, share, weights_on(n, chosen, values), seed)
    for seed in range(1 if arguments.small else 5):
        start = rows_per_class(y, START // 2, seed).tolist()
        largest = int(SHARES[-1] * n)
        step = max(1, largest // 60) if arguments.small else 1
        found = forward(problem, largest, start=start, batch=step)
        for share in SHARES:
            own = found.rows[: int(share * n)]
            record("bilevel, unweighted", share, weights_on(n, own, np.ones(len(own))), seed)
        for share in SHARES[:-1]:
            size = int(share * n)
            batch = max(1, (size - START) // (20 if arguments.small else 100))
            config = PursuitConfig(size=size, batch=batch, initial_weight=1 / START, rescale=True)
            coreset = build_coreset(summed, start, config)
            record("bilevel, weighted", share, coreset.full_weights(n), seed, summed)
    return claims_of(name, rows, len(xt))


def claims_of(name: str, rows: list[dict], n_test: int) -> dict:
    """Mean accuracy per method and share, and the smallest share that reaches all data."""
    own = [row for row in rows if row["data"] == name]
    table: dict[str, dict[float, float]] = {}
    for row in own:
        table.setdefault(row["method"], {}).setdefault(row["share"], []).append(row["accuracy"])
    means = {m: {s: float(np.mean(v)) for s, v in shares.items()} for m, shares in table.items()}
    full = means["all data"][1.0]
    error = float(np.sqrt(full * (1 - full) / n_test))
    reached = {m: next((s for s, a in sorted(v.items()) if a >= full - error), None) for m, v in means.items()}
    say(f"{name}: all data {full:.4f} +- {error:.4f}; reached at {reached}")
    return {"accuracy": means, "standard_error": error, "share_that_reaches_all_data": reached}


def main(arguments: Arguments) -> Record:
    rows: list[dict] = []
    claims = {name: study(name, arguments, rows) for name in ("phishing", "ijcnn1", "a9a")}
    shown = [{**row, "method": f"{row['data']}: {row['method']}"} for row in rows if row["share"] < 1]
    figure = curves(shown, "share", "accuracy", by="method", title="Binary logistic regression on coresets")
    return Record(rows, {"penalty": PENALTY, "shares": SHARES, "start": START, "size": arguments.size}, claims, figure)


if __name__ == "__main__":
    run("binary_logistic", main)
