"""Multiclass logistic regression on kernel features (Fig. 7): MNIST with an RBF kernel, CIFAR-10 with a tangent kernel.

    python -m experiments.paper.multiclass_logistic [--only mnist cifar10] --out DIR

Features are Nyström features: 500 of the RBF kernel exp(-1e-3 |x - y|^2) on MNIST, 2,048 of `cntk6-gap-fast` on
CIFAR-10 (the small size: 300 of `cntk6`, which flattens). Methods: one by one without weights; weighted by
regularization (Algorithm 2); uniform; k-means++ on the features; most often forgotten during training (Toneva et al.,
2019: how often a row is wrong after it was right, over the epochs of SGD on all rows). Test accuracy in %, and the mean
loss over all training rows (`outer`); the small size has 2,000 rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.regularized import ShrinkConfig, shrink_coreset
from core.coresets.library.summaries import k_means
from core.coresets.library.variants import forward
from core.kernels.networks import by_name, rbf
from core.kernels.nystrom import fit
from experiments.datasets import cifar10, mnist, rows_per_class
from experiments.record import Arguments, Parts, Record, curves, mean_and_deviation, run, say
from experiments.replay.forgetting_events import ForgettingEvents

SHARES = (0.02, 0.05, 0.1)
PENALTY = {"mnist": 1e-3, "cifar10": 1e-3}


def features_of(name: str, arguments: Arguments, n: int, seed: int) -> tuple:
    """Unit-scale Nyström features of n training rows and of the test rows, with labels."""
    x, y, xt, yt = (mnist if name == "mnist" else cifar10)(arguments.data)
    chosen = np.random.default_rng(seed).permutation(len(x))[:n]
    x, y = x[chosen], y[chosen]
    if name == "mnist":
        pictures, tests, network, q = x[..., None], xt[:2000, ..., None], rbf(1e-3), 500
    else:
        pictures, tests = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, xt))
        network, q = (by_name("cntk6"), 300) if arguments.small else (by_name("cntk6-gap-fast"), 2_048)
    fitted = fit(pictures[:q], network)
    train, test = fitted.transform(pictures), fitted.transform(tests)
    scale = np.sqrt(np.square(train).sum(1).mean())
    as_features = [with_bias(torch.from_numpy(a / scale).double()) for a in (train, test)]
    return as_features[0], torch.from_numpy(y), as_features[1], torch.from_numpy(yt[: len(tests)])


def forgetting_order(Z: torch.Tensor, y: torch.Tensor, seed: int, epochs: int = 60) -> np.ndarray:
    """Rows by how often SGD forgot them, most often first; rows that were never right come before all others."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.zeros(10, Z.shape[1], dtype=Z.dtype, requires_grad=True)
    optimizer = torch.optim.SGD([W], lr=0.5, momentum=0.9)
    events = ForgettingEvents(len(y))
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(128):
            logits = Z[rows] @ W.T
            events.see(rows, logits.detach().argmax(1) == y[rows])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, y[rows]).backward()
            optimizer.step()
    return events.order(seed)


def for_the_mean(weights: torch.Tensor) -> torch.Tensor:
    """Weights (n,) of the sum of losses as weights of their mean over the rows with weight."""
    return int((weights > 0).sum()) * weights


def study(name: str, arguments: Arguments, seed: int) -> list[dict]:
    n = 2000 if arguments.small else (10_000 if name == "mnist" else 4_000)
    Z, y, Zt, yt = features_of(name, arguments, n, seed)
    problem = SoftmaxProblem(features=Z, targets=one_hot(y, 10), penalty=PENALTY[name], mean=True, tolerance=1e-4)
    summed = replace(problem, mean=False)  # weights that sum to 1 keep the scale of the loss while rows are dropped
    rows: list[dict] = []

    def record(method: str, size: int, weights: torch.Tensor) -> None:
        theta = problem.solve(weights).parameters
        found = {"accuracy": 100 * problem.accuracy(theta, Zt, yt), "outer": problem.outer(theta)}
        rows.append({"data": name, "method": method, "size": size, "seed": seed} | found)

    def binary(chosen: np.ndarray | torch.Tensor) -> torch.Tensor:
        weights = torch.zeros(n, dtype=torch.float64)
        weights[torch.as_tensor(np.asarray(chosen))] = 1.0
        return weights

    record("all data", n, torch.ones(n, dtype=torch.float64))
    sizes = [int(share * n) for share in SHARES]
    order = forward(problem, sizes[-1], start=rows_per_class(y.numpy(), 1, seed).tolist()).rows
    forgotten = forgetting_order(Z, y, seed)
    for size in sizes:
        record("bilevel, one by one", size, binary(order[:size]))
        record("uniform", size, binary(np.random.default_rng(seed).permutation(n)[:size]))
        record("k-means++", size, binary(k_means(Z.numpy(), size, seed)))
        record("forgetting", size, binary(forgotten[:size]))
        coreset = shrink_coreset(summed, ShrinkConfig(size=size, corrections=10, steps_per_beta=24))
        record("bilevel, regularized", size, for_the_mean(coreset.full_weights(n)))
    say(f"{name}, seed {seed}: {[(r['method'], r['size'], round(r['accuracy'], 1)) for r in rows]}")
    return rows


def main(arguments: Arguments) -> Record:
    sets, seeds = arguments.only or ("mnist", "cifar10"), 5
    parts = Parts(arguments.out, {"penalty": PENALTY, "size": arguments.size})
    rows = [
        row
        for name in sets
        for seed in range(seeds)
        for row in parts.rows(f"{name}, seed {seed}", partial(study, name, arguments, seed))
    ]
    keys = sorted({(row["data"], row["method"], row["size"]) for row in rows})
    claims = {
        f"{data}, {method}, {size}": mean_and_deviation(
            [r["accuracy"] for r in rows if (r["data"], r["method"], r["size"]) == (data, method, size)]
        )
        for data, method, size in keys
    }
    shown = [{**row, "method": f"{row['data']}: {row['method']}"} for row in rows if row["method"] != "all data"]
    figure = curves(shown, "size", "accuracy", by="method", title="Multiclass logistic regression on kernel features")
    return Record(rows, parts.settings | {"seeds": seeds}, claims, figure, parts.earlier_seconds)


if __name__ == "__main__":
    run("multiclass_logistic", main)
