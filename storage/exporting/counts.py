"""The number of rows that an export would have. Items are chosen by the rules of `storage.exporting.rows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, func, select

from core.errors import NotFound
from storage.database.schema import Item, ItemState
from storage.database.store import Store
from storage.exporting.rows import (
    ExportOptions,
    is_labeled,
    is_test_item,
    may_have_pseudo_label,
    newest_pseudo_labels,
)
from storage.exporting.votes import contested_votes
from storage.projects import class_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCounts:
    labels: int
    pseudo_labels: int  # items without a label whose prediction reaches the required confidence
    test_items: int  # test items with a known label
    contested: int = 0  # items whose labels differ without a review decision, including those left out
    contested_left_out: int = 0

    @property
    def total(self) -> int:
        return self.labels + self.pseudo_labels + self.test_items


def export_counts(store: Store, project_id: int, options: ExportOptions) -> ExportCounts:
    """The number of rows by their source. Before the first finished round there are no pseudo-labels."""
    with store.read() as connection:
        labels = _count(connection, project_id, is_labeled())
        test_items = _count(connection, project_id, is_test_item()) if options.held_out else 0
        pseudo_labels = _count_pseudo_labels(store, connection, project_id, options)
        counts_as = class_rows.effective_names(class_rows.rows_in(connection, project_id))
        contested = contested_votes(connection, project_id, counts_as)
    left_out = sum(not votes.kept(options.contested) for votes in contested)
    return ExportCounts(
        labels=labels - left_out,
        pseudo_labels=pseudo_labels,
        test_items=test_items,
        contested=len(contested),
        contested_left_out=left_out,
    )


def _count(connection: Connection, project_id: int, condition: Any) -> int:
    return int(connection.execute(_items(func.count(), project_id).where(condition)).scalar_one())


def _count_pseudo_labels(store: Store, connection: Connection, project_id: int, options: ExportOptions) -> int:
    if options.pseudo_above is None:
        return 0
    try:
        pseudo_labels = newest_pseudo_labels(store, connection, project_id)
    except NotFound:
        return 0
    query = _items(Item.id, project_id).where(may_have_pseudo_label())
    item_ids = np.fromiter(connection.execute(query).scalars(), np.int64)
    return int(pseudo_labels.reach(item_ids, options.pseudo_above).sum())


def _items(column: Any, project_id: int) -> Select[Any]:
    query = select(column).select_from(Item).join(ItemState, ItemState.item_id == Item.id)
    return query.where(Item.project_id == project_id)
