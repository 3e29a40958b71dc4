"""The cases in Review: labels that differ between annotators, and labels that a model trained without them
contradicts."""

from __future__ import annotations

import numpy as np
import pytest

from app.views.review_cases import Case, cases
from core.config import RoundConfig
from core.types import Selection
from storage.projects.classes import merge_classes
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, event, make_pool


def finished(made: Made, predicted: list[int], confidence: float = 0.96, **metrics: object) -> None:
    """A finished round that predicts class predicted[k] for item k."""
    log = RoundLog(made.store, made.project_id)
    row = log.request(RoundConfig())
    log.start(row.id)
    probabilities = np.full((len(predicted), 3), (1 - confidence) / 2, np.float32)
    probabilities[np.arange(len(predicted)), predicted] = confidence
    nobody = Selection(item_ids=np.empty(0, np.int64), scores=np.empty(0, np.float32), strategy="bico")
    arrays = {"item_ids": np.array(made.items, np.int64), "probabilities": probabilities}
    log.finish(row.id, arrays=arrays, selection=nobody, metrics={"has_model": True} | metrics)


def conflict(made: Made, item: int, label: int, predicted: int) -> Case:
    confidence = pytest.approx(0.96, abs=1e-6)
    return Case(
        item_id=made.items[item],
        kind="conflict",
        labels={0: made.classes[label]},
        prediction=made.classes[predicted],
        confidence=confidence,
    )


def test_disagreements_come_first_until_someone_decides(sqlite_store):
    made = make_pool(sqlite_store, 4, labels_per_item=2)
    finished(made, [0, 0, 0, 0])
    for item, (one, other) in enumerate([(0, 1), (2, 2), (1, 0)]):
        made.pool.label(made.items[item], made.classes[one], annotator=made.ann)
        made.pool.label(made.items[item], made.classes[other], annotator=made.bob)
    differing = [one for one in cases(made.store, made.project_id) if one.kind == "disagreement"]
    assert [(one.item_id, one.labels) for one in differing] == [
        (made.items[0], {made.ann: made.classes[0], made.bob: made.classes[1]}),
        (made.items[2], {made.ann: made.classes[1], made.bob: made.classes[0]}),
    ]
    assert cases(made.store, made.project_id)[2:] == [conflict(made, 1, 2, 0)]
    decision = event(made.items[0], "decide", made.classes[1])
    assert made.pool.apply([decision], annotator=made.bob)[0].accepted
    assert [one.item_id for one in cases(made.store, made.project_id)] == [made.items[2], made.items[1]]


def test_a_label_is_compared_only_with_a_round_that_did_not_use_it(sqlite_store):
    made = make_pool(sqlite_store, 3)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    finished(made, [1, 1, 1])  # used the label of item 0, and predicts another class nevertheless
    made.pool.label(made.items[1], made.classes[0], annotator=made.ann)
    made.pool.label(made.items[2], made.classes[1], annotator=made.ann)
    assert cases(made.store, made.project_id) == [conflict(made, 1, 0, 1)]
    finished(made, [2, 2, 2])  # used all three labels: the earlier round is compared
    assert cases(made.store, made.project_id) == [conflict(made, 1, 0, 1)]


def test_a_changed_label_is_not_compared_with_a_model_that_was_trained_on_the_old_one(sqlite_store):
    made = make_pool(sqlite_store, 2)
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    finished(made, [1, 1])  # repeats the label it was trained on
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert cases(made.store, made.project_id) == []


def test_uncertain_predictions_rounds_without_a_model_and_merged_classes_are_no_conflict(sqlite_store):
    made = make_pool(sqlite_store, 2)
    finished(made, [1, 1], confidence=0.89)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert cases(made.store, made.project_id) == []
    made = make_pool(sqlite_store, 2, "frogs")
    finished(made, [1, 1], has_model=False)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert cases(made.store, made.project_id) == []
    made = make_pool(sqlite_store, 2, "bats")
    finished(made, [1, 1])
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert cases(made.store, made.project_id) == [conflict(made, 0, 0, 1)]
    merge_classes(made.store, made.project_id, made.classes[1], made.classes[0], by=made.ann)
    assert cases(made.store, made.project_id) == []


def test_labels_that_a_round_suspects_are_listed_until_someone_confirms_them(sqlite_store):
    made = make_pool(sqlite_store, 4)
    for item, label in enumerate([0, 1, 2]):
        made.pool.label(made.items[item], made.classes[label], annotator=made.ann)
    log = RoundLog(made.store, made.project_id)
    row = log.request(RoundConfig())
    beliefs = np.array([[0.1, 0.8, 0.1], [0, 1, 0], [0.7, 0.1, 0.2], [0, 0, 0]], np.float32)
    nobody = Selection(item_ids=np.empty(0, np.int64), scores=np.empty(0, np.float32), strategy="bico")
    log.finish(
        row.id,
        arrays={
            "item_ids": np.array(made.items, np.int64),
            "probabilities": np.full((4, 3), 1 / 3, np.float32),
            "label_weights": np.array([0.1, 1, 0.2, 1], np.float32),
            "label_beliefs": beliefs,
            "candidate_rows": np.array([0, 2, 3]),
            "label_influence": np.array([-0.5, 0.25, np.nan], np.float32),
        },
        selection=nobody,
        metrics={"has_model": True},
    )
    found = cases(made.store, made.project_id)
    assert [(one.item_id, one.prediction) for one in found] == [
        (made.items[0], made.classes[1]),
        (made.items[2], made.classes[0]),
    ]
    assert [round(one.trust or 0, 3) for one in found] == [0.1, 0.2]
    assert [one.influence for one in found] == [-0.5, 0.25]
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)  # a second look with the same label
    made.pool.apply([event(made.items[2], "decide", made.classes[2])], annotator=made.ann)
    assert cases(made.store, made.project_id) == []
