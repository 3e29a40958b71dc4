"""Labeled items with their provenance, as a stream of rows from one snapshot of the store.

One row for each item, in the order of import. `label` is the class that counts; who gave it, when, in which round and
with which suggestion stands beside it, why that round chose it (`storage.exporting.reasons`), and what others said in
`other_labels`. `source` says where the label comes
from: label (a person), decide (a review), truth (a held-out item's) or pseudo (the model's guess, with its confidence).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, or_, select

from core.errors import InvalidInput, NotFound
from storage.database.schema import Annotator, CurrentLabel, Item, ItemName, ItemState, LabelEvent, Pick, Round
from storage.database.store import Store
from storage.exporting.reasons import PICK_COLUMNS, PickColumns, pick_selected
from storage.projects import classes
from storage.rounds.log import RoundLog

Format = Literal["csv", "jsonl", "parquet", "folders", "label-studio"]
CHUNK = 1_000
OTHER_COLUMNS = (
    "label", "annotator", "at", "kind", "event", "sequence", "seconds", "suggestion", "suggested_label",
    "suggested_confidence", "note",
)  # fmt: skip
ITEM_COLUMNS = (
    "name", "sha256", "media_type", "n_bytes", "duration", "sample_rate", "channels", "width", "height",
)  # fmt: skip
COLUMNS = (
    "path", "name", "label", "split", "source", "confidence", "annotator", "at", "round", "strategy", *PICK_COLUMNS,
    "suggestion", "suggested_label", "suggested_confidence", "seconds", "note", "label_given", "kind", "event",
    "sequence", "sha256", "media_type", "n_bytes", "duration", "sample_rate", "channels", "width", "height",
    "other_names", "other_labels",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What an export holds. Class folders always carry the files."""

    format: Format = "csv"
    pseudo_above: float | None = None  # also the model's guesses with at least this confidence
    held_out: bool = False  # also test items that have a truth
    media: bool = False  # the files too
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.pseudo_above is not None and not 0 <= self.pseudo_above <= 1:
            raise InvalidInput(f"The confidence is {self.pseudo_above}; give a number from 0 to 1.")


@dataclass(frozen=True, slots=True)
class ExportItem:
    """One row, and where its bytes are."""

    id: int
    values: dict[str, Any]
    link_path: str | None


class PoolPredictions:
    """Pseudo-labels of one finished round, by item."""

    def __init__(
        self, number: int, item_ids: NDArray[Any], probabilities: NDArray[Any], names: list[str | None]
    ) -> None:
        order = np.argsort(item_ids, kind="stable")
        self.number, self._ids, self._rows = number, np.asarray(item_ids)[order], order
        self._probabilities, self._names = probabilities, names

    def of(self, item_id: int) -> tuple[str, float] | None:
        """(class, confidence) of the likeliest class, or None when the round did not know the item."""
        place = int(np.searchsorted(self._ids, item_id))
        if place == len(self._ids) or self._ids[place] != item_id:
            return None
        row = np.asarray(self._probabilities[self._rows[place]])
        best = int(row.argmax())
        name = self._names[best]
        return None if name is None else (name, float(row[best]))


