"""Writes examined files as items: one transaction for a group, the same bytes never twice in a project.

An existing item keeps its labels, its split and its first name; another name is stored in addition. An item that was
missing, changed or unreadable and is readable now is repaired.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from storage.database.bulk import among, chunks, insert_rows, next_ids
from storage.database.schema import NOT_QUEUED, Item, ItemName, ItemState, LabelEvent
from storage.database.store import insert_for, now
from storage.database.tables.recordings import Recording
from storage.importing.sources import Entry, GivenLabel
from storage.labeling import projections, queue
from storage.labeling.events import LabelInput, apply_events
from storage.media.probe_pool import Examined
from storage.media.windows import Span
from storage.projects import class_rows
from storage.projects.projects import ProjectRow

LabelUse = Literal["given", "hidden", "ignore"]
_NAMESPACE = uuid.UUID("6f2b1f9e-3c1d-5b6a-9d53-0c2f4a6f8e10")


COLUMNS = (
    "project_id", "name", "held_out", "split_name", "truth_class_id", "imported_at",
    "sha256", "media_type", "n_bytes", "link_path", "link_mtime_ns",
    "seconds", "sample_rate", "channels", "width", "height", "condition", "condition_note",
    "recording_sha256", "first_frame", "last_frame", "group_name",
)  # fmt: skip
N_MEASURES = 5  # seconds to height
N_KEPT = 6  # the first columns stay as they are when a file is repaired
STATE_COLUMNS = (
    "item_id", "project_id", "waiting", "n_labels", "decided", "skipped", "flagged", "queue_rank", "shuffle",
)  # fmt: skip


class Arrival(NamedTuple):
    """One examined file, or a window of one, with its entry in the source; `link_path` is None if the bytes were
    copied."""

    entry: Entry
    examined: Examined
    link_path: str | None = None
    span: Span | None = None  # of a window
    recording: Arrival | None = None  # the whole file, for a window

    @property
    def stored_sha256(self) -> str:
        """The hash of the file that holds the bytes."""
        return self.examined.sha256 if self.span is None else self.span.recording


class Known(NamedTuple):
    """The stored item that repeats of the same bytes are compared with."""

    id: int
    sha256: str
    name: str
    held_out: bool
    truth_class_id: int | None
    condition: str
    link_path: str | None


@dataclass(slots=True)
class Written:
    """The result of writing one group."""

    imported: int = 0
    already: int = 0
    held_out: int = 0
    labels: int = 0
    skipped: int = 0
    recordings: set[str] = field(default_factory=set)  # hashes of files that were cut into windows
    splits: Counter[str] = field(default_factory=Counter)  # new items by the split name of the source
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # (name, reason)
    duplicates: list[tuple[str, str]] = field(default_factory=list)  # (name, name of the item with the same bytes)
    notes: list[tuple[str, str]] = field(default_factory=list)  # (name, what was not changed)


class ItemWriter:
    """Writes groups into one project. New names are added to `class_ids` and `annotators`."""

    def __init__(self, project_id: int, labels: LabelUse, annotators: dict[str, int]) -> None:
        self.project_id, self.labels, self.annotators = project_id, labels, annotators

    def write(
        self, connection: Connection, project: ProjectRow, group: Sequence[Arrival], class_names: dict[str, str]
    ) -> Written:
        """Write one group. `class_names` maps labels to class names; `project` is locked in this transaction."""
        written = Written()
        class_ids = self._class_ids(connection, class_names.values())
        ids_of = {label: class_ids[name] for label, name in class_names.items()}
        known = self._known(connection, [arrival.examined.sha256 for arrival in group])
        fresh: dict[str, Arrival] = {}
        again: list[Arrival] = []
        for arrival in group:
            sha256 = arrival.examined.sha256
            if sha256 in known or sha256 in fresh:
                again.append(arrival)
            else:
                fresh[sha256] = arrival
        self._record(connection, group, written)
        rows = self._insert(connection, list(fresh.values()), ids_of, written)
        self._repeat(connection, again, known | rows, ids_of, written)
        self._name(connection, group, known | rows)
        if self.labels == "given":
            found = known | rows
            labeled = [(found[one.examined.sha256], one.entry) for one in group]
            self._label(connection, project, labeled, ids_of, written)
        return written

    def _class_ids(self, connection: Connection, names: Iterable[str]) -> dict[str, int]:
        found = {row.name: row.id for row in class_rows.rows_in(connection, self.project_id) if row.active}
        for name in dict.fromkeys(names):
            if name not in found:
                found[name] = class_rows.add_in(connection, self.project_id, name).id
        return found

    def _known(self, connection: Connection, hashes: Sequence[str]) -> dict[str, Known]:
        columns = (Item.id, Item.sha256, Item.name, Item.held_out, Item.truth_class_id, Item.condition, Item.link_path)
        query = select(*columns).where(Item.project_id == self.project_id, among(connection, Item.sha256, hashes))
        return {row.sha256: Known(*row) for row in connection.execute(query)}

    def _truth(self, entry: Entry, ids_of: dict[str, int]) -> int | None:
        if self.labels == "hidden" or (self.labels == "given" and entry.split.held_out):
            label = entry.label
            return None if label is None else ids_of.get(label)
        return None

    def _record(self, connection: Connection, group: Sequence[Arrival], written: Written) -> None:
        """Store the recordings of the group's windows; a known one gets its present path."""
        recordings = {arrival.stored_sha256: arrival.recording for arrival in group if arrival.recording is not None}
        rows = []
        for sha256, (entry, examined, link, *_) in recordings.items():
            found, at = examined.measures, now()
            rows.append(
                {
                    "project_id": self.project_id, "sha256": sha256, "name": entry.name, "imported_at": at,
                    "media_type": found.media_type, "n_bytes": examined.n_bytes, "link_path": link,
                    "link_mtime_ns": examined.mtime_ns if link is not None else None,
                    "n_frames": found.n_frames, "sample_rate": found.sample_rate, "channels": found.channels,
                }
            )  # fmt: skip
        for row in rows:
            statement = insert_for(connection, Recording).values(**row)
            moved = {name: row[name] for name in ("link_path", "link_mtime_ns")}
            connection.execute(statement.on_conflict_do_update(index_elements=["project_id", "sha256"], set_=moved))
        written.recordings |= set(recordings)

    def _insert(
        self, connection: Connection, arrivals: list[Arrival], ids_of: dict[str, int], written: Written
    ) -> dict[str, Known]:
        """Insert new items and their states. The project row is locked, so no other process can add the same bytes."""
        if not arrivals:
            return {}
        at = now()
        ids = next_ids(connection, Item, len(arrivals))
        added, items, states, waiting = {}, [], [], []
        for item_id, arrival in zip(ids, arrivals, strict=True):
            entry, examined, link, *_ = arrival
            truth = self._truth(entry, ids_of)
            row = self._row(arrival, truth, at)
            items.append((item_id, *row))
            held_out, status, sha256 = entry.split.held_out, examined.measures.status, examined.sha256
            shuffle = projections.shuffle_of(sha256)
            waits = status == "ok" and not held_out
            states.append((item_id, self.project_id, waits, 0, False, False, False, NOT_QUEUED, shuffle))
            if waits:
                waiting.append((NOT_QUEUED, shuffle, item_id))
            added[sha256] = Known(item_id, sha256, entry.name, held_out, truth, status, link)
            written.held_out += held_out
            if entry.split.name:
                written.splits[entry.split.name] += 1
        insert_rows(connection, Item, ("id", *COLUMNS), items)
        insert_rows(connection, ItemState, STATE_COLUMNS, states)
        queue.move_cursors_back(connection, self.project_id, waiting)
        written.imported += len(arrivals)
        written.unreadable += [
            (arrival.entry.name, arrival.examined.measures.reason)
            for arrival in arrivals
            if arrival.examined.measures.status != "ok"
        ]
        return added

    def _row(self, arrival: Arrival, truth: int | None, at: datetime) -> tuple[Any, ...]:
        """The item's values, in the order of COLUMNS."""
        entry, (found, sha256, n_bytes, mtime_ns), link, span, _ = arrival
        status, reason, media_type, *measures = found  # seconds, sample_rate, channels, width, height, …
        return (
            self.project_id, entry.name, entry.split.held_out, entry.split.name, truth, at,
            sha256, media_type, n_bytes, link, mtime_ns if link is not None else None,
            *measures[:N_MEASURES], status, reason, *(span or (None, None, None)), entry.group,
        )  # fmt: skip

    def _repeat(
        self,
        connection: Connection,
        arrivals: list[Arrival],
        known: dict[str, Known],
        ids_of: dict[str, int],
        written: Written,
    ) -> None:
        """For bytes that the project already has: store hidden labels and repair items."""
        truths, repaired = [], []
        for arrival in arrivals:
            entry, row = arrival.entry, known[arrival.examined.sha256]
            if entry.name == row.name:
                written.already += 1
            else:
                written.duplicates.append((entry.name, row.name))
            if entry.split.held_out != row.held_out and entry.split.split:
                written.notes.append((entry.name, _other_split(row.held_out)))
            truth = self._truth(entry, ids_of)
            if truth is not None and row.truth_class_id is None:
                truths.append({"which": row.id, "truth": truth})
            elif truth is not None and truth != row.truth_class_id:
                written.notes.append(
                    (entry.name, f"Its hidden label stays as it was; the source says {entry.label!r}.")
                )
            if row.condition != "ok" and arrival.examined.measures.status == "ok":
                repaired.append((row.id, arrival))
        if truths:
            statement = update(Item).where(Item.__table__.c.id == bindparam("which"))
            connection.execute(statement.values(truth_class_id=bindparam("truth")), truths)
        for item_id, arrival in repaired:
            found = dict(zip(COLUMNS, self._row(arrival, None, now()), strict=True))
            values = {name: found[name] for name in COLUMNS[N_KEPT:]}
            connection.execute(update(Item).where(Item.id == item_id).values(values))
        if repaired:
            projections.refresh_states(connection, self.project_id, [item_id for item_id, _ in repaired])

    def _name(self, connection: Connection, group: Sequence[Arrival], known: dict[str, Known]) -> None:
        """Store every other name of the same bytes in addition to the first one."""
        names = []
        for entry, examined, *_ in group:
            row = known[examined.sha256]
            other = (name for name in (entry.name, *entry.other_names) if name != row.name)
            names += [{"item_id": row.id, "name": name} for name in other]
        if names:
            connection.execute(insert_for(connection, ItemName).on_conflict_do_nothing(), names)

    def _label(
        self,
        connection: Connection,
        project: ProjectRow,
        labeled: Sequence[tuple[Known, Entry]],
        ids_of: dict[str, int],
        written: Written,
    ) -> None:
        """Add labels as events, in the order in which they were given; existing ones are not added again."""
        given = [
            (row.id, one)
            for row, entry in labeled
            if not row.held_out and not entry.split.held_out
            for one in entry.labels
            if one.label in ids_of or one.kind == "skip"
        ]
        given.sort(key=lambda pair: pair[1].sequence)
        made = {event.uuid: (one, event) for one, event in ((one, self._event(i, one, ids_of)) for i, one in given)}
        stored = self._stored(connection, [*made, *(one.uuid for _, one in given if one.uuid)])
        events = [
            (self.annotators[one.annotator], event)
            for key, (one, event) in made.items()
            if key not in stored and one.uuid not in stored
        ]
        for annotator, part in itertools.groupby(events, key=lambda pair: pair[0]):
            events_of_one = [event for _, event in part]
            answers = apply_events(connection, project, events_of_one, annotator)
            accepted = [event for event, answer in zip(events_of_one, answers, strict=True) if answer.accepted]
            written.skipped += sum(event.kind == "skip" for event in accepted)
            written.labels += sum(event.kind != "skip" for event in accepted)
            reasons = {answer.reason for answer in answers if not answer.accepted}
            written.notes += [("", reason) for reason in sorted(reasons)]

    def _stored(self, connection: Connection, uuids: Sequence[str]) -> set[str]:
        """The uuids of those events that this project already has because the export came from it."""
        found: set[str] = set()
        for chunk in chunks(uuids):
            query = select(LabelEvent.uuid).where(LabelEvent.project_id == self.project_id)
            found.update(connection.execute(query.where(LabelEvent.uuid.in_(chunk))).scalars())
        return found

    def _event(self, item_id: int, given: GivenLabel, ids_of: dict[str, int]) -> LabelInput:
        origin = given.uuid or f"{given.label}\x00{given.annotator}\x00{given.kind}"
        return LabelInput(
            uuid=str(uuid.uuid5(_NAMESPACE, f"{self.project_id}\x00{item_id}\x00{origin}")),
            item_id=item_id,
            kind=given.kind,
            class_id=ids_of[given.label] if given.kind != "skip" else None,
            suggestion=given.suggestion if given.suggestion in ("shown", "hidden") else "none",
            suggested_class_id=ids_of.get(given.suggested_label),
            suggested_confidence=_probability(given.suggested_confidence),
            seconds=given.seconds,
            note=given.note,
            at=given.at,
        )


def _other_split(held_out: bool) -> str:
    if held_out:
        return "It is already a test item and was not moved to the pool; its label was not added."
    return "It is already in the pool and did not become a test item."


def _probability(value: float | None) -> float | None:
    """The value if it is a probability. Exports of earlier versions may contain other numbers; the label is kept."""
    return value if value is not None and 0 <= value <= 1 else None
