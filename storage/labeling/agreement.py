"""Agreement between annotators, and the items on which they disagree.

Krippendorff's alpha for nominal data, over items with at least two current labels: 1 is full agreement, 0 is agreement
by chance. Merged classes count as one. The alpha of one class is computed for "this class or another".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import krippendorff
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from storage.database.schema import CurrentLabel, ItemState
from storage.database.store import Store
from storage.projects.class_rows import effective_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    n_items: int  # with two labels or more
    n_labels: int  # on those items
    alpha: float | None  # None: no such item, or all labels are of one class
    per_class: dict[int, float | None]  # class id -> alpha of this class against the others
    share_equal: float | None  # the share of those items whose labels are all equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    item_id: int
    labels: dict[int, int]  # annotator id -> the class id that the label counts as
    decided: bool
    class_id: int | None  # the label that counts


def agreement(store: Store, project_id: int) -> Agreement:
    """Agreement over all current labels of a project."""
    with store.read() as connection:
        by_item = _shared_items(connection, project_id)
    class_ids = sorted({class_id for labels in by_item.values() for class_id in labels.values()})
    counts = np.zeros((len(by_item), len(class_ids)), dtype=np.int64)  # (items, classes) labels given
    column = {class_id: position for position, class_id in enumerate(class_ids)}
    for row, labels in enumerate(by_item.values()):
        for class_id in labels.values():
            counts[row, column[class_id]] += 1
    rest = counts.sum(axis=1, keepdims=True) - counts
    per_class = {
        class_id: _alpha(np.stack([counts[:, position], rest[:, position]], axis=1))
        for class_id, position in column.items()
    }
    equal = float(np.mean((counts > 0).sum(axis=1) == 1)) if len(by_item) else None
    return Agreement(
        n_items=len(by_item),
        n_labels=int(counts.sum()),
        alpha=_alpha(counts),
        per_class=per_class,
        share_equal=equal,
    )


def disagreements(store: Store, project_id: int, include_decided: bool = False) -> list[Disagreement]:
    """Items whose current labels differ, for review; decided ones only with `include_decided`."""
    with store.read() as connection:
        by_item = _shared_items(connection, project_id)
        query = select(ItemState.item_id, ItemState.decided, ItemState.class_id)
        query = query.where(ItemState.project_id == project_id, ItemState.n_labels > 1)
        states = {row.item_id: row for row in connection.execute(query)}
    return [
        Disagreement(item_id=item_id, labels=labels, decided=states[item_id].decided, class_id=states[item_id].class_id)
        for item_id, labels in by_item.items()
        if len(set(labels.values())) > 1 and (include_decided or not states[item_id].decided)
    ]


def _shared_items(connection: Connection, project_id: int) -> dict[int, dict[int, int]]:
    """item id -> annotator id -> the class id that the label counts as, for items with two labels or more."""
    effective = effective_ids(connection, project_id)
    shared = select(ItemState.item_id).where(ItemState.project_id == project_id, ItemState.n_labels > 1)
    query = select(CurrentLabel.item_id, CurrentLabel.annotator_id, CurrentLabel.class_id).where(
        CurrentLabel.item_id.in_(shared)
    )
    by_item: dict[int, dict[int, int]] = defaultdict(dict)
    for row in connection.execute(query.order_by(CurrentLabel.item_id, CurrentLabel.annotator_id)):
        by_item[row.item_id][row.annotator_id] = effective[row.class_id]
    return dict(by_item)


def _alpha(value_counts: NDArray[np.int64]) -> float | None:
    """(items, classes) label counts -> alpha; None where all labels are of one class."""
    used = value_counts[:, value_counts.sum(axis=0) > 0]
    if len(used) < 1 or used.shape[1] < 2:
        return None
    return float(krippendorff.alpha(value_counts=used, level_of_measurement="nominal"))