class ExportRows:
    """The rows of one project as `connection` sees them; everything is read through that one connection."""

    def __init__(self, store: Store, connection: Connection, project_id: int, options: ExportOptions) -> None:
        self.connection, self.project_id, self.options = connection, project_id, options
        rows = classes.rows_in(connection, project_id)
        names = {row.id: row.name for row in rows}
        self.given = names
        self.counts_as = {row.id: names[row.effective_id or row.id] for row in rows}
        self.picks = PickColumns(connection, project_id, self.counts_as)
        self.guesses = _guesses(store, connection, project_id, rows) if options.pseudo_above is not None else None

    def __iter__(self) -> Iterator[ExportItem]:
        last = 0
        while chunk := self._chunk(last):
            last = chunk[-1].id
            self.picks.prepare(chunk)
            others = self._others([row.id for row in chunk])
            names = self._names([row.id for row in chunk])
            for row in chunk:
                values = self._values(row)
                if values is not None:
                    values["other_names"] = names.get(row.id, [])
                    values["other_labels"] = others.get(row.id, [])
                    yield ExportItem(row.id, values, row.link_path)

    def _chunk(self, last: int) -> list[Any]:
        """The next items that may have a row, with the event that gave the label that counts."""
        wanted = [and_(~Item.held_out, or_(ItemState.class_id.is_not(None), ItemState.n_labels > 0))]
        if self.options.held_out:
            wanted.append(and_(Item.held_out, Item.truth_class_id.is_not(None)))
        if self.guesses is not None:
            wanted.append(and_(~Item.held_out, ItemState.class_id.is_(None), Item.condition == "ok"))
        query = (
            select(
                Item.id, Item.sha256, Item.name, Item.media_type, Item.n_bytes, Item.link_path, Item.held_out,
                Item.seconds.label("duration"), Item.sample_rate, Item.channels, Item.width, Item.height,
                Item.truth_class_id, ItemState.class_id, *_event_columns(),
                Round.number, Round.strategy, *pick_selected(),
            )
            .join(ItemState, ItemState.item_id == Item.id)
            .outerjoin(LabelEvent, LabelEvent.sequence == ItemState.sequence)
            .outerjoin(Annotator, Annotator.id == LabelEvent.annotator_id)
            .outerjoin(Round, Round.id == LabelEvent.round_id)
            .outerjoin(Pick, and_(Pick.round_id == LabelEvent.round_id, Pick.item_id == Item.id))
            .where(Item.project_id == self.project_id, Item.id > last, or_(*wanted))
            .order_by(Item.id)
            .limit(CHUNK)
        )  # fmt: skip
        return list(self.connection.execute(query))

    def _values(self, row: Any) -> dict[str, Any] | None:
        """All columns but the path; None when the item has nothing to export."""
        values: dict[str, Any] = dict.fromkeys(COLUMNS)
        for name in ITEM_COLUMNS:
            values[name] = getattr(row, name)
        values["split"] = "test" if row.held_out else "train"
        if row.held_out:
            return values | {"label": self.counts_as[row.truth_class_id], "source": "truth"}
        if row.class_id is None:
            guess = self.guesses.of(row.id) if self.guesses is not None else None
            if guess is None or guess[1] < (self.options.pseudo_above or 0):
                return None
            assert self.guesses is not None
            return values | {
                "label": guess[0], "source": "pseudo", "confidence": guess[1], "round": self.guesses.number
            }  # fmt: skip
        values |= self._event(row)
        given = self.given[row.class_id]
        values["label_given"] = given if given != values["label"] else None
        values |= {"source": row.kind, "round": row.number, "strategy": row.strategy}
        return values | self.picks.of(row, values["label"])

    def _event(self, row: Any) -> dict[str, Any]:
        """A label as OTHER_COLUMNS name it."""
        return {
            "label": self.counts_as[row.label_class],
            "annotator": row.annotator,
            "at": row.at.isoformat(),
            "kind": row.kind,
            "event": row.uuid,
            "sequence": row.sequence,
            "seconds": row.seconds_to_decide,
            "suggestion": row.suggestion,
            "suggested_label": self.counts_as.get(row.suggested_class_id),
            "suggested_confidence": row.suggested_confidence,
            "note": row.note or None,
        }

    def _others(self, item_ids: list[int]) -> dict[int, list[dict[str, Any]]]:
        """Standing labels of these items besides those that count, oldest first. The range of ids is the key of the
        table; rows of other projects in it are never asked for."""
        query = (
            select(CurrentLabel.item_id, *_event_columns())
            .join(LabelEvent, LabelEvent.sequence == CurrentLabel.sequence)
            .join(Annotator, Annotator.id == CurrentLabel.annotator_id)
            .join(ItemState, ItemState.item_id == CurrentLabel.item_id)
            .where(
                CurrentLabel.item_id.between(item_ids[0], item_ids[-1]),
                CurrentLabel.sequence != ItemState.sequence,
            )
            .order_by(CurrentLabel.sequence)
        )
        found: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self.connection.execute(query):
            found[row.item_id].append(self._event(row))
        return found

    def _names(self, item_ids: list[int]) -> dict[int, list[str]]:
        query = (
            select(ItemName.item_id, ItemName.name)
            .where(ItemName.item_id.between(item_ids[0], item_ids[-1]))
            .order_by(ItemName.item_id, ItemName.name)
        )
        found: dict[int, list[str]] = defaultdict(list)
        for row in self.connection.execute(query):
            found[row.item_id].append(row.name)
        return found


def _event_columns() -> tuple[Any, ...]:
    return (
        LabelEvent.sequence, LabelEvent.uuid, LabelEvent.kind, LabelEvent.class_id.label("label_class"), LabelEvent.at,
        LabelEvent.seconds.label("seconds_to_decide"), LabelEvent.suggestion, LabelEvent.suggested_class_id,
        LabelEvent.suggested_confidence, LabelEvent.note, Annotator.name.label("annotator"),
    )  # fmt: skip


def _guesses(store: Store, connection: Connection, project_id: int, rows: list[classes.ClassRow]) -> PoolPredictions:
    """Of the newest finished round; classes renamed or merged since then count as they do now."""
    query = select(Round.id, Round.number, Round.class_event).where(
        Round.project_id == project_id, Round.status == "finished"
    )
    newest = connection.execute(query.order_by(Round.number.desc()).limit(1)).one_or_none()
    if newest is None:
        raise NotFound("There are no pseudo-labels yet: no round has finished. Run one, or export labels only.")
    log = RoundLog(store, project_id)
    now = {row.id: row for row in rows}
    columns = [row for row in classes.rows_as_of(connection, project_id, newest.class_event) if row.active]
    ends = [now[now[row.id].effective_id or row.id] for row in columns]
    names = [None if end.retired_at is not None else end.name for end in ends]
    return PoolPredictions(
        newest.number, log.arrays(newest.id, "item_ids"), log.arrays(newest.id, "probabilities"), names
    )
