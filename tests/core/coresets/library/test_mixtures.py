"""Weighted EM and the implicit gradient through it; importance sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from core.coresets.library.mixtures import (
    Mixture,
    MixturePrior,
    MixtureProblem,
    negative_log_likelihood,
    responsibilities,
    start_mixture,
)
from core.coresets.library.sensitivity import clustering_sensitivity, logistic_sensitivity, sample


def mixture_data(n=90):
    generator = torch.Generator().manual_seed(0)
    means = torch.tensor([[0.0, 0], [5, 1], [1, 5]], dtype=torch.float64)
    return means[torch.arange(n) % 3] + torch.randn(n, 2, generator=generator, dtype=torch.float64), means


def problem_for(x, means, **settings):
    return MixtureProblem(x=x, initial=start_mixture(means, 1.0), max_steps=3000, tolerance=1e-12, **settings)


def test_em_finds_what_scikit_learn_finds_when_the_prior_is_weak():
    x, means = mixture_data()
    found = problem_for(x, means, prior=MixturePrior(1e-9, 0.1)).solve(torch.ones(90, dtype=torch.float64)).parameters
    start = {
        "weights_init": np.full(3, 1 / 3),
        "means_init": means.numpy(),
        "precisions_init": np.stack([np.eye(2)] * 3),
    }
    reference = GaussianMixture(3, **start, reg_covar=0, tol=1e-10, max_iter=2000).fit(x.numpy())
    np.testing.assert_allclose(found.means, reference.means_, atol=1e-3)
    np.testing.assert_allclose(found.covariances, reference.covariances_, atol=1e-3)
    ours = negative_log_likelihood(found.flat(), x, 3)
    np.testing.assert_allclose(ours, -reference.score_samples(x.numpy()), atol=1e-3)


def test_a_weight_of_two_is_the_same_as_the_row_twice():
    x, means = mixture_data(30)
    weights = torch.ones(30, dtype=torch.float64)
    weights[:5] = 2.0
    twice = torch.cat([x, x[:5]])
    one = problem_for(x, means).solve(weights).parameters
    two = problem_for(twice, means).solve(torch.ones(35, dtype=torch.float64)).parameters
    torch.testing.assert_close(one.means, two.means, atol=1e-8, rtol=0)


def test_a_component_on_a_single_row_does_not_collapse():
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [50, 50]], dtype=torch.float64)
    found = problem_for(x, torch.tensor([[0.0, 0], [50, 50]], dtype=torch.float64)).solve(torch.ones(4).double())
    assert float(torch.linalg.det(found.parameters.covariances).min()) > 1e-3


@pytest.mark.parametrize("outer_prior", [False, True])
def test_influence_through_em_is_the_finite_difference(outer_prior):
    x, means = mixture_data()
    problem = problem_for(x, means, outer_prior=outer_prior)
    weights = torch.zeros(90, dtype=torch.float64)
    weights[:24] = torch.linspace(0.5, 3, 24)
    inner = problem.solve(weights)
    assert inner.converged
    found = problem.influence(inner.parameters, weights)
    assert found.converged
    for row in (0, 11, 40, 77):
        ends = []
        for step in (2e-4, 0.0) if row >= 24 else (1e-4, -1e-4):
            moved = weights.clone()
            moved[row] += step
            ends.append(problem.outer(problem.solve(moved, inner.parameters).parameters))
        assert float(found.scores[row]) == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=5e-3, abs=1e-7)


@pytest.mark.slow
def test_newton_finishes_where_em_is_slow_and_ends_at_the_same_fit():
    """Overlapping components: EM alone needs more than 60 steps."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(120, 2, generator=generator, dtype=torch.float64)
    x[::2, 0] += 2.5
    means = torch.tensor([[-0.5, 0.0], [3.0, 0.0]], dtype=torch.float64)
    weights = torch.ones(120, dtype=torch.float64)
    begin = start_mixture(means, 1.0)
    short = MixtureProblem(x=x, initial=begin, prior=MixturePrior(5.0, 1.0), max_steps=60, tolerance=1e-9).solve(
        weights
    )
    mixture = begin
    problem = MixtureProblem(x=x, initial=begin, prior=MixturePrior(5.0, 1.0))
    for _ in range(5000):
        mixture = problem._maximize(x, weights, responsibilities(mixture, x))
    assert short.converged
    torch.testing.assert_close(short.parameters.means, mixture.means, atol=1e-6, rtol=0)
    torch.testing.assert_close(short.parameters.covariances, mixture.covariances, atol=1e-6, rtol=0)


def test_with_the_prior_in_the_outer_loss_no_coreset_is_better_than_all_rows():
    x, means = mixture_data()
    problem = problem_for(x, means, outer_prior=True, prior=MixturePrior(5.0, 1.0))
    everything = torch.ones(90, dtype=torch.float64)
    best = problem.outer(problem.solve(everything).parameters)
    for seed in range(5):
        drawn = torch.rand(90, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert problem.outer(problem.solve(3 * drawn).parameters) >= best
    assert problem.influence(problem.solve(everything).parameters, everything).scores.abs().max() < 1e-7


def test_flat_and_structured_parameters_agree():
    x, means = mixture_data(30)
    generator = torch.Generator().manual_seed(2)
    S = torch.randn(3, 2, 2, generator=generator, dtype=torch.float64)
    mixture = Mixture(torch.tensor([0.2, 0.3, 0.5]).double().log(), means, S @ S.mT + torch.eye(2))
    density = sum(
        w * torch.distributions.MultivariateNormal(m, c).log_prob(x).exp()
        for w, m, c in zip([0.2, 0.3, 0.5], mixture.means, mixture.covariances, strict=True)
    )
    torch.testing.assert_close(negative_log_likelihood(mixture.flat(), x, 3), -density.log(), rtol=1e-6, atol=1e-6)
    again = Mixture.from_flat(mixture.flat(), 3, 2)
    torch.testing.assert_close(again.covariances, mixture.covariances)
    torch.testing.assert_close(again.log_proportions.exp().sum(), torch.ones((), dtype=torch.float64))


def test_importance_weights_are_unbiased():
    probabilities = np.array([0.5, 0.2, 0.2, 0.1])
    values = np.array([1.0, 10, -3, 40])
    sums = []
    for seed in range(3000):
        rows, weights = sample(probabilities, 5, np.random.default_rng(seed))
        sums.append((weights * values[rows]).sum())
    assert np.mean(sums) == pytest.approx(values.sum(), abs=4 * np.std(sums) / np.sqrt(3000))


def test_far_rows_are_more_sensitive():
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=(200, 2)), [[8.0, 8.0]]])
    for probabilities in (clustering_sensitivity(x, 3, 0), logistic_sensitivity(x, 3, 1.0, 0)):
        assert probabilities.sum() == pytest.approx(1)
        assert probabilities.argmax() == 200
