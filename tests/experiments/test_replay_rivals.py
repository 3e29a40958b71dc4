"""The rivals of replay memories and coresets, against hand computations and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from experiments.replay.exemplar_streaming import ExemplarStreaming
from experiments.replay.forgetting_events import ForgettingEvents
from experiments.replay.gradient_selection import GradientSelection, row_gradients
from experiments.replay.hilbert_coresets import frank_wolfe, giga, laplace_draws, logistic_features
from experiments.replay.variational_continual import Data, NormalNetwork, Schedule, refined


def test_row_gradients_are_those_of_one_row_at_a_time():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    found = row_gradients(model, x, y)
    for k in range(6):
        model.eval()
        model.zero_grad()
        cross_entropy(model(x[k : k + 1]), y[k : k + 1]).backward()
        torch.testing.assert_close(found[k], torch.cat([p.grad.flatten() for p in model.parameters()]))


def cosines(gradients: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(gradients, dim=1)
    return unit @ unit.T


def test_gradient_selection_scores_rows_by_their_largest_cosine():
    memory = GradientSelection(4, np.random.default_rng(0))
    gradients = torch.tensor([[1.0, 0.0], [2.0, 2.0], [0.0, -3.0]])
    memory.add(np.array([7, 8, 9]), cosines(gradients))
    assert memory.kept == [7, 8, 9]
    # the first has nothing to compare with; 45 degrees to the first; 90 degrees to the first, 135 to the second
    np.testing.assert_allclose(memory.scores, [1.1, 1 + np.sqrt(0.5), 1.0], atol=1e-6)


def test_a_full_gradient_memory_takes_only_rows_at_obtuse_angles_to_all_compared_ones():
    memory = GradientSelection(1, np.random.default_rng(0), kept=[0], scores=[1.5])
    for _ in range(50):
        memory.add(np.array([1]), cosines(torch.tensor([[1.0, 0.0], [1.0, 5.0]])))
    assert memory.kept == [0]
    for _ in range(50):
        if memory.kept == [0]:
            memory.add(np.array([2]), cosines(torch.tensor([[1.0, 0.0], [-1.0, 1.0]])))
    assert memory.kept == [2]
    np.testing.assert_allclose(memory.scores, [1 - np.sqrt(0.5)], atol=1e-6)


def test_gradient_selection_replaces_with_the_printed_probabilities():
    memory = GradientSelection(2, np.random.default_rng(0), kept=[0, 1], scores=[0.5, 1.5])
    taken = [memory._replaced(0.4) for _ in range(20_000)]
    shares = [taken.count(0) / len(taken), taken.count(1) / len(taken)]
    np.testing.assert_allclose(shares, [0.25 * 0.5 / 0.9, 0.75 * 1.5 / 1.9], atol=0.01)


def test_exemplar_streaming_merges_the_two_closest_centers_before_a_row_enters():
    memory = ExemplarStreaming(2)
    memory.add(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([3, 3, 3]))
    assert memory.centers[3].flatten().tolist() == [0.5, 10.0]
    assert memory.counts[3].tolist() == [2, 1]
    memory.add(torch.tensor([[11.0], [5.0]]), torch.tensor([3, 1]))
    np.testing.assert_allclose(memory.centers[3].flatten(), [11 / 3, 11.0], rtol=1e-6)
    inputs, labels = memory.memory
    assert labels.tolist() == [3, 3, 1]
    assert inputs[-1].tolist() == [5.0]


def test_exemplars_weighted_by_their_counts_keep_the_mean_of_the_class():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 2
    memory = ExemplarStreaming(5)
    memory.add(x, y)
    for label in (0, 1):
        counts = memory.counts[label]
        assert len(counts) == 5
        assert counts.sum() == 30
        mean = (counts[:, None] * memory.centers[label]).sum(0) / 30
        torch.testing.assert_close(mean, x[y == label].mean(0), atol=1e-5, rtol=1e-5)


def test_forgetting_events_agree_with_a_count_by_hand():
    visits = np.random.default_rng(0).random((30, 12)) < np.linspace(0, 1, 12)  # (visit, row): right or not
    events = ForgettingEvents(12)
    for right in visits:
        for rows in torch.arange(12).split(5):
            events.see(rows, torch.from_numpy(right)[rows])
    by_hand = [sum(visits[k - 1, r] and not visits[k, r] for k in range(1, 30)) for r in range(12)]
    assert events.times.tolist() == by_hand
    order = events.order(seed=0)
    assert order[0] == 0  # never learned
    assert sorted(order.tolist()) == list(range(12))
    assert all(by_hand[a] >= by_hand[b] for a, b in itertools.pairwise(order[1:]))


@pytest.fixture(name="vectors")
def some_vectors():
    return np.random.default_rng(1).normal(size=(40, 6)) + 0.3


def error(vectors, weights):
    return np.linalg.norm(vectors.sum(0) - weights @ vectors)


def test_one_row_of_giga_is_the_best_single_row(vectors):
    target = vectors.sum(0)
    singles = []
    for row in vectors:
        weight = max(row @ target / (row @ row), 0)
        singles.append(np.linalg.norm(target - weight * row))
    np.testing.assert_allclose(error(vectors, giga(vectors, 1)), min(singles))


def test_a_step_of_frank_wolfe_is_the_best_on_its_segment(vectors):
    norms = np.linalg.norm(vectors, axis=1)
    for steps in range(1, 8):
        before, after = frank_wolfe(vectors, steps), frank_wolfe(vectors, steps + 1)
        gaps = vectors @ (vectors.sum(0) - before @ vectors) / norms
        vertex = np.eye(len(vectors))[gaps.argmax()] * norms.sum() / norms
        best = min(error(vectors, (1 - share) * before + share * vertex) for share in np.linspace(0, 1, 2001))
        assert best - 1e-3 <= error(vectors, after) <= best + 1e-9  # the grid is coarser than the closed form


def test_a_step_of_giga_is_the_best_on_the_geodesic_to_the_best_row(vectors):
    norms, goal = np.linalg.norm(vectors, axis=1), vectors.sum(0)

    def best_scale(sum_of_rows):
        return np.linalg.norm(goal - max(sum_of_rows @ goal / (sum_of_rows @ sum_of_rows), 0) * sum_of_rows)

    for steps in range(1, 8):
        before, after = giga(vectors, steps), giga(vectors, steps + 1)
        reached = before @ vectors
        reached = reached / np.linalg.norm(reached)
        tangents = vectors / norms[:, None]
        tangents = tangents - np.outer(tangents @ reached, reached)
        lengths = np.linalg.norm(tangents, axis=1)
        row = vectors[np.where(lengths > 1e-9, tangents @ goal / np.maximum(lengths, 1e-9), -np.inf).argmax()]
        shares = np.linspace(0, 1, 2001)[:, None]
        line = (1 - shares) * reached + shares * row / np.linalg.norm(row)
        best = min(map(best_scale, line))
        assert best - 1e-3 <= error(vectors, after) <= best + 1e-9
        assert (after > 0).sum() <= steps + 1


def test_hilbert_coresets_reach_the_sum_with_all_rows(vectors):
    assert error(vectors, giga(vectors, 400)) < 0.02 * np.linalg.norm(vectors.sum(0))
    assert error(vectors, frank_wolfe(vectors, 2000)) < 0.2 * np.linalg.norm(vectors.sum(0))
    norms = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(frank_wolfe(vectors, 30) @ norms, norms.sum())


def test_random_features_have_the_weighted_fisher_inner_product():
    rng = np.random.default_rng(0)
    x, y, theta = rng.normal(size=(5, 3)), np.array([0, 1, 1, 0, 1]), rng.normal(size=3)
    thetas = np.tile(theta, (40_000, 1))
    v = logistic_features(x, y, thetas, seed=0)
    at = torch.tensor(theta, requires_grad=True)
    losses = torch.nn.functional.softplus(-torch.tensor(np.where(y > 0, 1.0, -1.0)) * (torch.tensor(x) @ at))
    gradients = np.stack([torch.autograd.grad(one, at, retain_graph=True)[0].numpy() for one in losses])
    np.testing.assert_allclose(v @ v.T, gradients @ gradients.T, atol=0.02)


def test_laplace_draws_have_the_inverse_hessian_as_covariance():
    rng = np.random.default_rng(0)
    x, theta = rng.normal(size=(50, 2)), np.array([0.3, -0.2])
    draws = laplace_draws(x, theta, 1.0, 40_000, seed=0)
    p = 1 / (1 + np.exp(-x @ theta))
    covariance = np.linalg.inv((x.T * (p * (1 - p))) @ x + np.eye(2))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.003)
    np.testing.assert_allclose(draws.mean(0), theta, atol=0.01)


def test_the_divergence_of_a_normal_network_is_the_closed_form():
    torch.manual_seed(0)
    model, prior = NormalNetwork(6, (0, 1)), NormalNetwork(6, (2, 3))
    for network in (model, prior):
        for layer in network.layers:
            layer.log_variance.data.normal_()
    for other in (prior, None):
        expected = torch.zeros(())
        for k, layer in enumerate(model.layers):
            own = torch.distributions.Normal(layer.mean, (layer.log_variance / 2).exp())
            standard = torch.zeros_like(layer.mean), torch.ones_like(layer.mean)
            mean, deviation = (
                standard if other is None else (other.layers[k].mean, other.layers[k].log_variance.div(2).exp())
            )
            expected = (
                expected + torch.distributions.kl_divergence(own, torch.distributions.Normal(mean, deviation)).sum()
            )
        torch.testing.assert_close(model.divergence(other), expected)
        model.zero_grad()
        (0.25 * model.divergence(other)).backward()
        gradients = [part.grad for part in model.parameters()]
        for part in model.parameters():
            part.grad = torch.zeros_like(part)
        model.add_divergence_gradient(other, 0.25)
        for part, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(part.grad, gradient, atol=1e-5, rtol=1e-4)


def test_outputs_of_a_normal_layer_have_the_moments_of_drawn_weights():
    torch.manual_seed(0)
    layer = NormalNetwork(4).layers[1]
    layer.log_variance.data.normal_()
    x = torch.randn(4)
    drawn = layer(x.expand(1, 200_000, -1)).detach()[0]
    weights = torch.distributions.Normal(layer.mean, (layer.log_variance / 2).exp()).sample((200_000,))[:, 0]
    by_weights = x @ weights[:, :-1] + weights[:, -1]
    torch.testing.assert_close(drawn.mean(0), by_weights.mean(0), atol=0.03, rtol=0.01)
    torch.testing.assert_close(drawn.std(0), by_weights.std(0), atol=0.01, rtol=0.02)


def test_the_coreset_changes_a_copy_of_the_posterior():
    torch.manual_seed(0)
    model = NormalNetwork(5)
    before = [layer.mean.detach().clone() for layer in model.layers]
    data = Data(torch.randn(6, 784), torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(6)[None])
    own = refined(model, data, Schedule(5))
    assert all(torch.equal(a, layer.mean) for a, layer in zip(before, model.layers, strict=True))
    assert own.divergence(model).item() > 0
