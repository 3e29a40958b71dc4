"""What deserves a second look: labels that differ between people, and labels the model strongly contradicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import select

from app.guesses import opinion_of
from storage import agreement, classes
from storage.database import Store
from storage.rounds import RoundLog
from storage.schema import ItemState

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
    """Labeled items that the last model, trained before their label, guessed to be something else with confidence.

    A model that was trained on a label repeats it; so each label is held against the newest round that did not know it.
    """
    ended = [row for row in RoundLog(store, project_id).list() if row.status == "finished"]
    rows = [row for row in ended if row.metrics.get("has_model")]
    counts_as = {row.id: row.effective_id or row.id for row in classes.list_classes(store, project_id, True)}
    query = select(ItemState.item_id, ItemState.class_id, ItemState.sequence).where(
        ItemState.project_id == project_id, ItemState.class_id.is_not(None), ~ItemState.decided
    )
    with store.read() as connection:
        labeled = list(connection.execute(query))
    found = []
    for item_id, class_id, sequence in labeled:
        if class_id is None or sequence is None:
            continue
        row = next((one for one in rows if one.label_sequence < sequence), None)
        opinion = opinion_of(store, row) if row is not None else None
        at = opinion.row(item_id) if opinion is not None else None
        if opinion is None or at is None:
            continue
        column = int(np.argmax(opinion.probabilities[at]))
        guess, confidence = opinion.column_classes[column], float(opinion.probabilities[at, column])
        label = counts_as.get(class_id, class_id)
        if confidence >= CONFLICT and counts_as.get(guess, guess) != label:
            found.append(
                Case(
                    item_id=item_id,
                    kind="conflict",
                    labels={0: label},
                    guess=counts_as.get(guess, guess),
                    confidence=confidence,
                )
            )
    return sorted(found, key=lambda one: -(one.confidence or 0.0))
