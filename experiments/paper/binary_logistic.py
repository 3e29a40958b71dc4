"""Coresets for binary logistic regression (Fig. 6) against uniform, k-means++ and sensitivity sampling, on four sets.

As printed: standardized features, an L2 penalty of 0.01 |W|^2, ten random start rows, 100 conjugate-gradient steps at
most, k-means++ seeding, sensitivity over the grid k in {5, 10, 25}, R in {0.1, 1, 10, 100}. The best of the grid is
chosen by the loss on the training rows (the paper does not state its criterion). Hilbert coresets by Frank-Wolfe and
GIGA have 500 random features of the weighted Fisher information; the paper could not tune them above uniform and does
not show them. `--only phishing` runs only the named sets.

Claim of the paper: weighted coresets of at most 2 % and unweighted ones of at most 4 % of the data reach the accuracy
of all data. Every method trains the same model, mean weighted cross-entropy + penalty/2 |W|^2, on its rows and weights
(a weighted coreset sums: the mean's 1 / m is part of its weights).
"Reaches" means within one standard error of the test set, sqrt(p (1 - p) / n_test), of the accuracy with all data. The
small size takes 10,000 random training rows of ijcnn1, which makes a share of the data fewer rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus

from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.sensitivity import logistic_sensitivity, sample
from core.coresets.library.variants import forward
from core.coresets.library.weighted import PursuitConfig, build_coreset
from experiments.datasets import libsvm
from experiments.record import Arguments, Parts, Record, curves, run, say
from experiments.replay.hilbert_coresets import frank_wolfe, giga, laplace_draws, logistic_features

PENALTY = 0.02  # 0.01 |W|^2 as PENALTY / 2 |W|^2
SETS = ("phishing", "ijcnn1", "a9a", "german_scale")
GRID = [(k, R) for k in (5, 10, 25) for R in (0.1, 1.0, 10.0, 100.0)]
SHARES = (0.005, 0.01, 0.02, 0.04)
SMALL = {"ijcnn1": 10_000}
START = 10
FEATURES = 500  # of Hilbert coresets


def weights_on(n: int, rows, values) -> torch.Tensor:
    """(n,) with a mean of 1 on `rows`, so that the mean loss over them keeps its scale."""
    weights = torch.zeros(n, dtype=torch.float64)
    values = torch.as_tensor(np.asarray(values), dtype=torch.float64)
    weights[torch.as_tensor(rows)] = values * len(values) / values.sum()
    return weights


def sensitivities(x, y, seed: int) -> dict[str, np.ndarray]:
    """(n,) sampling probabilities for every setting of the grid."""
    signed = (np.where(y > 0, 1.0, -1.0)[:, None] * x).astype(np.float64)
    return {f"sensitivity {k} {R}": logistic_sensitivity(signed, k, radius=R, seed=seed) for k, R in GRID}


def baselines(x, probabilities: dict[str, np.ndarray], size: int, seed: int) -> dict[str, tuple]:
    """Rows and weights of the three sampling baselines."""
    generator = np.random.default_rng(seed)
    n = len(x)
    _, centers = kmeans_plusplus(x.astype(np.float64), size, random_state=seed)
    centers = np.unique(centers)
    nearest = torch.cdist(torch.tensor(x), torch.tensor(x[centers])).argmin(1).numpy()
    found = {
        "uniform": (generator.permutation(n)[:size], np.ones(size)),
        "k-means++": (centers, np.bincount(nearest, minlength=len(centers)) + 1e-9),
    }
    for setting, own in probabilities.items():
        found[setting] = sample(own, size, generator)
    return found


def hilbert_vectors(x, y, problem: SoftmaxProblem, seed: int) -> np.ndarray:
    """(n, 500) random features of the rows' losses; parameters are drawn around the fit to all data."""
    inputs = with_bias(torch.tensor(x)).double().numpy()
    W = problem.solve(torch.ones(len(x), dtype=torch.float64)).parameters.double().numpy()
    theta = W[1] - W[0]  # the softmax over two classes depends on the difference
    draws = laplace_draws(inputs, theta, len(x) * PENALTY / 2, FEATURES, seed)
    return logistic_features(inputs, y, draws, seed)


def hilbert(vectors: np.ndarray, size: int) -> dict[str, tuple]:
    """Rows and weights of the two constructions, of at most `size` rows."""
    found = {}
    for name, construct in (("Hilbert, Frank-Wolfe", frank_wolfe), ("Hilbert, GIGA", giga)):
        weights = construct(vectors, size)
        found[name] = (np.flatnonzero(weights), weights[weights > 0])
    return found


