"""Labels to review: those that differ between annotators, and those that a confident prediction contradicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.live.results import read_result
from app.views.predictions import RoundPredictions, predictions_of
from storage.database.store import Store
from storage.labeling import agreement
from storage.labeling.labeled_items import items_to_hide, undecided_labels
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
    conflicting: list[Case] = []
    labels = [(one.item_id, one.class_id, one.first_sequence) for one in undecided_labels(store, project_id)]
    left = np.array(labels, np.int64).reshape(-1, 3)
    for row in rounds:  # newest first
        is_unused = row.label_sequence < left[:, 2]
        unused, left = left[is_unused], left[~is_unused]
        found = predictions_of(store, row) if len(unused) else None
        if found is not None:
            conflicting += _contradicted(found, unused[:, 0], unused[:, 1], counts_as)
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


def _contradicted(
    found: RoundPredictions, item_ids: NDArray[np.int64], class_ids: NDArray[np.int64], counts_as: Mapping[int, int]
) -> list[Case]:
    """The cases among these labels (n,) that differ from a confident prediction of the round."""
    rows = found.rows(item_ids)
    places = np.flatnonzero(rows >= 0)
    probabilities = np.asarray(found.probabilities[rows[places]])
    if not probabilities.size:
        return []
    predicted = np.array([counts_as.get(one, one) for one in found.column_classes], np.int64)[probabilities.argmax(1)]
    confidence = probabilities.max(1)
    differs = np.flatnonzero((confidence >= CONFLICT) & (predicted != class_ids[places]))
    return [
        Case(
            item_id=int(item_ids[places[k]]),
            kind="conflict",
            labels={0: int(class_ids[places[k]])},
            prediction=int(predicted[k]),
            confidence=float(confidence[k]),
        )
        for k in differs
    ]
