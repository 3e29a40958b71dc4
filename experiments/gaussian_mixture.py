"""Coresets for Gaussian mixtures, without labels: relative error of the log-likelihood against two samplers.

Data: a mixture of well and badly separated Gaussians of unequal sizes. All methods are judged alike: EM from several
k-means++ starts on the weighted rows, the start with the lowest weighted objective wins, and its negative
log-likelihood on all rows is compared with the best fit to all rows: |NLL(coreset) - NLL(all)| / |NLL(all)|.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus

from core.coresets.mixtures import Mixture, MixtureProblem, Prior, start_mixture
from core.coresets.sensitivity import clustering_sensitivity, sample
from core.coresets.weighted import PursuitConfig, build_coreset
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

COMPONENTS, DIMENSIONS, STARTS = 5, 2, 3


def draw(n: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    means = generator.normal(size=(COMPONENTS, DIMENSIONS)) * 4
    shares = generator.dirichlet(np.full(COMPONENTS, 3.0))
    factors = generator.normal(size=(COMPONENTS, DIMENSIONS, DIMENSIONS)) * 0.7 + np.eye(DIMENSIONS)
    labels = generator.choice(COMPONENTS, size=n, p=shares)
    noise = generator.normal(size=(n, DIMENSIONS))
    return torch.tensor(means[labels] + np.einsum("nij,nj->ni", factors[labels], noise))


def fit(problem: MixtureProblem, weights: torch.Tensor, also: list[Mixture] = ()) -> Mixture:
    """The best of several starts by the objective on the weighted rows alone."""
    rows = torch.nonzero(weights).flatten().numpy()
    found = []
    for seed in range(STARTS):
        centers, _ = kmeans_plusplus(
            problem.x[rows].numpy(), COMPONENTS, sample_weight=weights[rows].numpy(), random_state=seed
        )
        found.append(problem.solve(weights, start_mixture(torch.tensor(centers), 1.0)).parameters)
    found += [problem.solve(weights, start).parameters for start in also]
    return min(found, key=lambda mixture: problem.objective(weights, mixture))


def study(n: int, sizes: list[int], seed: int, corrections: int) -> list[dict]:
    x = draw(n, seed)
    everything = torch.ones(n, dtype=torch.float64)
    problem = MixtureProblem(x=x, initial=start_mixture(x[:COMPONENTS], 1.0), prior=Prior(1.0, 0.1), tolerance=1e-5)
    best = fit(problem, everything)
    reference = problem.outer(best)
    rows = []

    def record(method: str, size: int, weights: torch.Tensor, also: list[Mixture] = ()) -> None:
        value = problem.outer(fit(problem, weights, also))
        rows.append({"seed": seed, "method": method, "size": size, "error": abs(value - reference) / abs(reference)})

    probabilities = clustering_sensitivity(x.numpy(), COMPONENTS, seed)
    for repeat in range(5):
        generator = np.random.default_rng(1000 * seed + repeat)
        for size in sizes:
            weights = torch.zeros(n, dtype=torch.float64)
            weights[generator.permutation(n)[:size]] = n / size
            record("uniform", size, weights)
            drawn, values = sample(probabilities, size, generator)
            weights = torch.zeros(n, dtype=torch.float64)
            weights[drawn] = torch.tensor(values)
            record("sensitivity", size, weights)
    # Algorithm 1 begins with rows near the centers of k-means++; its inner problems follow on from there.
    _, start = kmeans_plusplus(x.numpy(), 2 * COMPONENTS, random_state=seed)
    few = torch.zeros(n, dtype=torch.float64).index_fill(0, torch.tensor(start).long(), n / len(start))
    problem.initial = fit(problem, few)
    for size in sizes:
        config = PursuitConfig(size=size, corrections=corrections, initial_weight=n / (2 * COMPONENTS), batch=2)
        coreset = build_coreset(problem, start.tolist(), config)
        record("bilevel", size, coreset.full_weights(n))
    return rows


def main(arguments: Arguments) -> Record:
    n, sizes, seeds = (2000, [30, 60, 100], 2) if arguments.small else (10_000, [30, 50, 70, 100], 5)
    corrections = 8 if arguments.small else 15
    rows: list[dict] = []
    for seed in range(seeds):
        rows += study(n, sizes, seed, corrections)
        say(f"seed {seed} done")
    claims = {
        f"{method}, {size}": mean_and_deviation(
            [r["error"] for r in rows if r["method"] == method and r["size"] == size]
        )
        for method in ("bilevel", "uniform", "sensitivity")
        for size in sizes
    }
    figure = curves(rows, "size", "error", by="method", title="Gaussian mixtures: relative error of the NLL")
    figure.update_yaxes(type="log")
    return Record(rows, {"n": n, "components": COMPONENTS, "corrections": corrections, "seeds": seeds}, claims, figure)


if __name__ == "__main__":
    run("gaussian_mixture", main)
