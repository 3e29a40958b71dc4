"""Temperatures from the training labels alone: folds, out-of-fold logits, the prior, and the one-sided estimate."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from core.learning import calibration
from core.learning.calibration import MIN_LABELS, PRIOR_TEMPERATURE, calibrate, fold_of, out_of_fold_logits


def noisy_items(n: int, spread: float, n_classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (n, 6) of items around the center of their class, and labels (n,)."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    return 3 * np.eye(n_classes, 6)[labels] + spread * rng.normal(size=(n, 6)), labels


def confident(labels: np.ndarray, n_classes: int = 4, scale: float = 12.0) -> np.ndarray:
    """The logits of a network that fits its labels perfectly."""
    return scale * np.eye(n_classes)[labels]


def test_folds_never_hold_all_items_of_a_class_and_skip_single_items():
    labels = np.array([0, 0, 1, 1, 1, 1, 1, 1, 2, 3, 3])
    folds = fold_of(labels, np.bincount(labels))
    assert folds[8] == -1
    for label in (0, 1, 3):
        assert len(set(folds[labels == label])) > 1
    assert set(folds[folds >= 0]) == set(range(calibration.FOLDS))


def test_out_of_fold_logits_are_those_of_heads_that_did_not_see_the_item():
    """Against scikit-learn's own cross-validation; they differ by one factor, the scale of the network's logits."""
    x, labels = noisy_items(40, 1.0)
    standardized = (x - x.mean(0)) / (x.std(0) + 1e-6)
    folds = PredefinedSplit(fold_of(labels, np.bincount(labels)))
    head = LogisticRegression(C=1.0, max_iter=300)
    expected = cross_val_predict(head, standardized, labels, cv=folds, method="decision_function")
    found = out_of_fold_logits(x, confident(labels), labels)
    factor = found[0, 0] / expected[0, 0]
    np.testing.assert_allclose(found, factor * expected, rtol=1e-6)
    doubled = out_of_fold_logits(x, 2 * confident(labels), labels)
    np.testing.assert_allclose(doubled, 2 * found, rtol=1e-6)


def test_a_network_that_fits_labels_of_overlapping_classes_is_softened():
    """Embeddings that hardly separate the classes, and confident logits: the estimate is above the prior."""
    x, labels = noisy_items(120, 4.0)
    found = calibrate(x, confident(labels), labels)
    assert found.source == "cross-validation" and found.n_labels == 120
    assert found.temperature > 2 * PRIOR_TEMPERATURE and found.note == ""


def test_an_estimate_below_the_prior_is_no_evidence():
    """Separated embeddings would allow any sharpness, but the labels shaped them, so the prior is kept."""
    x, labels = noisy_items(120, 0.05)
    found = calibrate(x, confident(labels), labels)
    assert (found.temperature, found.source) == (PRIOR_TEMPERATURE, "cross-validation")


@pytest.mark.parametrize("n_labels", [2, MIN_LABELS - 1])
def test_few_labels_get_the_prior(n_labels):
    x, labels = noisy_items(n_labels, 4.0)
    found = calibrate(x, confident(labels), labels)
    assert (found.temperature, found.source) == (PRIOR_TEMPERATURE, "prior") and "30 labels" in found.note


def test_classes_with_one_label_do_not_count():
    x = np.random.default_rng(0).normal(size=(MIN_LABELS + 5, 6))
    assert calibrate(x, confident(np.arange(35), 35), np.arange(35)).source == "prior"
    labels = np.concatenate([np.zeros(15), np.ones(15), np.arange(2, 7)]).astype(np.int64)
    found = calibrate(x, confident(labels, 7), labels)
    assert (found.source, found.n_labels) == ("cross-validation", MIN_LABELS)


def test_the_prior_weighs_less_with_more_labels():
    rng = np.random.default_rng(0)
    true_logits = rng.normal(size=(2_000, 5))
    labels = (true_logits + rng.gumbel(size=true_logits.shape)).argmax(1)
    few, many = (
        calibration.fitted_temperature(6 * true_logits[:n], labels[:n], calibration.STRENGTH) for n in (30, 2_000)
    )
    alone = calibration.fitted_temperature(6 * true_logits, labels)
    assert few > PRIOR_TEMPERATURE and many == pytest.approx(alone, rel=0.02)


def test_many_labels_are_sampled(monkeypatch):
    monkeypatch.setattr(calibration, "MAX_LABELS", 60)
    x, labels = noisy_items(400, 4.0)
    assert calibrate(x, confident(labels), labels).n_labels == 60
