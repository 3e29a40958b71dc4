"""Summaries of labeled sets: better than random, weighted, measured on rows that were not used in the selection."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from core.errors import InvalidInput
from core.rounds.summary import SummaryConfig, View, set_aside, summarize


def draw_digits(n_labeled: int, n_test: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labeled and test digits of six classes: inputs of length 1."""
    pictures, labels = load_digits(n_class=6, return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    x = pictures / np.linalg.norm(pictures, axis=1, keepdims=True)
    labeled, test = order[:n_labeled], order[n_labeled : n_labeled + n_test]
    return x[labeled], labels[labeled], x[test], labels[test]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return draw_digits(120, 300)


def random_features(x: np.ndarray, seed: int, q: int = 40) -> np.ndarray:
    """Features of another model: a random layer with ReLU."""
    generator = np.random.default_rng(seed)
    return np.maximum(x @ generator.normal(size=(x.shape[1], q)), 0.0) / np.sqrt(q)


def view(digits, name: str = "kernel", seed: int | None = None) -> View:
    x, _, test, _ = digits
    if seed is None:
        return View(name=name, labeled=x, test=test)
    return View(name=name, labeled=random_features(x, seed), test=random_features(test, seed))


@pytest.mark.parametrize("weighted", [True, False])
def test_a_summary_beats_uniform_draws_of_its_size_and_closes_half_of_the_gap_to_all_data(digits, weighted):
    found = summarize([view(digits)], digits[1], digits[3], SummaryConfig(size=15, weighted=weighted))
    accuracy = found.accuracies[0]
    assert accuracy.summary > accuracy.uniform_mean + 2 * accuracy.uniform_deviation
    assert accuracy.summary > (accuracy.uniform_mean + accuracy.everything) / 2
    assert len(accuracy.uniform) == 5 and accuracy.uniform_deviation == pytest.approx(np.std(accuracy.uniform, ddof=1))
    assert len(found.rows) == len(set(found.rows.tolist())) == len(found.weights) == 15
    assert (found.weights > 0).all() if weighted else (found.weights == 1).all()


def test_accuracies_are_those_of_another_solver_on_the_same_weighted_rows(digits):
    """scikit-learn: C sum_i w_i l_i + |W|^2 / 2 with C = 1 / (penalty m); its bias is made a penalized column."""
    x, y, test, truth = digits
    found = summarize([view(digits)], y, truth, SummaryConfig(size=15, penalty=1e-3))
    ones = np.ones((len(x), 1)), np.ones((len(test), 1))
    x, test = np.hstack([x, ones[0]]), np.hstack([test, ones[1]])
    for rows, weights, reported in (
        (found.rows, found.weights, found.accuracies[0].summary),
        (np.arange(len(x)), np.ones(len(x)), found.accuracies[0].everything),
    ):
        regression = LogisticRegression(C=1 / (1e-3 * len(rows)), fit_intercept=False, tol=1e-8, max_iter=1_000)
        regression.fit(x[rows], y[rows], sample_weight=weights)
        assert regression.score(test, truth) == pytest.approx(reported, abs=1.5 / len(truth))


def test_weights_never_make_the_training_loss_higher(digits):
    config = SummaryConfig(size=12, penalty=1e-3)
    plain = summarize([view(digits)], digits[1], digits[3], dataclasses.replace(config, weighted=False))
    weighted = summarize([view(digits)], digits[1], digits[3], config)
    assert set(weighted.rows) <= set(plain.rows)
    assert summed_loss([view(digits)], digits, weighted) < summed_loss([view(digits)], digits, plain)


@pytest.mark.slow(4)
def test_a_joint_summary_serves_both_models_better_than_one_made_for_the_other():
    """The sum of both training losses, as a mean over draws of the labeled rows: the greedy choice may lose a draw."""
    config = SummaryConfig(size=12, penalty=1e-3)
    sums = []
    for seed in range(8):
        digits = draw_digits(60, 20, seed)
        both = [view(digits), view(digits, "network", seed=1)]
        found = [summarize(views, digits[1], digits[3], config) for views in (both, both[:1], both[1:])]
        sums.append([summed_loss(both, digits, summary) for summary in found])
    joint, kernel, network = np.mean(sums, axis=0)
    assert joint < kernel and joint < network


def summed_loss(views, digits, found) -> float:
    total = 0.0
    for one in views:
        x = np.hstack([one.labeled, np.ones((len(one.labeled), 1))])
        regression = LogisticRegression(C=1 / (1e-3 * len(found.rows)), fit_intercept=False, max_iter=1_000)
        regression.fit(x[found.rows], digits[1][found.rows], sample_weight=found.weights)
        total -= regression.predict_log_proba(x)[np.arange(len(x)), digits[1]].mean()
    return total


@pytest.mark.slow
def test_test_rows_and_their_labels_have_no_part_in_the_choice(digits):
    config = SummaryConfig(size=10)
    first = summarize([view(digits)], digits[1], digits[3], config)
    other = View(name="kernel", labeled=digits[0], test=digits[2][::-1] * 3)
    second = summarize([other], digits[1], (digits[3] + 1) % 6, config)
    assert np.array_equal(first.rows, second.rows) and np.array_equal(first.weights, second.weights)


def test_a_summary_is_reproducible_and_one_of_all_rows_has_the_accuracy_of_all_data(digits):
    x, y, test, truth = (part[:40] for part in digits)
    small = View(name="kernel", labeled=x, test=test)
    first, again = (summarize([small], y, truth, SummaryConfig(size=8)) for _ in range(2))
    assert np.array_equal(first.rows, again.rows) and first.accuracies == again.accuracies
    everything = summarize([small], y, truth, SummaryConfig(size=40, weighted=False))
    assert sorted(everything.rows) == list(range(40))
    assert everything.accuracies[0].summary == everything.accuracies[0].everything


def test_every_class_is_in_a_summary_that_has_room_for_it(digits):
    rare = np.flatnonzero((digits[1] != 3) | (np.cumsum(digits[1] == 3) <= 2))
    small = View(name="kernel", labeled=digits[0][rare], test=digits[2])
    found = summarize([small], digits[1][rare], digits[3], SummaryConfig(size=8, weighted=False))
    assert set(digits[1][rare][found.rows]) == set(range(6))


def test_setting_aside_takes_a_share_of_each_class_and_never_all_of_one():
    labels = np.repeat([0, 1, 2, 3], [50, 10, 2, 1])
    aside = set_aside(labels, 0.2, seed=3)
    assert [int(aside[labels == label].sum()) for label in range(4)] == [10, 2, 1, 0]
    assert np.array_equal(aside, set_aside(labels, 0.2, seed=3))
    assert not np.array_equal(aside, set_aside(labels, 0.2, seed=4))


@pytest.mark.parametrize(
    ("labels", "size", "sentence"),
    [
        ([], 3, "Nothing is labeled yet"),
        ([1, 1, 1], 2, "All 3 labeled items have the same class"),
        ([0, 1, 0], 4, "A summary of 4 items was requested; only 3 labeled items"),
        ([0, 1, 0], 0, "use at least 1"),
    ],
)
def test_a_project_that_cannot_be_summarized_gets_a_message(labels, size, sentence):
    x = np.eye(4)[: len(labels)]
    with pytest.raises(InvalidInput, match=sentence):
        summarize(
            [View(name="kernel", labeled=x, test=np.eye(4))], np.array(labels, np.int64), np.array([0, 1, 0, 1]),
            SummaryConfig(size=size),
        )  # fmt: skip
