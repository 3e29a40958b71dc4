"""Trust in labels: the fit against a grid, beliefs by Bayes' rule written out, and planted errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.special import softmax

from core.config import HeadConfig
from core.labels.trust import (
    BETA_SPREAD,
    FLOOR,
    RIGHT,
    WRONG,
    beliefs,
    fit_noise,
    graph_predictor,
    head_predictor,
    label_trust,
    out_of_fold_logits,
    trusted,
)
from core.learning.head import fit_head, prepare
from core.similarity.graph import SimilarityGraph
from core.similarity.propagation import propagated
from core.types import UNLABELED


def planted(seed: int, n_wrong: int, n_labels: int = 200, n_classes: int = 5):
    """Features of 400 items in clusters, labels of the first `n_labels`, the truth, and the wrong rows."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_classes, 400)
    x = 1.2 * rng.normal(size=(n_classes, 24))[truth] + rng.normal(size=(400, 24))
    labels, wrong = np.full(400, UNLABELED), rng.choice(n_labels, n_wrong, replace=False)
    labels[:n_labels] = truth[:n_labels]
    labels[wrong] = (truth[wrong] + rng.integers(1, n_classes, n_wrong)) % n_classes
    return x.astype(np.float32), labels, truth, wrong


def trust_of(x, labels, n_classes=5, confirmed=None):
    config = HeadConfig(dimensions=16)
    predict = head_predictor(prepare(x, n_classes, config), n_classes, config)
    return label_trust(labels, n_classes, predict, confirmed)


def test_the_fit_is_the_maximum_of_a_grid():
    rng = np.random.default_rng(3)
    logits, labels = 3 * rng.normal(size=(80, 4)), rng.integers(0, 4, 80)
    labels[:60] = logits[:60].argmax(1)

    def value(log_beta: float, e: float) -> float:
        q = softmax(np.exp(log_beta) * logits, axis=1)[np.arange(80), labels]
        data = np.log((1 - e) * q + e / 3 * (1 - q)).sum()
        return data + WRONG * np.log(e) + RIGHT * np.log(1 - e) - log_beta**2 / (2 * BETA_SPREAD**2)

    beta, e = fit_noise(logits, labels)
    grid = [value(b, s) for b in np.linspace(-1.5, 1.5, 61) for s in np.linspace(0.005, 0.6, 120)]
    assert value(np.log(beta), e) >= max(grid) - 1e-3


def test_a_belief_is_bayes_rule_over_the_true_class():
    q, label, e = np.array([0.2, 0.5, 0.3]), 0, 0.1
    given = [1 - e if k == label else e / 2 for k in range(3)]  # P(label | truth k)
    wanted = q * given / (q * given).sum()
    found = beliefs(np.log(q)[None], np.array([label]), 1.0, e)[0]
    assert np.allclose(found, wanted) and found.sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_planted_errors_lose_trust_and_right_labels_keep_it(seed):
    x, labels, truth, wrong = planted(seed, 40)
    found = trust_of(x, labels)
    right = np.setdiff1d(np.arange(200), wrong)
    assert np.isin(found.suspects[:20], wrong).mean() >= 0.9
    assert found.weights[wrong].mean() < 0.4 and found.weights[right].mean() > 0.93
    assert 0.1 < found.wrong_share < 0.3 and found.weights.min() >= np.float32(FLOOR)
    assert (found.belief[found.suspects[:20]].argmax(1) == truth[found.suspects[:20]]).mean() >= 0.8
    assert (found.weights[200:] == 1).all() and (found.belief[200:] == 0).all()


def test_clean_labels_and_confirmed_labels_keep_their_weight():
    x, labels, _, _ = planted(0, 0)
    assert trust_of(x, labels).weights.mean() > 0.99
    x, labels, _, wrong = planted(1, 40)
    confirmed = np.zeros(400, np.bool_)
    confirmed[wrong[:5]] = True
    found = trust_of(x, labels, confirmed=confirmed)
    assert (found.weights[wrong[:5]] == 1).all() and found.weights[wrong[5:]].mean() < 0.4
    few = labels.copy()
    few[15:] = UNLABELED
    assert (trust_of(x, few).weights == 1).all() and trusted(few, 5).n_checked == 0


