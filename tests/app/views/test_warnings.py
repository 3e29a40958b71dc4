"""The warnings on Train, for cases made by hand."""

from __future__ import annotations

import numpy as np

from app.views.warnings import label_warnings
from core.config import RoundConfig
from core.types import Selection
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, make_pool


def guessed(made: Made, guesses: list[int], confidence: float = 0.8) -> None:
    """A finished round that predicts class guesses[k] for item k."""
    log = RoundLog(made.store, made.project_id)
    row = log.request(RoundConfig())
    log.start(row.id)
    probabilities = np.full((len(guesses), 3), (1 - confidence) / 2, np.float32)
    probabilities[np.arange(len(guesses)), guesses] = confidence
    nothing = Selection(item_ids=np.empty(0, np.int64), scores=np.empty(0, np.float32), strategy="bico")
    arrays = {"item_ids": np.array(made.items, np.int64), "probabilities": probabilities}
    metrics = {"has_model": True, "class_names": ["robin", "wren", "owl"], "n_held_out": 0}
    log.finish(row.id, arrays=arrays, selection=nothing, metrics=metrics)


def label(made: Made, items: range, position: int, who: int | None = None) -> None:
    for place in items:
        made.pool.label(made.items[place], made.classes[position], annotator=who or made.ann)


def test_an_even_start_needs_no_warning(sqlite_store):
    made = make_pool(sqlite_store, 60)
    assert label_warnings(sqlite_store, made.project_id) == []
    for position in range(3):
        label(made, range(position, 9, 3), position)
    guessed(made, [place % 3 for place in range(60)])
    assert label_warnings(sqlite_store, made.project_id) == []


def test_classes_with_few_labels_or_few_predictions_are_named(sqlite_store):
    made = make_pool(sqlite_store, 60)
    label(made, range(10), 0)
    label(made, range(10, 12), 1)
    label(made, range(12, 14), 2)
    guessed(made, [0] * 10 + [1, 1, 2, 2] + [0, 1] * 23)
    few, rare = label_warnings(sqlite_store, made.project_id)
    assert few == "Round 1: only one or two labels for wren, owl, up to 10 for other classes. Label more of them."
    assert rare.startswith(
        "Round 1 predicts less than 5 % of the items as owl. Either such a class is rare, or the model has not learned "
    )


def test_a_class_without_labels_is_named_with_the_round_of_the_charts_and_the_labels_it_has_now(sqlite_store):
    """A model has an output for every class, also for one without labels. The warning must fit the confusions of the
    same round, which may show that class, and the labels given since."""
    made = make_pool(sqlite_store, 60)
    label(made, range(4), 0)
    label(made, range(4, 8), 1)
    guessed(made, [0] * 4 + [1] * 4 + [2] * 20 + [0, 1] * 16)
    (none,) = label_warnings(sqlite_store, made.project_id)
    assert none.startswith("Round 1 had no label for owl. Do not trust its predictions for a class without labels.")
    label(made, range(8, 11), 2)
    (none,) = label_warnings(sqlite_store, made.project_id)
    assert none.startswith("Round 1 had no label for owl (3 now).")
    guessed(made, [0] * 4 + [1] * 4 + [2] * 20 + [0, 1] * 16)
    assert label_warnings(sqlite_store, made.project_id) == []


def test_labels_that_contradict_confident_predictions_and_disagreements_are_counted(sqlite_store):
    made = make_pool(sqlite_store, 60, labels_per_item=2)
    guessed(made, [place % 3 for place in range(60)], confidence=0.95)
    label(made, range(0, 9), 0)
    contradicted = label_warnings(sqlite_store, made.project_id)
    assert contradicted == ["6 of 9 labels disagree with a prediction made without them. Check them in Review."]
    label(made, range(0, 3), 1, made.bob)
    label(made, range(3, 6), 0, made.bob)
    assert "Annotators disagree on 3 of 6 items with several labels. Decide them in Review." in label_warnings(
        sqlite_store, made.project_id
    )
