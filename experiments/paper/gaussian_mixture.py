"""Coresets for Gaussian mixtures, without labels (Fig. 5): relative error of the log-likelihood against two samplers.

"bilevel, unweighted" is as printed: one by one without weights, from 10 random rows. "bilevel" corrects weights.

Data: a mixture of well and badly separated Gaussians of unequal sizes. All methods are evaluated in the same way: EM on
the weighted rows, with the same prior, from the fit to all rows (so that the result depends on rows and weights, not on
a random start), and the negative log-likelihood on all rows is compared with that fit's: |NLL(coreset) - NLL(all)| /
|NLL(all)|. Weights sum to n, so that the prior has the same influence as with all rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from sklearn.cluster import KMeans

from core.coresets.library.mixtures import Mixture, MixturePrior, MixtureProblem, negative_log_likelihood, start_mixture
from core.coresets.library.regularized import project_to_simplex
from core.coresets.library.sensitivity import clustering_sensitivity, sample
from core.coresets.library.variants import forward
from core.coresets.library.weighted import PursuitConfig, build_coreset
from experiments.record import Arguments, Parts, Record, curves, mean_and_deviation, run

COMPONENTS, DIMENSIONS = 5, 2
START = 20  # random start rows of Algorithm 1
PRINTED_START = 10  # of the unweighted construction
PRIOR_SHARE, PRIOR_SCALE = 0.01, 0.3  # pseudo-observations per component, as a share of n, and their variance


def draw(n: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    means = generator.normal(size=(COMPONENTS, DIMENSIONS)) * 4
    shares = generator.dirichlet(np.full(COMPONENTS, 3.0))
    factors = generator.normal(size=(COMPONENTS, DIMENSIONS, DIMENSIONS)) * 0.7 + np.eye(DIMENSIONS)
    labels = generator.choice(COMPONENTS, size=n, p=shares)
    noise = generator.normal(size=(n, DIMENSIONS))
    return torch.tensor(means[labels] + np.einsum("nij,nj->ni", factors[labels], noise))


def likelihood(mixture: Mixture, x: torch.Tensor) -> float:
    """The mean negative log-likelihood of all rows."""
    return float(negative_log_likelihood(mixture.flat(), x, COMPONENTS).mean())


def study(n: int, sizes: list[int], seed: int, corrections: int, steps: int) -> list[dict]:
    x = draw(n, seed)
    everything = torch.ones(n, dtype=torch.float64)
    centers = KMeans(COMPONENTS, n_init=3, random_state=seed).fit(x.numpy()).cluster_centers_
    prior = MixturePrior(PRIOR_SHARE * n, PRIOR_SCALE)
    begin = start_mixture(torch.tensor(centers), 1.0)
    fit = MixtureProblem(x=x, initial=begin, prior=prior).solve(everything).parameters
    problem = MixtureProblem(x=x, initial=fit, prior=prior, max_steps=500, tolerance=1e-6, outer_prior=True, warm=False)
    reference = likelihood(fit, x)
    rows = []

    def record(method: str, size: int, weights: torch.Tensor) -> None:
        error = (likelihood(problem.solve(weights).parameters, x) - reference) / abs(reference)
        rows.append({"seed": seed, "method": method, "size": size, "error": abs(error), "signed": error})

    probabilities = clustering_sensitivity(x.numpy(), COMPONENTS, seed)
    for repeat in range(5):
        generator = np.random.default_rng(1000 * seed + repeat)
        for size in sizes:
            weights = torch.zeros(n, dtype=torch.float64)
            weights[generator.permutation(n)[:size]] = n / size
            record("uniform", size, weights)
            drawn, values = sample(probabilities, size, generator)
            weights = torch.zeros(n, dtype=torch.float64)
            weights[drawn] = torch.tensor(values * n / values.sum())
            record("sensitivity", size, weights)
    # without weights each chosen row counts once, so the prior of the selection is that of this number of rows
    own_prior = MixturePrior(PRIOR_SHARE * sizes[-1], PRIOR_SCALE)
    unweighted = MixtureProblem(
        x=x, initial=fit, prior=own_prior, max_steps=500, tolerance=1e-6, outer_prior=True, warm=False
    )
    begin_rows = np.random.default_rng(seed).permutation(n)[:PRINTED_START].tolist()
    order = forward(unweighted, sizes[-1], start=begin_rows).rows
    for size in sizes:
        weights = torch.zeros(n, dtype=torch.float64)
        weights[order[:size]] = n / size
        record("bilevel, unweighted", size, weights)
    coreset = np.random.default_rng(seed).permutation(n)[:START].tolist()
    for before, size in zip([START, *sizes], sizes, strict=False):
        batch = max(1, (size - before) // steps)
        config = PursuitConfig(
            size=size, corrections=corrections, initial_weight=n / START, batch=batch,
            project=partial(project_to_simplex, total=float(n)),
        )  # fmt: skip
        coreset = build_coreset(problem, coreset, config)
        record("bilevel", size, coreset.full_weights(n))
    return rows


def main(arguments: Arguments) -> Record:
    n, sizes, seeds = (1000, [30, 60, 100], 5) if arguments.small else (10_000, [30, 50, 70, 100], 5)
    corrections, steps = (8, 6) if arguments.small else (15, 40)
    settings = {"n": n, "components": COMPONENTS, "sizes": sizes, "corrections": corrections, "steps": steps}
    parts = Parts(arguments.out, settings)
    rows: list[dict] = []
    for seed in [int(name) for name in arguments.only] or range(seeds):
        rows += parts.rows(f"seed {seed}", partial(study, n, sizes, seed, corrections, steps))
    claims = {
        f"{method}, {size}": mean_and_deviation(
            [r["error"] for r in rows if r["method"] == method and r["size"] == size]
        )
        for method in ("bilevel", "bilevel, unweighted", "uniform", "sensitivity")
        for size in sizes
    }
    figure = curves(rows, "size", "error", by="method", title="Gaussian mixtures: relative error of the NLL")
    figure.update_yaxes(type="log")
    return Record(rows, settings | {"seeds": seeds}, claims, figure, parts.earlier_seconds)


if __name__ == "__main__":
    run("gaussian_mixture", main)
