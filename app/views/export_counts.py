"""How many rows an export would hold, before it is made. The rules are those of `storage.exporting.rows`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import func, or_, select

from app.views.predictions import newest_predictions
from storage.database.schema import Item, ItemState
from storage.database.store import Store
from storage.projects import classes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCounts:
    labels: int
    guesses: int  # items without a label whose likeliest class reaches the confidence
    truths: int  # held-out items

    @property
    def total(self) -> int:
        return self.labels + self.guesses + self.truths


def export_counts(store: Store, project_id: int, *, pseudo_above: float | None, held_out: bool) -> ExportCounts:
    base = (
        select(func.count()).join_from(Item, ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id)
    )  # fmt: skip
    with store.read() as connection:
        labels = connection.execute(base.where(~Item.held_out, ItemState.class_id.is_not(None))).scalar_one()
        truths = connection.execute(base.where(Item.held_out, Item.truth_class_id.is_not(None))).scalar_one()
    guesses = _guesses(store, project_id, pseudo_above) if pseudo_above is not None else 0
    return ExportCounts(labels=int(labels), guesses=guesses, truths=int(truths) if held_out else 0)


def _guesses(store: Store, project_id: int, above: float) -> int:
    opinion = newest_predictions(store, project_id)
    if opinion is None:
        return 0
    query = (
        select(Item.id)
        .join(ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id, ~Item.held_out, ItemState.class_id.is_(None))
        .where(or_(Item.condition == "ok", ItemState.n_labels > 0))
    )
    with store.read() as connection:
        open_ids = np.fromiter(connection.execute(query).scalars(), np.int64)
    rows = opinion.rows(open_ids)
    shares = np.asarray(opinion.probabilities[rows[rows >= 0]])
    if not shares.size:
        return 0
    known = {row.id: row for row in classes.list_classes(store, project_id, include_inactive=True)}
    ends = [known[known[one].effective_id or one] for one in opinion.column_classes]
    can_be_given = np.array([end.retired_at is None for end in ends])
    best = shares.argmax(1)
    return int(((shares.max(1) >= above) & can_be_given[best]).sum())
