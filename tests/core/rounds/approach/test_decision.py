"""The rule of the preset `auto`, on counted evidence."""

from __future__ import annotations

import numpy as np
import pytest

from core.config import HeadConfig
from core.rounds.approach.decision import chosen, decide, next_training
from core.rounds.approach.evidence import (
    NONE,
    PastRound,
    Tally,
    cross_validated,
    progressive_validation,
    tally,
    validation_rows,
)
from core.types import UNLABELED, PoolSnapshot


def counted(only_encoder: int, only_scratch: int, both: int = 0, n: int = 40) -> Tally:
    return Tally(
        n=n, encoder=both + only_encoder, scratch=both + only_scratch, only_encoder=only_encoder,
        only_scratch=only_scratch,
    )  # fmt: skip


def past(n_labels: int, uses_encoder: bool = True, both: bool = True) -> PastRound:
    arrays = {"item_ids": np.arange(3), "classes": np.zeros((3, 2), np.int32)} if both else {}
    return PastRound(n_labels=n_labels, encoder="e", uses_encoder=uses_encoder, class_names=("a", "b"), **arrays)


def test_without_evidence_the_encoder_is_used_first_and_later_rounds_stay():
    assert chosen(None, Tally(), Tally())
    assert chosen(True, Tally(), Tally())
    assert not chosen(False, Tally(), Tally())


def test_progressive_validation_comes_before_cross_validation():
    assert not chosen(None, counted(1, 5, n=10), counted(30, 0))
    assert chosen(None, counted(1, 5, n=7), counted(30, 0))


@pytest.mark.parametrize(
    ("only_encoder", "only_scratch", "stays"), [(0, 1, True), (0, 2, False), (5, 8, True), (4, 8, False)]
)
def test_the_approach_changes_only_if_the_other_is_clearly_ahead(only_encoder, only_scratch, stays):
    assert chosen(True, counted(only_encoder, only_scratch), Tally()) is stays
    assert chosen(False, counted(only_scratch, only_encoder), Tally()) is not stays


def test_training_from_scratch_is_repeated_once_per_doubling_while_it_is_behind():
    trained = []
    rounds: list[PastRound] = []
    for n_labels in range(5, 200, 5):
        found = decide(n_labels, rounds, "e", "E", counted(10, 0), Tally())
        assert found.uses_encoder
        if found.trains_both:
            trained.append(n_labels)
        rounds.append(past(n_labels, both=found.trains_both))
    assert trained == [10, 20, 40, 80, 160]
    assert next_training(rounds) == 320
    ahead = decide(200, [past(195, uses_encoder=False)], "e", "E", counted(0, 10), Tally())
    assert not ahead.uses_encoder and ahead.trains_both
    assert decide(200, [*rounds, past(199)], "other", "E", Tally(), Tally()).trains_both


def test_the_note_names_both_shares():
    found = decide(40, [past(20)], "e", "EfficientNet-lite0", Tally(), counted(14, 1, both=14, n=40))
    assert found.note.startswith(
        "Automatic: encoder EfficientNet-lite0: 70 % against 38 % in cross-validation on 40 labels."
    )


def snapshot(labels: list[int], names: tuple[str, ...] = ("a", "b")) -> PoolSnapshot:
    n = len(labels)
    return PoolSnapshot(
        kind="image", class_names=names, item_ids=np.arange(n) * 2 + 10, hashes=tuple(map(str, range(n))),
        labels=np.array(labels, np.int64), held_out=np.zeros(n, bool), held_out_labels=np.full(n, UNLABELED),
        eligible=np.array(labels) == UNLABELED,
    )  # fmt: skip


def test_progressive_validation_counts_only_predictions_that_came_before_the_label():
    before = PastRound(
        n_labels=2, encoder="e", uses_encoder=True, class_names=("b", "a", "gone"),
        item_ids=np.array([12, 10, 14, 16, 18]),
        classes=np.array([[1, 0], [NONE, NONE], [0, 0], [2, 1], [1, 1]], np.int32),
    )  # fmt: skip
    now = snapshot([0, 0, 1, 0, UNLABELED])  # 10 was labeled then; 16 has a prediction of a removed class
    found = progressive_validation(now, [before], "e")
    assert found == tally(np.array([0, 1]), np.array([0, 1]), np.array([1, 1])) == counted(1, 0, both=1, n=2)
    assert progressive_validation(now, [before], "another") == Tally()
    later = PastRound(
        n_labels=3, encoder="e", uses_encoder=True, class_names=("a", "b"), item_ids=np.array([12]),
        classes=np.array([[1, 0]], np.int32),
    )  # fmt: skip
    assert progressive_validation(now, [before, later], "e") == counted(0, 1, both=1, n=2)
    old = snapshot([0] * 5 + [1] * 5)
    assert progressive_validation(old, [before], "e") == Tally()  # less than a quarter of the current labels


def test_cross_validation_predicts_each_label_by_a_head_that_was_fitted_without_it():
    draw = np.random.default_rng(0)
    truth = np.arange(60) % 2
    features = draw.normal(size=(60, 6)) + 4 * truth[:, None] * (np.arange(6) == 0)
    labels = np.where(np.arange(60) < 21, truth, UNLABELED)
    labels[20], features[20, 3] = 2, 30.0  # alone in its class
    config = HeadConfig(dimensions=4)
    found = cross_validated(features, labels, 3, config)
    assert (found[:20] == truth[:20]).mean() >= 0.9 and (found[20:] == NONE).all()
    alike = np.zeros((60, 6))
    alike[:, 0] = draw.normal(size=60)
    assert (cross_validated(alike, labels, 3, config)[:20] == truth[:20]).mean() < 0.8
    assert (cross_validated(features, np.full(60, UNLABELED), 3, config) == NONE).all()


def test_rows_of_cross_validation_have_all_labels_and_no_test_item():
    n = 4_000
    labels = np.full(n, UNLABELED)
    labels[::100] = 0
    held_out = np.arange(n) % 2 == 1
    taken = PoolSnapshot(
        kind="image", class_names=("a",), item_ids=np.arange(n), hashes=("",) * n, labels=labels, held_out=held_out,
        held_out_labels=np.full(n, UNLABELED), eligible=~held_out & (labels == UNLABELED),
    )  # fmt: skip
    rows = validation_rows(taken, np.ones(n, bool))
    assert len(rows) == 1_540 and not held_out[rows].any() and set(np.flatnonzero(labels == 0)) <= set(rows)
