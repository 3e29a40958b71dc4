"""Labels that came with the data and are hidden from annotators; evaluations and simulations compare with them.

An item counts when it is readable and its known label is an active class.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from storage.database.schema import Item
from storage.database.store import Store
from storage.projects import class_rows


@dataclass(frozen=True, slots=True)
class KnownLabel:
    sha256: str
    class_id: int
    held_out: bool


@dataclass(frozen=True, slots=True)
class KnownLabelCounts:
    pool: int  # items that can be selected
    test: int  # test items

    @property
    def enough(self) -> bool:
        """Whether a simulation is possible: there are items to select and items to test on."""
        return self.pool > 0 and self.test > 0


def known_labels(store: Store, project_id: int) -> list[KnownLabel]:
    """Items with a known label in the order of their hashes, which is the same on every machine."""
    columns = select(Item.sha256, Item.truth_class_id, Item.held_out)
    with store.read() as connection:
        active = [row.id for row in class_rows.rows_in(connection, project_id) if row.active]
        rows = connection.execute(_with_known_label(columns, project_id, active).order_by(Item.sha256))
        return [KnownLabel(*row) for row in rows]


def count_known_labels(store: Store, project_id: int) -> KnownLabelCounts:
    columns = select(Item.held_out, func.count()).group_by(Item.held_out)
    with store.read() as connection:
        active = [row.id for row in class_rows.rows_in(connection, project_id) if row.active]
        rows = connection.execute(_with_known_label(columns, project_id, active))
        counts: Counter[bool] = Counter({bool(row[0]): int(row[1]) for row in rows})
    return KnownLabelCounts(pool=counts[False], test=counts[True])


def _with_known_label(query: Select[*tuple[Any, ...]], project_id: int, class_ids: list[int]) -> Select[Any]:
    return query.where(Item.project_id == project_id, Item.condition == "ok", Item.truth_class_id.in_(class_ids))
