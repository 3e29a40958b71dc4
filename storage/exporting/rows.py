"""Labeled items with their provenance, as a stream of rows from one snapshot of the store.

One row per item, in the order of import. `label` is the class that counts. Further columns give its annotator, time,
round and suggestion, why that round selected the item (`storage.exporting.reasons`), the labels of other annotators
(`other_labels`), and how many annotators gave which class (`storage.exporting.votes`). `source` is the origin of the
label: label (an annotator), decide (a review), truth (the known label of a test item), pseudo (the prediction of
the model, with its confidence) or none (an item without a label, on request). `flagged` is the flag of the item; `note`
is the note of its label, else the notes on the item.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, or_, select, true

from core.errors import InvalidInput, NotFound
from storage.database.bulk import chunks
from storage.database.schema import Annotator, CurrentLabel, Item, ItemName, ItemState, LabelEvent, Pick, Round
from storage.database.store import Store
from storage.database.tables.recordings import Recording
from storage.exporting.provenance import repeated_labels
from storage.exporting.reasons import PICK_COLUMNS, PickColumns, pick_selected
from storage.exporting.votes import CONTESTED, VOTE_COLUMNS, Contested, votes_of
from storage.labeling.browsing.item_browser import note_texts
from storage.labeling.labeled_items import items_seen_with_labels
from storage.media.contents import Content, content_of
from storage.projects import class_rows
from storage.rounds.log import RoundLog

TABLES = ("csv", "jsonl", "parquet")  # formats that support rows without a label
Format = Literal["csv", "jsonl", "parquet", "folders", "label-studio", "hugging-face", "audacity", "raven"]
CHUNK = 10_000
OTHER_COLUMNS = (
    "label", "annotator", "at", "kind", "event", "sequence", "seconds", "suggestion", "suggested_label",
    "suggested_confidence", "note",
)  # fmt: skip
ITEM_COLUMNS = (
    "name", "sha256", "media_type", "n_bytes", "duration", "sample_rate", "channels", "width", "height",
    "recording", "start", "end", "recording_sha256", "first_frame", "last_frame", "group",
)  # fmt: skip
COLUMNS = (
    "path", "name", "label", "split", "source", "confidence", "annotator", "at", "round", "strategy", *PICK_COLUMNS,
    "suggestion", "suggested_label", "suggested_confidence", "seconds", "flagged", "note", "label_given", "kind",
    "event", "sequence", "sha256", "media_type", "n_bytes", "duration", "sample_rate", "channels", "width", "height",
    "recording", "start", "end", "recording_sha256", "first_frame", "last_frame", "group", "other_names",
    "other_labels", *VOTE_COLUMNS,
)  # fmt: skip
UNLABELED = {"label": None, "source": "none"}
CERTAIN = 0.9999  # suggestions that repeated a label had the confidence 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What an export contains. The formats `folders` and `hugging-face` always contain the files."""

    format: Format = "csv"
    pseudo_above: float | None = None  # include predictions with at least this confidence
    held_out: bool = False  # include test items with a known label
    media: bool = False  # include the files
    media_prefix: str | None = None  # before paths in Label Studio tasks; None: its addresses of local files
    arrays: bool = False  # include embeddings and probabilities of the newest finished round
    overwrite: bool = False
    items: tuple[int, ...] | None = None  # only these
    unlabeled: bool = False  # include items without a label; only in tables
    contested: Contested = "keep"  # items whose labels differ without a decision: keep, majority, or omit

    def __post_init__(self) -> None:
        if self.contested not in CONTESTED:
            raise InvalidInput(f"Contested items: {self.contested!r} is unknown; use {', '.join(CONTESTED)}.")
        if self.pseudo_above is not None and not 0 <= self.pseudo_above <= 1:
            raise InvalidInput(f"The confidence is {self.pseudo_above}; give a number from 0 to 1.")
        if self.unlabeled and self.format not in TABLES:
            raise InvalidInput(f"Items without a label can be exported as {', '.join(TABLES)} only.")


