"""Labels to review: those that differ between annotators, and those that a confident prediction contradicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.live.results import read_result
from app.views.predictions import RoundPredictions, predictions_of
from storage.database.store import Store
from storage.labeling import agreement
from storage.labeling.labeled_items import UndecidedLabel, items_to_hide, undecided_labels
from storage.projects import class_rows, classes
from storage.rounds.log import RoundLog

CONFLICT = 0.9  # least confidence of a prediction that contradicts a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One item to decide. `labels`: annotator id -> class id; `prediction`: class id, with its confidence."""

    item_id: int
    kind: str  # disagreement | conflict
    labels: dict[int, int]
    prediction: int | None = None
    confidence: float | None = None


def cases(store: Store, project_id: int, reviewer: int | None = None) -> list[Case]:
    """Disagreements, then conflicts by descending confidence of the prediction.

    In a blind project, items that the reviewer may still label are left out.
    """
    differing = [
        Case(item_id=one.item_id, kind="disagreement", labels=one.labels)
        for one in agreement.disagreements(store, project_id)
    ]
    known = {one.item_id for one in differing}
    hidden = set(items_to_hide(store, project_id, reviewer).tolist())
    found = differing + [one for one in conflicts(store, project_id) if one.item_id not in known]
    return [one for one in found if one.item_id not in hidden]


def conflicts(store: Store, project_id: int) -> list[Case]:
    """Labeled items for which a model that was not trained on their labels predicts another class with confidence.

    A model that was trained on a label repeats it, even after the label was changed. Each item is therefore compared
    with the newest round that used no label of it.
    """
    rounds = [row for row in RoundLog(store, project_id).list() if row.status == "finished"]
    rounds = [row for row in rounds if row.metrics.get("has_model") and row.replay_of is None]
    counts_as = class_rows.counts_as(classes.list_classes(store, project_id, True))
    conflicting = []
    left = undecided_labels(store, project_id)
    for row in rounds:  # newest first
        unused = [label for label in left if row.label_sequence < label.first_sequence]
        left = [label for label in left if row.label_sequence >= label.first_sequence]
        found = predictions_of(store, row) if unused else None
        if found is None:
            continue
        places = found.rows(np.array([label.item_id for label in unused], np.int64))
        for label, place in zip(unused, places, strict=True):
            case = _conflict(found, int(place), label, counts_as) if place >= 0 else None
            conflicting += [case] if case is not None else []
    known = {one.item_id for one in conflicting}
    conflicting += [one for one in suspected(store, project_id) if one.item_id not in known]
    return sorted(conflicting, key=lambda one: -(one.confidence or 0.0))


def suspected(store: Store, project_id: int) -> list[Case]:
    """Labels that cross-validation on the features of an encoder contradicts (`core.labels.errors`), as long as they
    are the labels that count and nobody has decided about them."""
    found = read_result(store.home, project_id)
    if found is None or not found.suspects:
        return []
    counts_as = class_rows.counts_as(classes.list_classes(store, project_id, True))
    given = {label.item_id: label.class_id for label in undecided_labels(store, project_id)}
    return [
        Case(
            item_id=one.item_id,
            kind="conflict",
            labels={0: given[one.item_id]},
            prediction=counts_as.get(one.predicted, one.predicted),
            confidence=one.probability,
        )
        for one in found.suspects
        if given.get(one.item_id) == counts_as.get(one.class_id, one.class_id)
    ]


def _conflict(found: RoundPredictions, row: int, label: UndecidedLabel, counts_as: Mapping[int, int]) -> Case | None:
    """The case of a label that differs from a confident prediction; None if it does not."""
    column = int(np.argmax(found.probabilities[row]))
    predicted, confidence = found.column_classes[column], float(found.probabilities[row, column])
    predicted = counts_as.get(predicted, predicted)
    if confidence < CONFLICT or predicted == label.class_id:
        return None
    return Case(
        item_id=label.item_id,
        kind="conflict",
        labels={0: label.class_id},
        prediction=predicted,
        confidence=confidence,
    )
