"""Predictions of earlier rounds: which round counts for a label, present classes, and what says nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from core.labels.earlier_predictions import SMOOTHING, EarlierRound, earlier_log_probabilities, positions_of
from core.types import UNLABELED

NO = UNLABELED
IDS = np.array([10, 11, 12, 13, 14])
NAMES = ("a", "b")


def round_of(labels, probabilities, item_ids=IDS, names=NAMES) -> EarlierRound:
    return EarlierRound(
        class_names=names,
        item_ids=np.asarray(item_ids),
        labels=np.asarray(labels),
        load_probabilities=lambda: None if probabilities is None else np.asarray(probabilities, np.float32),
    )


def smoothed(p) -> np.ndarray:
    return np.log((1 - SMOOTHING) * np.asarray(p) + SMOOTHING / len(p))


def test_the_newest_round_that_did_not_know_the_label_counts():
    first = round_of([0, 1, NO, NO, NO], [[1, 0], [0, 1], [0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    second = round_of([0, 1, 1, NO, NO], [[1, 0], [0, 1], [0, 1], [0.3, 0.7], [0.6, 0.4]])
    found = earlier_log_probabilities(IDS, np.array([0, 1, 1, 0, NO]), NAMES, [second, first])
    np.testing.assert_allclose(found[2], smoothed([0.9, 0.1]), rtol=1e-6)
    np.testing.assert_allclose(found[3], smoothed([0.3, 0.7]), rtol=1e-6)
    assert np.isnan(found[[0, 1, 4]]).all(), "labels that every round knew, and an unlabeled item"


def test_predictions_are_loaded_only_where_a_label_needs_them_and_may_have_been_removed():
    def refuse():
        raise AssertionError("predictions of a round that knew all labels")

    labels = np.array([0, 1, 1, NO, NO])
    knew = dataclasses.replace(round_of(labels, None), load_probabilities=refuse)
    removed = round_of([0, 1, NO, NO, NO], None)
    first = round_of([0, 1, NO, NO, NO], [[1, 0], [0, 1], [0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    found = earlier_log_probabilities(IDS, labels, NAMES, [knew, removed, first])
    np.testing.assert_allclose(found[2], smoothed([0.9, 0.1]), rtol=1e-6)


def test_rounds_are_read_only_until_every_label_is_newer_than_one_of_them():
    read = []

    def rounds():
        for number in range(3):
            read.append(number)
            yield round_of([0, 1, NO, NO, NO], [[0.5, 0.5]] * 5)

    earlier_log_probabilities(IDS, np.array([NO, NO, 1, 0, NO]), NAMES, rounds())
    assert read == [0]


def test_a_round_without_a_label_of_the_class_says_nothing_about_it():
    before = round_of([0, 0, NO, NO, NO], [[1, 0], [1, 0], [0.99, 0.01], [0.99, 0.01], [0.5, 0.5]])
    found = earlier_log_probabilities(IDS, np.array([0, 0, 1, 0, NO]), NAMES, [before])
    assert np.isnan(found[2]).all() and np.isfinite(found[3]).all()


def test_predictions_follow_items_and_classes_by_identity():
    """Items in another order, an item that came later, and a class that came later and one that was renamed."""
    before = round_of([0, 1, NO, NO], [[1, 0], [0, 1], [0.8, 0.2], [0.1, 0.9]], [14, 13, 12, 10], ("old", "b"))
    labels = np.array([0, 0, 0, 0, 1])
    found = earlier_log_probabilities(IDS, labels, ("b", "new"), [before])
    np.testing.assert_allclose(found[2], smoothed([1.0, 0.0]), rtol=1e-6, err_msg="of the classes that there are")
    np.testing.assert_allclose(found[0], smoothed([1.0, 0.0]), rtol=1e-6)
    assert np.isnan(found[[1, 3, 4]]).all()


def test_a_prediction_without_any_present_class_is_even():
    before = round_of([0, 1, NO], [[1, 0], [0, 1], [1, 0]], IDS[:3], ("gone", "b"))
    found = earlier_log_probabilities(IDS, np.array([NO, NO, 0, NO, NO]), ("b", "c"), [before])
    np.testing.assert_allclose(found[2], np.log([0.5, 0.5]), rtol=1e-6)


@pytest.mark.parametrize("ids", [[], [3, 1, 2]])
def test_positions_of_ids(ids):
    wanted = np.array([1, 2, 9])
    expected = [ids.index(one) if one in ids else -1 for one in wanted.tolist()]
    assert positions_of(np.array(ids, np.int64), wanted).tolist() == expected
