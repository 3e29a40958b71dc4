"""Why a round selected an item and what its label changed, as columns of exports and screens.

Ids have no meaning outside the store, so the predicted class is given by name and the nearest labeled item by its hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from storage.database.bulk import chunks
from storage.database.schema import Item, ItemState, Pick, Round
from storage.database.store import Store
from storage.projects import class_rows

REASON_FLOATS = ("confidence", "entropy", "outer_before", "outer_after", "nearest_distance")
REASON_WHOLE = ("stands_for", "gradient_rank", "first_gradient_rank")
HINDSIGHT_FLOATS = ("label_probability", "mean_shift", "confidence_gain")
HINDSIGHT_WHOLE = ("round", "n_neighbors", "n_changed", "n_changed_to_label")
FLOAT_COLUMNS = (
    "pick_score", *(f"pick_{name}" for name in REASON_FLOATS), *(f"hindsight_{name}" for name in HINDSIGHT_FLOATS)
)  # fmt: skip
WHOLE_COLUMNS = (
    "pick_order", *(f"pick_{name}" for name in REASON_WHOLE), *(f"hindsight_{name}" for name in HINDSIGHT_WHOLE)
)  # fmt: skip
TEXT_COLUMNS = ("pick_guess", "pick_nearest_name", "pick_nearest_sha256")
FLAG_COLUMNS = ("pick_guess_was_wrong",)
PICK_COLUMNS = (
    "pick_order", "pick_score", "pick_guess", "pick_confidence", "pick_entropy", "pick_outer_before",
    "pick_outer_after", "pick_nearest_sha256", "pick_nearest_name", "pick_nearest_distance", "pick_stands_for",
    "pick_gradient_rank", "pick_first_gradient_rank", "pick_guess_was_wrong", "hindsight_round",
    "hindsight_label_probability", "hindsight_n_neighbors", "hindsight_n_changed", "hindsight_n_changed_to_label",
    "hindsight_mean_shift", "hindsight_confidence_gain",
)  # fmt: skip


def pick_selected() -> tuple[Any, ...]:
    """The columns that a query must select for `PickColumns.of`."""
    return Pick.position, Pick.score, Pick.reason, Pick.hindsight, Round.class_event


class PickColumns:
    """The columns of picks, read through one connection. `counts_as`: class id -> name of the class it counts as."""

    def __init__(self, connection: Connection, project_id: int, counts_as: dict[int, str]) -> None:
        self._connection, self._project_id, self._counts_as = connection, project_id, counts_as
        self._classes: dict[int, list[str]] = {}
        self._nearest: dict[int | None, tuple[str | None, str | None]] = {}

    def prepare(self, reasons: Sequence[dict[str, Any] | None]) -> None:
        """Read the nearest labeled items that these reasons name."""
        ids = sorted({reason["nearest_labeled"] for reason in reasons if reason and reason.get("nearest_labeled")})
        self._nearest = {}
        for chunk in chunks(ids):
            query = select(Item.id, Item.sha256, Item.name)
            query = query.where(Item.project_id == self._project_id, Item.id.in_(chunk))
            self._nearest |= {row.id: (row.sha256, row.name) for row in self._connection.execute(query)}

    def of(self, row: Any, label: str | None) -> dict[str, Any]:
        """All PICK_COLUMNS of a picked row; empty for a row without a pick. `label` is the row's current label."""
        if row.position is None:
            return {}
        reason, hindsight = row.reason or {}, row.hindsight or {}
        sha256, name = self._nearest.get(reason.get("nearest_labeled"), (None, None))
        predicted = self._predicted(reason.get("guess"), row.class_event)
        return (
            {"pick_order": row.position, "pick_score": row.score}
            | {f"pick_{column}": reason.get(column) for column in (*REASON_FLOATS, *REASON_WHOLE)}
            | {"pick_guess": predicted}
            | {"pick_guess_was_wrong": None if None in (predicted, label) else predicted != label}
            | {"pick_nearest_sha256": sha256, "pick_nearest_name": name}
            | {f"hindsight_{column}": hindsight.get(column) for column in (*HINDSIGHT_FLOATS, *HINDSIGHT_WHOLE)}
        )

    def _predicted(self, position: int | None, class_event: int) -> str | None:
        """The current name of a class by its position in the round; a merged class counts as its target."""
        if position is None:
            return None
        if class_event not in self._classes:
            rows = class_rows.rows_as_of(self._connection, self._project_id, class_event)
            self._classes[class_event] = [self._counts_as[row.id] for row in rows if row.active]
        names = self._classes[class_event]
        return names[position] if position < len(names) else None


def picks_of_round(store: Store, project_id: int, round_id: int) -> list[dict[str, Any]]:
    """The picks of a round in their order: item_id, name, label (None without one) and PICK_COLUMNS."""
    query = (
        select(*pick_selected(), Item.id, Item.name, ItemState.class_id)
        .join(Round, Round.id == Pick.round_id)
        .join(Item, Item.id == Pick.item_id)
        .join(ItemState, ItemState.item_id == Item.id)
        .where(Pick.round_id == round_id, Round.project_id == project_id)
        .order_by(Pick.position)
    )
    with store.read() as connection:
        counts_as = class_rows.effective_names(class_rows.rows_in(connection, project_id))
        columns = PickColumns(connection, project_id, counts_as)
        rows = list(connection.execute(query))
        columns.prepare([row.reason for row in rows])
        found = []
        for row in rows:
            label = counts_as.get(row.class_id)
            found.append({"item_id": row.id, "name": row.name, "label": label} | columns.of(row, label))
    return found
