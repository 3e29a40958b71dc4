"""Labels to review: labels that differ between annotators, and labels that a confident prediction contradicts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.live.results import read_result
from app.views.predictions import RoundPredictions, newest_predictions, predictions_of
from app.views.similarity.neighbors import nearest_labeled
from core.errors import NotFound
from storage.database.store import Store
from storage.labeling import agreement
from storage.labeling.labeled_items import UNDECIDED, items_to_hide, undecided_labels, undecided_until
from storage.projects import class_rows, classes
from storage.projects.roles import role_of
from storage.rounds.log import RoundLog, RoundRow

SUSPECTED = 0.5  # trust below which a label is more likely wrong than right, as in `core.labels.trust`
CONFLICT = 0.9  # the lowest confidence of a prediction that counts as contradicting a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One item to review. `labels`: annotator id -> class id; `prediction`: class id, with its confidence."""

    item_id: int
    kind: str  # disagreement | conflict
    labels: dict[int, int]
    prediction: int | None = None
    confidence: float | None = None
    trust: float | None = None  # probability that the label is correct, from predictions made without it
    influence: float | None = None  # influence of the label; negative if it increases the loss of the whole pool


def cases(store: Store, project_id: int, reviewer: int | None = None) -> list[Case]:
    """Return disagreements, then conflicts by descending confidence of the prediction.

    In a blind project, items that the reviewer may still label are left out. Items that wait for a second look are left
    out unless the reviewer is an owner of the project or has labeled them.
    """
    differing = [
        Case(item_id=one.item_id, kind="disagreement", labels=one.labels)
        for one in agreement.disagreements(store, project_id)
    ]
    known = {one.item_id for one in differing}
    looks = reviewer is not None and role_of(store, project_id) != "owner"
    hidden = set(items_to_hide(store, project_id, reviewer, second_looks=looks).tolist())
    found = differing + [one for one in conflicts(store, project_id) if one.item_id not in known]
    return [one for one in found if one.item_id not in hidden]


def conflicts(store: Store, project_id: int) -> list[Case]:
    """Labeled items for which a model confidently predicts another class without having been trained on their label.

    A model that was trained on a label tends to predict it, even after the label was changed. Each item is therefore
    compared with the newest round that did not use a label of the item.
    """
    rounds = [row for row in RoundLog(store, project_id).list() if row.status == "finished"]
    rounds = [row for row in rounds if row.metrics.get("has_model") and row.replay_of is None]
    counts_as = class_rows.counts_as(classes.list_classes(store, project_id, True))
    conflicting: list[Case] = []
    oldest = min((row.label_sequence for row in rounds), default=0)  # all rounds have used the labels up to this one
    left = undecided_labels(store, project_id, after=oldest) if rounds else np.empty(0, UNDECIDED)
    for row in rounds:  # newest first
        is_unused = row.label_sequence < left["first_sequence"]
        unused, left = left[is_unused], left[~is_unused]
        found = predictions_of(store, row) if len(unused) else None
        if found is not None:
            conflicting += _contradicted(found, unused["item_id"], unused["class_id"], counts_as)
    by_item = {one.item_id: one for one in conflicting}
    by_item |= {one.item_id: one for one in [*suspected(store, project_id), *distrusted(store, project_id)]}
    conflicting = list(by_item.values())
    return sorted(conflicting, key=lambda one: -(one.confidence or 0.0))


def suspected(store: Store, project_id: int) -> list[Case]:
    """Labels that cross-validation on the features of an encoder contradicts (`core.labels.errors`). Labels that no
    longer count or have been reviewed are left out."""
    found = read_result(store.home, project_id)
    if found is None or not found.suspects:
        return []
    counts_as = class_rows.counts_as(classes.list_classes(store, project_id, True))
    labels = undecided_labels(store, project_id)
    given = dict(zip(labels["item_id"].tolist(), labels["class_id"].tolist(), strict=True))
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


def distrusted(store: Store, project_id: int) -> list[Case]:
    """Labels that are more likely wrong than right according to the newest round (`core.labels.trust`), with or without
    an encoder. Items that have been labeled or reviewed since are left out."""
    log = RoundLog(store, project_id)
    row = next((one for one in log.list() if one.status == "finished" and one.replay_of is None), None)
    found = predictions_of(store, row) if row is not None else None
    if row is None or found is None:
        return []
    try:
        weights, beliefs = log.arrays(row.id, "label_weights"), log.arrays(row.id, "label_beliefs")
    except NotFound:  # the round did not check its labels
        return []
    counts_as = class_rows.counts_as(classes.list_classes(store, project_id, True))
    item_ids = np.asarray(log.arrays(row.id, "item_ids"))
    influence = _influence(log, row, len(item_ids))
    rows = np.flatnonzero(np.asarray(weights) < SUSPECTED)
    given = undecided_until(store, project_id, item_ids[rows].tolist(), row.label_sequence)
    cases_ = []
    for at in rows:
        item_id, best = int(item_ids[at]), int(np.asarray(beliefs[at]).argmax())
        predicted = counts_as.get(found.column_classes[best], found.column_classes[best])
        if predicted != given.get(item_id, predicted):
            cases_.append(
                Case(
                    item_id=item_id,
                    kind="conflict",
                    labels={0: given[item_id]},
                    prediction=predicted,
                    confidence=float(beliefs[at][best]),
                    trust=float(weights[at]),
                    influence=float(influence[at]) if np.isfinite(influence[at]) else None,
                )
            )
    return cases_


def nearest_classes(store: Store, project_id: int, case: Case, limit: int = 5) -> list[int]:
    """The classes of the labeled items that are nearest to the item of a case, nearest first."""
    found = newest_predictions(store, project_id)
    if found is None:
        return []
    counts_as = class_rows.counts_as(classes.list_classes(store, project_id, True))
    near = nearest_labeled(store, found, [case.item_id], limit=limit).get(case.item_id, [])
    return [counts_as.get(one.class_id, one.class_id) for one in near]


def _influence(log: RoundLog, row: RoundRow, n_items: int) -> NDArray[np.float32]:
    """(n,) the influence of suspected labels; NaN elsewhere."""
    found = np.full(n_items, np.nan, np.float32)
    with contextlib.suppress(NotFound):
        found[np.asarray(log.arrays(row.id, "candidate_rows"))] = log.arrays(row.id, "label_influence")
    return found


def _contradicted(
    found: RoundPredictions, item_ids: NDArray[np.int64], class_ids: NDArray[np.int64], counts_as: Mapping[int, int]
) -> list[Case]:
    """The cases among these labels (n,) that a confident prediction of the round contradicts."""
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