@dataclass(frozen=True)
class Measured:
    """One data set with its model."""

    name: str
    x: np.ndarray
    y: np.ndarray
    problem: SoftmaxProblem
    tests: torch.Tensor
    labels: torch.Tensor

    def row(self, method: str, share: float, weights: torch.Tensor, seed: int, summed: bool = False) -> dict:
        problem = replace(self.problem, mean=False) if summed else self.problem
        inner = problem.solve(weights)
        return {
            "data": self.name, "method": method, "share": share, "seed": seed, "rows": int((weights > 0).sum()),
            "accuracy": self.problem.accuracy(inner.parameters, self.tests, self.labels),
            "train_loss": problem.outer(inner.parameters),
        }  # fmt: skip


def load(name: str, arguments: Arguments) -> Measured:
    x, y, xt, yt = libsvm(arguments.data, name)
    if arguments.small and name in SMALL:
        some = np.random.default_rng(0).permutation(len(x))[: SMALL[name]]
        x, y = x[some], y[some]
    problem = SoftmaxProblem(
        features=with_bias(torch.tensor(x)), targets=one_hot(torch.tensor(y), 2, torch.float32),
        penalty=PENALTY, mean=True, tolerance=1e-4,
    )  # fmt: skip
    return Measured(name, x, y, problem, with_bias(torch.tensor(xt)), torch.tensor(yt))


def all_data(data: Measured) -> list[dict]:
    return [data.row("all data", 1.0, torch.ones(len(data.x), dtype=torch.float64), 0)]


def rivals(data: Measured, seed: int) -> list[dict]:
    n, rows = len(data.x), []
    vectors, probabilities = hilbert_vectors(data.x, data.y, data.problem, seed), sensitivities(data.x, data.y, seed)
    for share in SHARES:
        size = max(int(share * n), 2)
        for method, (chosen, values) in (baselines(data.x, probabilities, size, seed) | hilbert(vectors, size)).items():
            rows.append(data.row(method, share, weights_on(n, chosen, values), seed))
    return rows


def bilevel(data: Measured, small: bool, seed: int) -> list[dict]:
    n, rows = len(data.x), []
    start = np.random.default_rng(seed).permutation(n)[:START].tolist()
    largest = int(SHARES[-1] * n)
    found = forward(data.problem, largest, start=start, batch=max(1, largest // 60) if small else 1)
    for share in SHARES:
        own = found.rows[: max(int(share * n), START)]
        rows.append(data.row("bilevel, unweighted", share, weights_on(n, own, np.ones(len(own))), seed))
    # weighted coresets sum the losses: see core.coresets.library.weighted
    summed = replace(data.problem, mean=False)
    for share in SHARES[:-1]:
        size = max(int(share * n), START)
        batch = max(1, (size - START) // (20 if small else 100))
        config = PursuitConfig(size=size, batch=batch, initial_weight=1 / START, rescale=True)
        coreset = build_coreset(summed, start, config)
        rows.append(data.row("bilevel, weighted", share, coreset.full_weights(n), seed, summed=True))
    return rows


def study(name: str, arguments: Arguments, parts: Parts, rows: list[dict]) -> dict:
    data = load(name, arguments)
    rows += parts.rows(f"{name}, all data", partial(all_data, data))
    for seed in range(5):
        rows += parts.rows(f"{name}, rivals, seed {seed}", partial(rivals, data, seed))
    keep_best_sensitivity(rows, name)
    for seed in range(5):
        rows += parts.rows(f"{name}, bilevel, seed {seed}", partial(bilevel, data, arguments.small, seed))
    return claims_of(name, rows, len(data.labels))


def keep_best_sensitivity(rows: list[dict], name: str) -> None:
    """Replace the grid with its best setting at each share, chosen by the mean loss on the training rows."""
    grid = [row for row in rows if row["data"] == name and row["method"].startswith("sensitivity ")]
    for share in SHARES:
        here = [row for row in grid if row["share"] == share]
        settings = {row["method"] for row in here}
        losses = {s: np.mean([row["train_loss"] for row in here if row["method"] == s]) for s in settings}
        best = min(settings, key=lambda s: losses[s])
        for row in here:
            if row["method"] == best:
                row["setting"], row["method"] = best, "sensitivity"
            else:
                rows.remove(row)


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
    settings = {"penalty": PENALTY, "shares": SHARES, "start": START, "size": arguments.size}
    parts = Parts(arguments.out, settings)
    claims = {name: study(name, arguments, parts, rows) for name in arguments.only or SETS}
    shown = [{**row, "method": f"{row['data']}: {row['method']}"} for row in rows if row["share"] < 1]
    figure = curves(shown, "share", "accuracy", by="method", title="Binary logistic regression on coresets")
    return Record(rows, settings, claims, figure, parts.earlier_seconds)


if __name__ == "__main__":
    run("binary_logistic", main)