def test_uninformative_features_lower_no_weight():
    rng = np.random.default_rng(0)
    x, labels, _, _ = planted(0, 0)
    found = trust_of(rng.normal(size=x.shape).astype(np.float32), labels)
    assert found.weights.mean() > 0.9 and len(found.suspects) == 0


def test_a_head_with_trust_is_that_of_repeated_labels():
    """Half the weight on a label is the same as every other label of its class twice."""
    x, labels, _, _ = planted(2, 0, n_labels=30)
    config = HeadConfig(dimensions=16, neighbors=0)
    trust = np.ones(400)
    trust[3] = 0.5
    pool = prepare(x, 5, config)
    weighted = fit_head(x, labels, 5, config, pool, trust)
    twice = np.r_[np.arange(30), np.setdiff1d(np.flatnonzero(labels == labels[3]), [3])]
    again = fit_head(x[twice], labels[twice], 5, config, type(pool)(pool.space, pool.z[twice], twice, None))
    assert np.allclose(weighted.weights, again.weights, atol=1e-3)


def test_a_label_with_less_trust_absorbs_fewer_walks():
    """Items 0 - 1 - 2 in a line; 1 is labeled 0 with trust t, 2 is labeled 1 for certain."""
    T = csr_matrix(np.array([[0, 0.8, 0], [0.4, 0, 0.4], [0, 0.8, 0]]))
    P, labels = np.full((3, 2), 0.5), np.array([UNLABELED, 0, 1])
    sure = propagated(T, P, labels)
    assert np.allclose(sure[0], 0.8 * np.array([1, 0]) + 0.2 * 0.5, atol=1e-3)
    t = 0.25
    found = propagated(T, P, labels, np.array([1.0, t, 1.0]))
    q1 = np.linalg.solve(np.array([[1, -0.8], [-(1 - t) * 0.5, 1]]), np.array([0.2 * 0.5, t * 1 + (1 - t) * 0.5 * 0]))
    assert np.allclose(found[:2, 0], q1, atol=1e-3) and np.allclose(found.sum(1), 1, atol=1e-3)


def test_full_trust_is_certain_of_every_label_and_suspects_none():
    found = trusted(np.array([1, UNLABELED, 0]), 2)
    assert found.belief.tolist() == [[0, 1], [0, 0], [1, 0]] and found.weights.tolist() == [1, 1, 1]
    assert (found.wrong_share, found.n_checked, found.suspects.tolist()) == (0.0, 0, [])


def test_no_label_is_judged_by_a_model_of_one_class():
    labels = np.array([0, 0, 0, 0, 0, 1])
    known = []

    def predict(without):
        known.append(len(np.unique(without[without != UNLABELED])))
        return np.zeros((6, 2))

    found = out_of_fold_logits(labels, 2, predict)
    assert known and min(known) == 2
    assert np.isnan(found[5]).all() and np.isfinite(found).any()


def test_labels_of_one_class_or_too_few_are_trusted_without_a_model():
    def never(labels):
        raise AssertionError("no model is needed")

    for labels, n_classes in ((np.zeros(200, np.int64), 1), (np.array([0, 1, UNLABELED, 1]), 2)):
        found = label_trust(labels, n_classes, never)
        np.testing.assert_array_equal(found.weights, trusted(labels, n_classes).weights)
        assert (found.weights == 1).all()


def test_the_predictor_of_a_graph_mixes_labels_with_equal_shares():
    """Two neighbors of which one is labeled: a walk arrives with probability a, else every class is as probable."""
    graph = SimilarityGraph(
        rows=np.array([2, 5]),
        neighbors=np.array([[1], [0]]),
        distances=np.ones((2, 1), np.float32),
        typical=2.0,
    )
    labels = np.full(7, UNLABELED)
    labels[2] = 1
    found = np.exp(graph_predictor(graph, 3, 7, 0.7)(labels))
    a = np.exp(-((0.5 / 0.7) ** 4))
    np.testing.assert_allclose(found[5], [(1 - a) / 3, a + (1 - a) / 3, (1 - a) / 3], atol=1e-3)
    assert np.isnan(found[[0, 1, 3, 4, 6]]).all()
