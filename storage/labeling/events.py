"""Validates and writes label events: one transaction for a batch, each uuid at most once.

A refused event is not written and gets a reason; the other events of the batch are written. A label for a class that
was merged in the meantime is stored as given and counts as the class it was merged into.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, select

from core.errors import InvalidInput
from storage.database.bulk import chunks
from storage.database.schema import Annotator, Item, LabelEvent, Pick
from storage.database.store import now
from storage.database.strings import storable
from storage.labeling import projections, queue
from storage.labeling.undo import undone_uuids
from storage.projects import class_rows, roles
from storage.projects.projects import ProjectRow, row_in

Kind = Literal["label", "skip", "flag", "unflag", "note", "undo", "decide"]
KINDS = ("label", "skip", "flag", "unflag", "note", "undo", "decide")
NOTE_LIMIT = 100_000
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)  # some programs cannot convert earlier times between time zones


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInput:
    """One action of one annotator. The client creates `uuid`, so sending an event twice has no further effect."""

    uuid: str
    item_id: int
    kind: Kind
    class_id: int | None = None
    undoes: str | None = None
    suggestion: str = "none"
    suggested_class_id: int | None = None
    suggested_confidence: float | None = None
    seconds: float | None = None
    note: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """The result for one event. A uuid that was applied before is `accepted` too; a refusal has a `reason`."""

    uuid: str
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEventRow:
    sequence: int
    uuid: str
    project_id: int
    item_id: int
    annotator_id: int
    kind: str
    class_id: int | None
    undoes: str | None
    suggestion: str
    suggested_class_id: int | None
    suggested_confidence: float | None
    seconds: float | None
    round_id: int | None
    note: str
    at: datetime
    stored_at: datetime


class _Batch:
    """The data that the events of a batch are validated against, read once."""

    def __init__(self, connection: Connection, project_id: int, events: Sequence[LabelInput], may_edit: bool) -> None:
        self.project_id, self.may_edit = project_id, may_edit  # editors may undo skips of others
        named = [event.undoes for event in events if event.undoes is not None and _is_uuid(event.undoes)]
        self.known = _stored(connection, [event.uuid for event in events])
        self.targets = _stored(connection, named)
        self.undone = undone_uuids(_rows(connection, LabelEvent.undoes, named))
        items = sorted({event.item_id for event in events if -(2**63) <= event.item_id < 2**63})
        self.items = {
            item_id
            for chunk in chunks(items)
            for item_id in connection.execute(
                select(Item.id).where(Item.id.in_(chunk), Item.project_id == project_id)
            ).scalars()
        }
        self.classes = {row.id: row for row in class_rows.rows_in(connection, project_id)}
        self.rounds = _rounds(connection, sorted(self.items))

    def refusal(self, event: LabelInput, annotator: int) -> str:
        """Why the event cannot be written; "" if it can."""
        if event.kind not in KINDS:
            return f"There is no event of kind {event.kind!r}."
        if event.item_id not in self.items:
            return f"Item {event.item_id} is not in this project; the label was not stored."
        if event.at is not None and event.at < EARLIEST:
            return f"The time {event.at.isoformat()} is before 1970; the label was not stored. Check the clock."
        if event.undoes is not None and event.kind != "undo":
            return f"An event of kind {event.kind} cannot undo another one."
        return self._suggestion_refusal(event) or self._kind_refusal(event, annotator)

    def _suggestion_refusal(self, event: LabelInput) -> str:
        confidence = event.suggested_confidence
        if event.suggested_class_id is not None and event.suggested_class_id not in self.classes:
            return f"The suggested class {event.suggested_class_id} is not in this project; the label was not stored."
        if confidence is not None and not 0 <= confidence <= 1:
            return f"The suggested confidence is {confidence}, not a number from 0 to 1; the label was not stored."
        return ""

    def _kind_refusal(self, event: LabelInput, annotator: int) -> str:
        if event.kind in ("label", "decide"):
            return self._class_refusal(event.class_id)
        if event.class_id is not None:
            return f"An event of kind {event.kind} carries no class."
        return self._undo_refusal(event, annotator) if event.kind == "undo" else ""

    def _class_refusal(self, class_id: int | None) -> str:
        given = self.classes.get(class_id) if class_id is not None else None
        if given is None:
            return f"Class {class_id} is not in this project; the label was not stored."
        counts_as = self.classes[given.counts_as]
        if counts_as.retired_at is not None:
            return f"The class {counts_as.name!r} was retired; the label was not stored. Choose another class."
        return ""

    def _undo_refusal(self, event: LabelInput, annotator: int) -> str:
        target = self.targets.get(event.undoes or "")
        if target is None or target.project_id != self.project_id:
            return "The action to undo is not stored."
        if target.annotator_id != annotator and not (self.may_edit and target.kind == "skip"):
            return "Only the annotator who did this can undo it."
        if target.kind == "undo":
            return "An undo cannot be undone. Label the item again."
        if target.item_id != event.item_id:
            return "The action to undo belongs to another item."
        if event.undoes in self.undone:
            return "This was already undone."
        return ""

    def add(self, event: LabelInput, annotator: int) -> None:
        """Register an accepted event, so that later events of the batch are validated against it."""
        self.known[event.uuid] = event
        self.targets[event.uuid] = _Target(self.project_id, event.item_id, annotator, event.kind)
        if event.undoes is not None:
            self.undone.add(event.undoes)


@dataclass(frozen=True, slots=True)
class _Target:
    project_id: int
    item_id: int
    annotator_id: int
    kind: str


def apply_events(
    connection: Connection, project: ProjectRow | int, events: Sequence[LabelInput], annotator: int
) -> list[Applied]:
    """Write a batch in a transaction that holds the project's lock (`projects.lock` or `touch`); one result each."""
    if isinstance(project, int):
        project = row_in(connection, project)
    events = [checked(event) for event in events]
    project_id = project.id
    undecided = roles.refusal_in(connection, project_id, "edit")  # review decisions are for editors
    batch = _Batch(connection, project_id, events, may_edit=not undecided)
    refusal = _annotator_refusal(connection, project, annotator)
    answers, rows = [], []
    for event in events:
        reason = "" if event.uuid in batch.known else refusal or batch.refusal(event, annotator)
        reason = reason or (undecided if event.kind == "decide" and event.uuid not in batch.known else "")
        answers.append(Applied(event.uuid, not reason, reason))
        if reason or event.uuid in batch.known:
            continue
        rows.append(_row(event, project_id, annotator, batch.rounds.get(event.item_id)))
        batch.add(event, annotator)
    if rows:
        connection.execute(insert(LabelEvent), rows)
        touched = sorted({row["item_id"] for row in rows})
        effective = class_rows.counts_as(batch.classes.values())
        projections.refresh_states(
            connection, project_id, touched, projections.Rules(effective, project.settings.labels_per_item)
        )
        for chunk in chunks(touched):
            queue.release_items(connection, annotator, chunk)
    return answers


