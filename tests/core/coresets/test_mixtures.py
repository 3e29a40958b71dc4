"""Weighted EM and the implicit gradient through it; importance sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from core.coresets.mixtures import Mixture, MixtureProblem, Prior, negative_log_likelihood, start_mixture
from core.coresets.sensitivity import clustering_sensitivity, logistic_sensitivity, sample


def mixture_data(n=90):
    generator = torch.Generator().manual_seed(0)
    means = torch.tensor([[0.0, 0], [5, 1], [1, 5]], dtype=torch.float64)
    return means[torch.arange(n) % 3] + torch.randn(n, 2, generator=generator, dtype=torch.float64), means


def problem_for(x, means, **settings):
    return MixtureProblem(x=x, initial=start_mixture(means, 1.0), max_steps=3000, tolerance=1e-12, **settings)


def test_em_finds_what_scikit_learn_finds_when_the_prior_is_weak():
    x, means = mixture_data()
    found = problem_for(x, means, prior=Prior(1e-9, 0.1)).solve(torch.ones(90, dtype=torch.float64)).parameters
    reference = GaussianMixture(3, means_init=means.numpy(), reg_covar=0, tol=1e-10, max_iter=2000).fit(x.numpy())
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


def test_influence_through_em_is_the_finite_difference():
    x, means = mixture_data()
    problem = problem_for(x, means)
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
