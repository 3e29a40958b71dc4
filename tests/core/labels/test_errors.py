"""Suspected labels: the rule by hand, the published definition as a slow loop, and planted errors."""

from __future__ import annotations

import numpy as np
import pytest

from core.labels.errors import FOLDS, class_folds, out_of_fold, suspect_labels


def test_the_rule_by_hand():
    """Thresholds: class 0 (0.9 + 0.7 + 0.1) / 3, class 1 (0.6 + 0.8) / 2. Only row 2 has a p_ik above the other's."""
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.4, 0.6], [0.2, 0.8]])
    found = suspect_labels(p, np.array([0, 0, 0, 1, 1]))
    assert found.rows.tolist() == [2] and found.predicted.tolist() == [1]
    assert found.given.tolist() == [0.1] and found.probability.tolist() == [0.9]


@pytest.mark.parametrize("seed", range(4))
def test_suspects_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    p, labels = rng.dirichlet(np.ones(4), 60), rng.integers(0, 4, 60)
    p[7] = np.nan
    usable = [i for i in range(60) if i != 7]
    t = [np.mean([p[i, k] for i in usable if labels[i] == k]) for k in range(4)]
    wanted = {}
    for i in usable:
        above = [k for k in range(4) if k != labels[i] and p[i, k] >= t[k]]
        if above:
            k = max(above, key=lambda one: p[i, one])
            if p[i, k] > p[i, labels[i]]:
                wanted[i] = p[i, labels[i]] - p[i, k]
    found = suspect_labels(p, labels)
    assert found.rows.tolist() == sorted(wanted, key=wanted.get)


def test_no_label_is_predicted_by_a_head_that_was_fitted_on_it():
    """The features of an item enter the heads of the other folds, never the head of its own fold."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    z = rng.normal(size=(3, 8))[labels] + rng.normal(size=(60, 8))
    folds = class_folds(labels, 0)
    assert np.bincount(folds, minlength=FOLDS + 1)[:FOLDS].tolist() == [12] * FOLDS
    before = out_of_fold(z, labels, 3, 1e-2)
    moved = z.copy()
    moved[5] += 100.0
    after = out_of_fold(moved, labels, 3, 1e-2)
    same_fold = (folds == folds[5]) & (np.arange(60) != 5)
    assert np.allclose(after[same_fold], before[same_fold])
    assert not np.allclose(after[folds != folds[5]], before[folds != folds[5]])
    assert np.allclose(before.sum(1), 1) and np.isnan(out_of_fold(z, np.r_[labels[:-1], 3], 4, 1e-2)[-1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_planted_errors_are_at_the_top(seed):
    """200 labels in five classes, a fifth of them wrong: at least 14 of the first 20 suspects are wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, 200)
    z = rng.normal(size=(5, 32))[truth] + 0.9 * rng.normal(size=(200, 32))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    labels, wrong = truth.copy(), rng.choice(200, 40, replace=False)
    labels[wrong] = (truth[wrong] + rng.integers(1, 5, 40)) % 5
    found = suspect_labels(out_of_fold(z, labels, 5, 1e-3), labels)
    assert np.isin(found.rows[:20], wrong).sum() >= 14
    assert (found.predicted[:14] == truth[found.rows[:14]]).mean() > 0.8
    clean = suspect_labels(out_of_fold(z, truth, 5, 1e-3), truth)
    assert len(clean.rows) <= 20
