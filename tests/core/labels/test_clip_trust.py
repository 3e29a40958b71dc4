"""Trust in labels of clips: the fitted pool against a grid, its weights, planted errors, and the predictor by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from core.config import HeadConfig
from core.labels.clip_trust import GAMMA_SPREAD, SMOOTHING, clip_predictor, clip_trust, clip_weights, fit_pool
from core.labels.trust import BETA_SPREAD, FLOOR, RIGHT, SUSPECTED, WRONG, trusted
from core.similarity.graph import SimilarityGraph
from core.types import UNLABELED


def predictions(truth, sharpness: float, seed: int, n_classes: int = 4):
    """(m, C) log-probabilities that favor the truth."""
    noise = np.random.default_rng(seed).normal(size=(len(truth), n_classes))
    return log_softmax(sharpness * np.eye(n_classes)[truth] + noise, axis=1)


def line(n: int, n_classes: int = 4):
    """A graph of n items in clusters of items next to each other, their classes, and features of the clusters."""
    rng = np.random.default_rng(0)
    truth = np.arange(n) * n_classes // n
    places = truth * 100.0 + np.arange(n)
    far = np.abs(places[:, None] - places[None])
    near = np.argsort(far, axis=1, kind="stable")[:, 1:5]
    graph = SimilarityGraph(
        rows=np.arange(n),
        neighbors=near,
        distances=np.take_along_axis(far, near, 1).astype(np.float32),
        typical=100.0,
    )
    return graph, truth, (np.eye(n_classes)[truth] @ rng.normal(size=(n_classes, 8)) + rng.normal(size=(n, 8)) / 4)


def test_the_fitted_pool_is_the_maximum_of_a_grid():
    truth = np.random.default_rng(0).integers(0, 4, 60)
    both = np.hstack([predictions(truth, 2.0, 1), predictions(truth, 1.0, 2)])
    labels = np.where(np.arange(60) < 6, (truth + 1) % 4, truth)

    def value(beta: float, e: float, share: float) -> float:
        q = softmax(beta * (share * both[:, :4] + (1 - share) * both[:, 4:]), axis=1)[np.arange(60), labels]
        data = np.log((1 - e) * q + e / 3 * (1 - q)).sum() + np.log(share * (1 - share))
        return data + WRONG * np.log(e) + RIGHT * np.log(1 - e) - np.log(beta) ** 2 / (2 * BETA_SPREAD**2)

    fit = fit_pool(both, labels)
    grid = [
        value(np.exp(log_beta), e, share)
        for log_beta in np.linspace(-1.5, 1.5, 31)
        for e in np.linspace(0.005, 0.4, 40)
        for share in np.linspace(0.02, 0.98, 25)
    ]
    assert value(fit.beta, fit.e, fit.share) >= max(grid) - 1e-3
    np.testing.assert_allclose(fit.logits(both), fit.share * both[:, :4] + (1 - fit.share) * both[:, 4:])


def test_the_fitted_power_of_earlier_rounds_is_the_maximum_of_a_grid():
    truth = np.random.default_rng(0).integers(0, 4, 60)
    both = np.hstack([predictions(truth, 1.0, 1), predictions(truth, 1.0, 2)])
    earlier = predictions(truth, 2.0, 3)
    labels = np.where(np.arange(60) < 6, (truth + 1) % 4, truth)
    fit = fit_pool(both, labels, earlier, 0.4)
    pooled = fit.share * both[:, :4] + (1 - fit.share) * both[:, 4:]

    def value(gamma: float) -> float:
        q = softmax(fit.beta * pooled + gamma * earlier, axis=1)[np.arange(60), labels]
        data = np.log((1 - fit.e) * q + fit.e / 3 * (1 - q)).sum()
        return data - (np.log(gamma) - np.log(0.4)) ** 2 / (2 * GAMMA_SPREAD**2)

    assert value(fit.gamma) >= max(value(float(np.exp(one))) for one in np.linspace(-3, 2, 201)) - 1e-4
    np.testing.assert_allclose(fit.beta * fit.logits(both, earlier), fit.beta * pooled + fit.gamma * earlier)
    assert fit_pool(both, labels).gamma == 0


def test_earlier_rounds_find_errors_that_the_other_predictors_do_not():
    """The last ten labels are older than the first round: nothing says that one of them is wrong."""
    truth = np.arange(40) % 4
    labels = np.where(np.isin(np.arange(40), (3, 17, 35)), (truth + 1) % 4, truth)
    earlier = np.log(0.998 * np.eye(4)[truth] + 0.002 / 4)
    earlier[30:] = np.nan

    def even(labels):
        return np.full((40, 8), np.log(0.25))

    found = clip_trust(labels, 4, even, earlier=earlier)
    assert found.suspects.tolist() == [3, 17] and found.n_checked == 40
    assert (found.belief[[3, 17]].argmax(1) == truth[[3, 17]]).all()
    assert found.weights[30:].min() == 1.0
    confirmed = clip_trust(labels, 4, even, np.arange(40) == 3, earlier)
    assert confirmed.suspects.tolist() == [17]
    assert not len(clip_trust(labels, 4, even).suspects)


def test_the_better_predictor_has_the_larger_share():
    truth = np.random.default_rng(0).integers(0, 4, 80)
    good, bad = predictions(truth, 4.0, 1), predictions(truth, 0.0, 2)
    assert fit_pool(np.hstack([good, bad]), truth).share > 0.6 > 0.4 > fit_pool(np.hstack([bad, good]), truth).share


def test_weights_are_full_from_three_quarters_on_and_the_trust_below_one_half():
    trust = np.array([1.0, 0.9, 0.75, 0.6, 0.5, 0.3, 0.1, 0.01])
    np.testing.assert_allclose(clip_weights(trust), [1, 1, 1, 0.7, 0.5, 0.3, 0.1, FLOOR], atol=1e-6)
    every = np.linspace(0, 1, 1_001)
    assert (np.diff(clip_weights(every)) >= 0).all() and np.diff(clip_weights(every)).max() < 0.003
    assert ((clip_weights(every) < SUSPECTED) == (every < SUSPECTED)).all(), "a suspect is the same as elsewhere"


@pytest.mark.parametrize("pool_rows", [np.arange(80), np.arange(0, 80, 2)])
def test_planted_errors_lose_trust_and_right_labels_keep_full_weight(pool_rows):
    graph, truth, features = line(80)
    labels = np.full(80, UNLABELED)
    labels[::2] = truth[::2]
    wrong = np.array([6, 30, 52])
    labels[wrong] = (truth[wrong] + 1) % 4
    predict = clip_predictor(graph, features, pool_rows, 4, 0.7, HeadConfig(dimensions=8))
    found = clip_trust(labels, 4, predict)
    assert set(found.suspects.tolist()) == set(wrong.tolist())
    assert (found.belief[wrong].argmax(1) == truth[wrong]).all()
    right = np.setdiff1d(np.arange(80), wrong)
    assert (found.weights[right] == 1).all() and found.n_checked == 40 and 0.02 < found.wrong_share < 0.2
    confirmed = np.arange(80) == wrong[0]
    again = clip_trust(labels, 4, predict, confirmed)
    assert again.weights[wrong[0]] == 1 and again.belief[wrong[0], labels[wrong[0]]] == 1
    assert (again.weights[wrong[1:]] < SUSPECTED).all()


def test_few_labels_and_labels_alone_in_their_class_are_trusted():
    graph, truth, features = line(80)
    predict = clip_predictor(graph, features, np.arange(80), 4, 0.7, HeadConfig(dimensions=8))
    few = np.full(80, UNLABELED)
    few[:19] = truth[:19]
    np.testing.assert_array_equal(clip_trust(few, 4, predict).weights, trusted(few, 4).weights)
    single = np.full(80, UNLABELED)
    single[:40] = truth[:40]
    single[5] = 3  # among the items of class 0, and the only label of class 3
    found = clip_trust(single, 4, predict)
    assert found.weights[5] == 1 and found.belief[5].tolist() == [0, 0, 0, 1] and found.n_checked == 39
    assert clip_trust(np.zeros(80, np.int64), 1, predict).n_checked == 0


def test_predictions_are_those_of_the_walk_from_equal_shares_and_from_the_head():
    """Two neighbors, of which one is labeled. Two more items have the other labels, and no edge has a short way."""
    graph = SimilarityGraph(
        rows=np.array([1, 2, 4, 5]),
        neighbors=np.array([[1], [0], [3], [2]]),
        distances=np.array([[1], [1], [50], [50]], np.float32),
        typical=2.0,
    )
    features = np.array([[9, 9], [1, 0], [1, 0.1], [9, 9], [0, 1], [0.1, 1]], np.float32)
    labels = np.full(6, UNLABELED)
    labels[[1, 4]] = 0, 1
    config = HeadConfig(dimensions=2, neighbors=0)
    predict = clip_predictor(graph, features, graph.rows, 3, 0.7, config)
    found = np.exp(predict(labels))
    assert np.isnan(found[[0, 3]]).all() and np.isfinite(found[graph.rows]).all()
    a = np.exp(-((0.5 / 0.7) ** 4))
    walk = np.array([a + (1 - a) / 3, (1 - a) / 3, (1 - a) / 3])
    np.testing.assert_allclose(found[2, :3], (1 - SMOOTHING) * walk + SMOOTHING / 3, atol=1e-3)
    far = (found[5, 3:] - SMOOTHING / 3) / (1 - SMOOTHING)  # the head alone, which has no class 2
    assert far[1] > 0.9 and abs(far[2]) < 1e-6
    near = (found[2, 3:] - SMOOTHING / 3) / (1 - SMOOTHING)
    own = (near - a * np.eye(3)[0]) / (1 - a)
    assert own[0] > 0.9 and own.sum() == pytest.approx(1, abs=1e-2)