@dataclass(frozen=True, slots=True)
class ExportItem:
    """One row and the location of its bytes."""

    id: int
    values: dict[str, Any]
    content: Content


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive items of an export, as read from the store."""

    rows: Sequence[Any]
    fields: dict[str, Sequence[Any]]  # name in the query -> the values of `rows`
    names: dict[int, list[str]]  # item id -> its other names
    others: dict[int, list[dict[str, Any]]]  # item id -> its labels other than the one that counts
    pseudo_labels: dict[int, tuple[str, float]]  # item id -> (label, confidence)
    notes: dict[int, str]  # item id -> its notes, one per line


class PseudoLabels:
    """The predictions of one finished round as labels: the most probable class of each item, with its probability."""

    def __init__(
        self,
        number: int,
        item_ids: NDArray[Any],
        probabilities: NDArray[Any],
        names: list[str | None],
        without: NDArray[np.int64] | tuple[()] = (),
    ) -> None:
        """`probabilities` is (n, C); `names` has the label of each column, None if the class can no longer be given.

        `without`: ids of items whose rows repeat a label and are not predictions.
        """
        order = np.argsort(item_ids, kind="stable")
        order = order[~np.isin(np.asarray(item_ids)[order], without)]
        self.number, self._ids, self._rows = number, np.asarray(item_ids)[order], order
        self._probabilities, self._names = probabilities, names
        self._usable = np.array([name is not None for name in names], np.bool_)

    def of(self, item_ids: NDArray[np.int64], above: float) -> dict[int, tuple[str, float]]:
        """item id -> (label, confidence), for the items that `reach` confirms."""
        found = item_ids[self.reach(item_ids, above)]
        if not len(found):
            return {}
        columns, confidences = self._best(found)
        names = [self._names[column] for column in columns.tolist()]
        triples = zip(found.tolist(), names, confidences.tolist(), strict=True)
        return {item_id: (name, confidence) for item_id, name, confidence in triples if name is not None}

    def reach(self, item_ids: NDArray[np.int64], above: float) -> NDArray[np.bool_]:
        """(n,) whether the round predicted the item, with at least this confidence, as a class that is in use."""
        reached = np.zeros(len(item_ids), np.bool_)
        if not len(self._ids) or not len(self._names):
            return reached
        places = np.minimum(np.searchsorted(self._ids, item_ids), len(self._ids) - 1)
        known = np.flatnonzero(self._ids[places] == item_ids)
        columns, confidences = self._best(item_ids[known])
        reached[known] = (confidences >= above) & self._usable[columns]
        return reached

    def _best(self, item_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(n,) most probable column and (n,) its probability, for items of the round."""
        rows = np.asarray(self._probabilities[self._rows[np.searchsorted(self._ids, item_ids)]], np.float64)
        return rows.argmax(1), rows.max(1, initial=0.0)


