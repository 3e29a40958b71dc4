"""Influence of labels: finite differences of the outer loss after refits, and the values by their definition."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.special import log_softmax

from core.labels.influence import inner_problem, outer_problem, pool_influence
from core.labels.second_looks import _rows, replacements, second_look_note, with_second_looks
from core.learning.head import fit_softmax
from core.types import UNLABELED, PickReason, Selection, SelectionRequest


def pool(seed: int = 0):
    """60 items of three classes, 24 labels of which rows 3 and 8 are wrong, predictions and trust."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, 60)
    z = rng.normal(size=(3, 6))[truth] + 0.5 * rng.normal(size=(60, 6))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    labels = np.where(np.arange(60) < 24, truth, UNLABELED)
    labels[[3, 8]] = (truth[[3, 8]] + 1) % 3
    predictions = np.exp(log_softmax(2 * np.eye(3)[truth] + rng.normal(size=(60, 3)), axis=1))
    weights = np.ones(60)
    weights[[3, 8]] = 0.3
    return z, labels, predictions, weights, truth


def test_the_influence_of_a_label_is_the_change_of_the_outer_loss_with_its_weight():
    z, labels, predictions, weights, _ = pool()
    Y, w = inner_problem(labels, predictions, weights)
    T, u = outer_problem(labels, predictions)
    penalty, step = 1e-2, 1e-3
    found = pool_influence(z, labels, predictions, weights, penalty)

    def outer(row: int, change: float) -> float:
        moved = w.copy()
        moved[row] += change
        W = fit_softmax(z, Y, moved, penalty / moved.sum())  # fit_softmax divides by the sum of the weights
        return -float((u[:, None] * T * log_softmax(z @ W.T, axis=1)).sum())

    rows = np.array([0, 3, 8, 15])
    exact = [-(outer(row, step) - outer(row, -step)) / (2 * step) for row in rows]
    assert np.allclose(found.of_labels(rows, labels[rows]), exact, rtol=2e-2, atol=1e-3)


def test_wrong_labels_have_the_lowest_influence():
    """Two of 24 labels are wrong: by chance, the lowest four would hold 3.3 of the 20 in ten draws."""
    hits = 0
    for seed in range(10):
        z, labels, predictions, _, _ = pool(seed)
        influence = pool_influence(z, labels, predictions, np.ones(60)).of_labels(np.arange(24), labels[:24])
        hits += len(set(np.argsort(influence)[:4]) & {3, 8})
    assert hits >= 11


def test_values_are_the_spread_over_the_possible_answers():
    z, labels, predictions, weights, _ = pool()
    found = pool_influence(z, labels, predictions, weights)
    row, p = np.array([40]), predictions[40:41]
    draws = np.random.default_rng(0).choice(3, 200_000, p=p[0])
    a = found.a[40]
    assert np.isclose(found.new_label_values(row, p)[0], a[draws].std(), rtol=1e-2)
    certain = np.eye(3)[labels[3]][None]
    assert found.second_look_values(np.array([3]), labels[3:4], certain)[0] == 0
    belief = np.array([[0.2, 0.5, 0.3]])
    wanted = np.sqrt(sum(b * (a_k - found.a[3][labels[3]]) ** 2 for b, a_k in zip(belief[0], found.a[3], strict=True)))
    assert np.isclose(found.second_look_values(np.array([3]), labels[3:4], belief)[0], wanted)


def test_a_second_look_replaces_the_pick_of_the_lowest_value_while_its_own_is_higher():
    looks, new = np.array([3.0, 9.0, 1.0]), np.array([5.0, 2.0, 4.0, 8.0])
    best, kept = replacements(looks, new, 2)
    assert best.tolist() == [1] and kept.tolist() == [0, 2, 3], "3.0 is below 4.0, the next pick to go"
    assert replacements(np.array([9.0, 9.0, 9.0]), new, 2)[1].tolist() == [0, 3], "at most two"
    assert len(replacements(np.array([1.0]), new, 2)[0]) == 0


def test_a_batch_says_what_its_second_looks_are():
    z, labels, predictions, weights, truth = pool()
    request = SelectionRequest(
        item_ids=np.arange(100, 160), labeled=labels != UNLABELED, eligible=labels == UNLABELED,
        probabilities=predictions.astype(np.float32), embeddings=z.astype(np.float32),
        features=np.empty((60, 0), np.float32), batch_size=4, seed=0,
    )  # fmt: skip
    certain = np.argsort(-predictions[24:].max(1))[:4] + 24  # picks that are worth little
    reasons = tuple(PickReason(order=k + 1, score=1.0) for k in range(4))
    first = Selection(item_ids=certain + 100, scores=np.ones(4, np.float32), strategy="bico", reasons=reasons)
    belief = np.where((labels != UNLABELED)[:, None], np.eye(3)[labels], 0.0)
    belief[[3, 8]] = 0.3 * belief[[3, 8]] + 0.7 * np.eye(3)[truth[[3, 8]]]
    found, influence = with_second_looks(first, request, labels, weights, belief)
    assert influence is not None and np.flatnonzero(np.isfinite(influence)).tolist() == [3, 8]
    looks = [reason for reason in found.reasons if reason.second_look]
    assert 1 <= len(looks) <= 2 and len(found.item_ids) == len(found.scores) == len(found.reasons) == 4
    assert set(found.item_ids[-len(looks) :].tolist()) <= {103, 108} and [r.order for r in found.reasons] == [
        1,
        2,
        3,
        4,
    ]
    assert all(reason.trust == 0.3 and reason.influence is not None for reason in looks)
    assert "second look" in found.notes[-1]
    assert with_second_looks(first, request, labels, np.ones(60), belief) == (first, None)
    lengths = np.random.default_rng(5).uniform(0.2, 5, (60, 1)).astype(np.float32)  # directions alone count
    scaled, same = with_second_looks(
        first, dataclasses.replace(request, embeddings=request.embeddings * lengths), labels, weights, belief
    )
    assert scaled.item_ids.tolist() == found.item_ids.tolist() and np.allclose(
        same, influence, equal_nan=True, rtol=1e-3
    )


def test_the_note_counts_second_looks():
    assert second_look_note(1, 10).startswith("1 of 10 picks is a second look at a label that may be wrong.")
    assert second_look_note(2, 10).startswith("2 of 10 picks are second looks at labels that may be wrong.")


def test_the_loss_is_that_of_all_labeled_rows_and_picks_and_evenly_spaced_others():
    labels = np.full(10_000, UNLABELED)
    labels[:50] = 0
    rows = _rows(labels, np.array([9_999, 7]))
    assert len(rows) == 4_000 and set(range(50)) | {9_999} <= set(rows.tolist())
    assert np.diff(rows[50:-1]).max() <= 4 and rows[50] == 50
    labels[:4_500] = 0
    assert _rows(labels, np.array([9_999])).tolist() == [*range(4_500), 9_999], "labels are never left out"
    assert _rows(labels[:4_501], np.array([4_500])).tolist() == list(range(4_501))


def test_the_outer_loss_weighs_items_without_a_label_by_their_margin():
    predictions = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    labels = np.array([UNLABELED, UNLABELED, 0, UNLABELED])
    T, u = outer_problem(labels, predictions)
    assert T.argmax(1).tolist() == [0, 1, 2, 0] and T.sum() == 4
    np.testing.assert_allclose(u, np.array([0.5, 0.9, 0.0, 0.0]) / 1.4)
    assert outer_problem(np.zeros(4, np.int64), predictions)[1].tolist() == [0.25] * 4, "no doubt: equal weights"
