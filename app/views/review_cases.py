"""What deserves a second look: labels that differ between people, and labels the model strongly contradicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from sqlalchemy import func, select

from app.views.predictions import RoundPredictions, predictions_of
from storage.database.schema import ItemState, LabelEvent
from storage.database.store import Store
from storage.labeling import agreement
from storage.projects import classes
from storage.rounds.log import RoundLog

CONFLICT = 0.9  # confidence of a guess that contradicts a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One item to decide. `labels`: annotator id -> class id; `guess`: class id with its confidence."""

    item_id: int
    kind: str  # disagreement | conflict
    labels: dict[int, int]
    guess: int | None = None
    confidence: float | None = None


def cases(store: Store, project_id: int) -> list[Case]:
    """Disagreements first, then conflicts, the surest guess first."""
    differing = [
        Case(item_id=one.item_id, kind="disagreement", labels=one.labels)
        for one in agreement.disagreements(store, project_id)
    ]
    known = {one.item_id for one in differing}
    return differing + [one for one in conflicts(store, project_id) if one.item_id not in known]


def conflicts(store: Store, project_id: int) -> list[Case]:
    """Labeled items that a model, trained before anyone had labeled them, guessed to be something else with confidence.

    A model that was trained on a label repeats it, also after the label was changed; so each item is held against the
    newest round that knew no label of it.
    """
    rounds = [row for row in RoundLog(store, project_id).list() if row.status == "finished"]
    rounds = [row for row in rounds if row.metrics.get("has_model") and row.replay_of is None]
    counts_as = {row.id: row.effective_id or row.id for row in classes.list_classes(store, project_id, True)}
    found = []
    unseen = _labeled(store, project_id)
    for row in rounds:  # newest first
        mine = [one for one in unseen if row.label_sequence < one.first]
        unseen = [one for one in unseen if row.label_sequence >= one.first]
        opinion = predictions_of(store, row) if mine else None
        if opinion is None:
            continue
        at = opinion.rows(np.array([one.item_id for one in mine], np.int64))
        for one, place in zip(mine, at, strict=True):
            case = _held_against(opinion, int(place), one, counts_as) if place >= 0 else None
            found += [case] if case is not None else []
    return sorted(found, key=lambda one: -(one.confidence or 0.0))


@dataclass(frozen=True, slots=True)
class _Labeled:
    item_id: int
    class_id: int
    first: int  # sequence of the first label anyone gave it


def _labeled(store: Store, project_id: int) -> list[_Labeled]:
    """Items with a label that nobody has decided on."""
    first = (
        select(LabelEvent.item_id, func.min(LabelEvent.sequence).label("first"))
        .where(LabelEvent.project_id == project_id, LabelEvent.kind.in_(("label", "decide")))
        .group_by(LabelEvent.item_id)
        .subquery()
    )
    query = (
        select(ItemState.item_id, ItemState.class_id, first.c.first)
        .join(first, first.c.item_id == ItemState.item_id)
        .where(ItemState.project_id == project_id, ItemState.class_id.is_not(None), ~ItemState.decided)
    )
    with store.read() as connection:
        return [_Labeled(*row) for row in connection.execute(query)]


def _held_against(opinion: RoundPredictions, at: int, one: _Labeled, counts_as: Mapping[int, int]) -> Case | None:
    column = int(np.argmax(opinion.probabilities[at]))
    guess, confidence = opinion.column_classes[column], float(opinion.probabilities[at, column])
    guess, label = counts_as.get(guess, guess), counts_as.get(one.class_id, one.class_id)
    if confidence < CONFLICT or guess == label:
        return None
    return Case(item_id=one.item_id, kind="conflict", labels={0: label}, guess=guess, confidence=confidence)