def checked(event: LabelInput) -> LabelInput:
    """The event in its stored form. Raises InvalidInput for a value that cannot be stored exactly."""
    try:
        normal = str(uuid.UUID(event.uuid))
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidInput(f"{event.uuid!r} is not a UUID; every event needs one of its own.") from error
    if normal != event.uuid:
        event = replace(event, uuid=normal)
    if event.at is not None and event.at.tzinfo is None:
        raise InvalidInput(f"The time {event.at.isoformat()} of an event has no time zone.")
    if event.suggestion not in ("none", "shown", "hidden"):
        raise InvalidInput(f"A suggestion is none, shown or hidden, not {event.suggestion!r}.")
    if not _measured(event.seconds):  # the clock was changed: no measurement
        event = replace(event, seconds=None)
    storable(event.note, "The note", NOTE_LIMIT)
    return event


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _measured(value: float | None) -> bool:
    return value is None or 0 <= value < 1e9


def _row(event: LabelInput, project_id: int, annotator: int, round_id: int | None) -> dict[str, Any]:
    stored_at = now()
    return {
        "uuid": event.uuid,
        "project_id": project_id,
        "item_id": event.item_id,
        "annotator_id": annotator,
        "kind": event.kind,
        "class_id": event.class_id,
        "undoes": event.undoes,
        "suggestion": event.suggestion,
        "suggested_class_id": event.suggested_class_id,
        "suggested_confidence": event.suggested_confidence,
        "seconds": event.seconds,
        "round_id": round_id,
        "note": event.note,
        "at": min(event.at, stored_at) if event.at is not None else stored_at,
        "stored_at": stored_at,
    }


def _annotator_refusal(connection: Connection, project: ProjectRow, annotator: int) -> str:
    """Why this annotator cannot label in this project now; "" if they can."""
    if project.archived_at is not None:
        return f"The project {project.name} is archived; the label was not stored."
    who = connection.execute(select(Annotator.removed_at).where(Annotator.id == annotator)).one_or_none()
    if who is None or who.removed_at is not None:
        return "The annotator was removed; the label was not stored. Continue under another name."
    return roles.refusal_in(connection, project.id, "label")


def _stored(connection: Connection, uuids: Sequence[str]) -> dict[str, Any]:
    return {row.uuid: row for row in _rows(connection, LabelEvent.uuid, uuids)}


def _rows(connection: Connection, column: Any, values: Sequence[Any]) -> list[Any]:
    table = column.class_.__table__
    return [row for chunk in chunks(values) for row in connection.execute(select(table).where(column.in_(chunk)))]


def _rounds(connection: Connection, item_ids: Sequence[int]) -> dict[int, int]:
    """item id -> the newest round that picked it."""
    found: dict[int, int] = {}
    for chunk in chunks(item_ids):
        query = select(Pick.item_id, func.max(Pick.round_id)).where(Pick.item_id.in_(chunk)).group_by(Pick.item_id)
        found.update((item_id, round_id) for item_id, round_id in connection.execute(query))
    return found