class ExportRows:
    """The rows of one project, all read through `connection`, which gives one consistent snapshot."""

    def __init__(self, store: Store, connection: Connection, project_id: int, options: ExportOptions) -> None:
        self.connection, self.project_id, self.options = connection, project_id, options
        rows = class_rows.rows_in(connection, project_id)
        self.given = {row.id: row.name for row in rows}
        self.counts_as = class_rows.effective_names(rows)
        self.n_left_out = 0  # contested items, by `options.contested`
        self.repeated: set[int] = set()  # events of the current chunk, see `_repeated_labels`
        self.picks = PickColumns(connection, project_id, self.counts_as)
        self.pseudo_labels = (
            newest_pseudo_labels(store, connection, project_id) if options.pseudo_above is not None else None
        )

    def class_names(self) -> list[str]:
        """The active classes in their order, then inactive ones that items still have."""
        known = class_rows.rows_in(self.connection, self.project_id)
        active = [row.name for row in known if row.active]
        inactive = [row.id for row in known if not row.active]
        if not inactive:
            return active
        labeled = select(ItemState.class_id).where(ItemState.project_id == self.project_id)
        of_tests = select(Item.truth_class_id).where(Item.project_id == self.project_id)
        used = self.connection.execute(labeled.where(ItemState.class_id.in_(inactive)).distinct()).scalars().all()
        tested = self.connection.execute(of_tests.where(Item.truth_class_id.in_(inactive)).distinct()).scalars().all()
        names = sorted(self.counts_as[one] for one in {*used, *tested} if one is not None)
        return list(dict.fromkeys([*active, *names]))

    def __iter__(self) -> Iterator[ExportItem]:
        for chunk in self.chunks():
            for row in chunk.rows:
                values = self._values(row, chunk.pseudo_labels.get(row.id))
                if values is None:
                    continue
                values["flagged"] = row.flagged
                values["note"] = values["note"] or chunk.notes.get(row.id)
                values["other_names"] = chunk.names.get(row.id, [])
                values["other_labels"] = chunk.others.get(row.id, [])
                votes = votes_of(values["source"], values["label"], values["other_labels"])
                if votes.kept(self.options.contested):
                    yield ExportItem(row.id, values | votes.columns(), content_of(row))
                else:
                    self.n_left_out += 1

    def chunks(self) -> Iterator[Chunk]:
        """The items that may have a row, in order, with their names, labels, pseudo-labels and notes."""
        for rows in self._blocks():
            fields = fields_of(rows)
            item_ids = fields["id"]
            self.picks.prepare(fields["reason"])
            self.repeated = self._repeated_labels(zip(fields["sequence"], fields["suggested_confidence"], strict=True))
            notes = note_texts(self.connection, self.project_id, item_ids[0], item_ids[-1])
            about = (self._names(item_ids), self._others(item_ids), self._pseudo_labels(fields), notes)
            yield Chunk(rows, fields, *about)

    def _blocks(self) -> Iterator[Sequence[Any]]:
        """The rows of the query in the order of ids, several thousand at a time."""
        for ids in chunks(sorted(set(self.options.items or ())), CHUNK):
            if rows := self.connection.execute(self._query().where(Item.id.in_(ids))).all():
                yield rows
        if self.options.items is not None:
            return
        last = 0
        while rows := self.connection.execute(self._query().where(Item.id > last).limit(CHUNK)).all():
            last = rows[-1].id
            yield rows

    def _query(self) -> Select[*tuple[Any, ...]]:
        """The items that may have a row, with the event of the label that counts."""
        wanted = [is_labeled()]
        if self.options.held_out:
            wanted.append(is_test_item())
        if self.pseudo_labels is not None:
            wanted.append(may_have_pseudo_label())
        if self.options.unlabeled:
            wanted = [true()]
        return (
            select(
                Item.id, Item.sha256, Item.name, Item.media_type, Item.n_bytes, Item.link_path, Item.held_out,
                Item.split_name, Item.seconds.label("duration"),
                Item.sample_rate, Item.channels, Item.width, Item.height,
                *span_columns(), Item.truth_class_id, ItemState.class_id, ItemState.flagged, *_event_columns(),
                Round.number, Round.strategy, *pick_selected(),
            )
            .join(ItemState, ItemState.item_id == Item.id)
            .outerjoin(
                Recording, and_(Recording.project_id == Item.project_id, Recording.sha256 == Item.recording_sha256)
            )
            .outerjoin(LabelEvent, LabelEvent.sequence == ItemState.sequence)
            .outerjoin(Annotator, Annotator.id == LabelEvent.annotator_id)
            .outerjoin(Round, Round.id == LabelEvent.round_id)
            .outerjoin(Pick, and_(Pick.round_id == LabelEvent.round_id, Pick.item_id == Item.id))
            .where(Item.project_id == self.project_id, or_(*wanted))
            .order_by(Item.id)
        )  # fmt: skip

    def _pseudo_labels(self, fields: dict[str, Sequence[Any]]) -> dict[int, tuple[str, float]]:
        if self.pseudo_labels is None or self.options.pseudo_above is None:
            return {}
        values = zip(fields["id"], fields["held_out"], fields["class_id"], strict=True)
        unlabeled = [item_id for item_id, held_out, label in values if not held_out and label is None]
        return self.pseudo_labels.of(np.array(unlabeled, np.int64), self.options.pseudo_above)

    def _values(self, row: Any, pseudo_label: tuple[str, float] | None) -> dict[str, Any] | None:
        """All columns except the path; None if the item has no row."""
        values: dict[str, Any] = dict.fromkeys(COLUMNS)
        for name in ITEM_COLUMNS:
            values[name] = getattr(row, name)
        values["split"] = row.split_name or ("test" if row.held_out else "train")
        if row.held_out:
            known = row.truth_class_id is not None and self.options.held_out
            return values | ({"label": self.counts_as[row.truth_class_id], "source": "truth"} if known else UNLABELED)
        if row.class_id is None:
            if pseudo_label is None or self.pseudo_labels is None:
                return values | UNLABELED if self.options.unlabeled else None
            label, confidence = pseudo_label
            predicted = {"label": label, "confidence": confidence, "round": self.pseudo_labels.number}
            return values | predicted | {"source": "pseudo"}
        values |= self._event(row)
        given = self.given[row.class_id]
        values["label_given"] = given if given != values["label"] else None
        values |= {"source": row.kind, "round": row.number, "strategy": row.strategy}
        return values | self.picks.of(row, values["label"])

    def _event(self, row: Any) -> dict[str, Any]:
        """One label with the columns OTHER_COLUMNS."""
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
            "suggested_confidence": None if row.sequence in self.repeated else row.suggested_confidence,
            "note": row.note or None,
        }

    def _others(self, item_ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
        """item id -> current labels other than the one that counts, oldest first.

        The query selects a range of the primary key, which may contain items of other projects.
        """
        other = (
            select(CurrentLabel.sequence, CurrentLabel.project_id)
            .join(ItemState, ItemState.item_id == CurrentLabel.item_id)
            .where(CurrentLabel.item_id.between(item_ids[0], item_ids[-1]), CurrentLabel.sequence != ItemState.sequence)
        )
        own = [sequence for sequence, project_id in self.connection.execute(other) if project_id == self.project_id]
        found: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for sequences in chunks(sorted(own)):
            query = (
                select(LabelEvent.item_id, *_event_columns())
                .join(Annotator, Annotator.id == LabelEvent.annotator_id)
                .where(LabelEvent.sequence.in_(sequences))
                .order_by(LabelEvent.sequence)
            )
            rows = self.connection.execute(query).all()
            self.repeated |= self._repeated_labels((row.sequence, row.suggested_confidence) for row in rows)
            for row in rows:
                found[row.item_id].append(self._event(row))
        return found

    def _repeated_labels(self, events: Iterable[tuple[int | None, float | None]]) -> set[int]:
        """Sequences of those events whose stored suggestion was a label of the item (`provenance.repeated_labels`)."""
        certain = [one for one, confidence in events if one is not None and (confidence or 0.0) >= CERTAIN]
        return {one for part in chunks(certain) for one in repeated_labels(self.connection, part)}

    def _names(self, item_ids: Sequence[int]) -> dict[int, list[str]]:
        query = (
            select(ItemName.item_id, ItemName.name)
            .where(ItemName.item_id.between(item_ids[0], item_ids[-1]))
            .order_by(ItemName.item_id, ItemName.name)
        )
        found: dict[int, list[str]] = defaultdict(list)
        for row in self.connection.execute(query):
            found[row.item_id].append(row.name)
        return found


def fields_of(rows: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Name in the query -> the values of these rows. There must be at least one row."""
    return dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))


def _event_columns() -> tuple[Any, ...]:
    return (
        LabelEvent.sequence, LabelEvent.uuid, LabelEvent.kind, LabelEvent.class_id.label("label_class"), LabelEvent.at,
        LabelEvent.seconds.label("seconds_to_decide"), LabelEvent.suggestion, LabelEvent.suggested_class_id,
        LabelEvent.suggested_confidence, LabelEvent.note, Annotator.name.label("annotator"),
    )  # fmt: skip


def span_columns() -> tuple[Any, ...]:
    """The recording of a window, its position, and the group. Start and end are in seconds; a clip starts at 0."""
    start = case((Item.recording_sha256.is_not(None), 1.0 * Item.first_frame / Item.sample_rate), else_=0.0)
    end = case((Item.recording_sha256.is_not(None), (Item.last_frame + 1.0) / Item.sample_rate), else_=Item.seconds)
    return (
        Recording.name.label("recording"), case((Item.seconds.is_not(None), start)).label("start"), end.label("end"),
        Item.recording_sha256, Item.first_frame, Item.last_frame, func.nullif(Item.group_name, "").label("group"),
    )  # fmt: skip


def is_labeled() -> ColumnElement[bool]:
    """The condition on items and their states for a row with a label."""
    return and_(~Item.held_out, ItemState.class_id.is_not(None))


def is_test_item() -> ColumnElement[bool]:
    """The condition for a row with the known label of a test item."""
    return and_(Item.held_out, Item.truth_class_id.is_not(None))


def may_have_pseudo_label() -> ColumnElement[bool]:
    """The condition for a row with a prediction, whose confidence is checked later."""
    return and_(~Item.held_out, ItemState.class_id.is_(None), Item.condition == "ok")


def newest_pseudo_labels(store: Store, connection: Connection, project_id: int) -> PseudoLabels:
    """The pseudo-labels of the newest finished round, with the present names, merges and retirements of classes.

    Raises NotFound before the first finished round.
    """
    query = select(Round.id, Round.number, Round.class_event, Round.label_sequence).where(
        Round.project_id == project_id, Round.status == "finished"
    )
    newest = connection.execute(query.order_by(Round.number.desc()).limit(1)).one_or_none()
    if newest is None:
        raise NotFound("There are no pseudo-labels yet: no round has finished. Run one, or export labels only.")
    log = RoundLog(store, project_id)
    now = {row.id: row for row in class_rows.rows_in(connection, project_id)}
    columns = [row for row in class_rows.rows_as_of(connection, project_id, newest.class_event) if row.active]
    ends = [now[now[row.id].counts_as] for row in columns]
    names = [None if end.retired_at is not None else end.name for end in ends]
    seen = items_seen_with_labels(connection, project_id, newest.label_sequence)
    item_ids, probabilities = (log.arrays(newest.id, name) for name in ("item_ids", "probabilities"))
    return PseudoLabels(newest.number, item_ids, probabilities, names, seen)
