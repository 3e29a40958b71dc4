"""The head on frozen features against scikit-learn, finite differences and hand-made pools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from core.config import HeadConfig
from core.errors import InvalidInput
from core.learning.head import aligned, fit_head, fit_softmax, label_weights, leveled, prepare, principal_components
from core.types import UNLABELED

LABELS_ONLY = HeadConfig(neighbors=0)


def clusters(
    n: int = 120, n_classes: int = 4, d: int = 30, noise: float = 0.6, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) around the center of their class, far from the origin, and classes (n,)."""
    rng = np.random.default_rng(seed)
    classes = np.arange(n) % n_classes
    return 5.0 + 2.0 * np.eye(n_classes, d)[classes] + noise * rng.normal(size=(n, d)), classes


def some_labels(classes: np.ndarray, per_class: int, extra: int = 0) -> np.ndarray:
    labels = np.full(len(classes), UNLABELED)
    for c in np.unique(classes):
        rows = np.flatnonzero(classes == c)[: per_class + (extra if c == 0 else 0)]
        labels[rows] = c
    return labels


def test_the_weights_equal_those_of_scikit_learn():
    features, classes = clusters()
    labels = some_labels(classes, 5, extra=6)
    head = fit_head(features, labels, 4, LABELS_ONLY)
    given = np.flatnonzero(labels != UNLABELED)
    z, weights = head.space.transform(features), label_weights(labels[given], balance=True)
    reference = LogisticRegression(C=1 / LABELS_ONLY.penalty, fit_intercept=False, tol=1e-10, max_iter=5_000)
    reference.fit(z[given], labels[given], sample_weight=weights)
    np.testing.assert_allclose(head.weights - head.weights.mean(0), reference.coef_, atol=2e-3)
    np.testing.assert_allclose(head.probabilities(features), reference.predict_proba(z), atol=1e-4)


def test_the_components_equal_those_of_scikit_learn_for_wide_and_tall_features():
    for n, d in ((60, 20), (20, 60)):
        x = np.random.default_rng(0).normal(size=(n, d)) * np.linspace(3, 0.1, d)
        mean, V, variances = principal_components(x, 8)
        reference = PCA(8, svd_solver="full").fit(x)
        np.testing.assert_allclose(mean, reference.mean_)
        np.testing.assert_allclose(np.abs(V.T @ reference.components_.T), np.eye(8), atol=1e-6)
        np.testing.assert_allclose(variances * n / (n - 1), reference.explained_variance_)


def test_leading_components_are_leveled_and_the_others_kept():
    x = np.random.default_rng(0).normal(size=(500, 6)) * [30, 20, 4, 3, 2, 1]
    mean, V, variances = principal_components(x, 6)
    spread = ((x - mean) @ leveled(V, variances, 2)).std(0)
    np.testing.assert_allclose(spread, np.sqrt(variances)[[2, 2, 2, 3, 4, 5]])


def test_the_optimum_has_no_gradient_by_finite_differences():
    rng = np.random.default_rng(3)
    z, targets, weights = rng.normal(size=(12, 3)), rng.dirichlet(np.ones(3), 12), rng.random(12) + 0.1
    W = fit_softmax(z, targets, weights, 0.05)

    def loss(W: np.ndarray) -> float:
        logits = z @ W.T
        entropy = np.log(np.exp(logits).sum(1)) - (targets * logits).sum(1)
        return float((weights * entropy).sum() / weights.sum() + 0.025 * (W**2).sum())

    for position in np.ndindex(W.shape):
        step = np.zeros_like(W)
        step[position] = 1e-5
        assert abs(loss(W + step) - loss(W - step)) / 2e-5 < 1e-5


def test_unlabeled_items_help_where_classes_are_clusters():
    accuracies = []
    for seed in range(5):
        features, classes = clusters(n=400, noise=0.55, seed=seed)
        labels = some_labels(classes, 1)
        unlabeled = labels == UNLABELED
        accuracies.append(
            [
                (fit_head(features, labels, 4, config).probabilities(features).argmax(1) == classes)[unlabeled].mean()
                for config in (HeadConfig(neighbors=0, level=False), HeadConfig(level=False))
            ]
        )
    alone, together = np.mean(accuracies, 0)
    assert together > alone + 0.02


def test_many_labels_of_one_class_do_not_take_items_of_the_others():
    features, classes = clusters(n=400, noise=0.5, seed=1)
    shares = []
    for balance in (False, True):
        labels = some_labels(classes, 2, extra=60)
        head = fit_head(features, labels, 4, replace(LABELS_ONLY, balance=balance, penalty=0.1))
        shares.append((head.probabilities(features).argmax(1) == 0).mean())
    assert abs(shares[1] - 0.25) < abs(shares[0] - 0.25)


def test_a_class_without_labels_is_never_the_most_probable():
    features, classes = clusters()
    labels = some_labels(np.where(classes == 3, 0, classes), 3)
    predicted = fit_head(features, labels, 4).probabilities(features).argmax(1)
    assert set(predicted.tolist()) == {0, 1, 2}


def test_alignment_moves_the_class_shares_towards_equal_ones():
    P = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1]])
    np.testing.assert_allclose(aligned(P, 0.0), P)
    weighed = P / np.array([0.65, 0.25, 0.1])
    np.testing.assert_allclose(aligned(P, 1.0), weighed / weighed.sum(1, keepdims=True))


def test_a_prepared_pool_gives_the_same_head_and_all_is_deterministic():
    features, classes = clusters()
    labels = some_labels(classes, 2)
    first = fit_head(features, labels, 4)
    second = fit_head(features, labels, 4, prepared=prepare(features, 4, HeadConfig()))
    assert np.array_equal(first.weights, second.weights)


@pytest.mark.parametrize("n_labels", [1, 120])
def test_one_label_and_all_labels_give_a_head(n_labels: int):
    features, classes = clusters()
    labels = np.where(np.arange(len(classes)) < n_labels, classes, UNLABELED)
    P = fit_head(features, labels, 4).probabilities(features)
    assert P.shape == (120, 4) and np.isfinite(P).all()
    if n_labels == 120:
        assert (P.argmax(1) == classes).mean() > 0.9


def test_bad_features_are_refused_with_the_number_of_items():
    features, classes = clusters()
    with pytest.raises(InvalidInput, match="at least one label"):
        fit_head(features, np.full(len(classes), UNLABELED), 4)
    features[[3, 5]] = np.nan
    with pytest.raises(InvalidInput, match="2 of 120 items are not finite"):
        fit_head(features, some_labels(classes, 1), 4)


def test_equal_items_and_constant_features_do_not_fail():
    labels = np.array([0, 1, UNLABELED, UNLABELED])
    P = fit_head(np.ones((4, 3)), labels, 2).probabilities(np.ones((4, 3)))
    assert np.isfinite(P).all()
