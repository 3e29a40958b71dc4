"""Compares the store after a drill with the responses that the annotators received."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, text

from storage.database.schema import CurrentLabel, LabelEvent
from storage.database.store import Store
from storage.labeling.pool import Pool
from tests.drills.annotators import Annotator


@dataclass
class Verdict:
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    inconsistencies: list[str] = field(default_factory=list)


def judge(store: Store, project_id: int, annotators: Sequence[Annotator]) -> Verdict:
    verdict = Verdict(acknowledged=sum(len(one.acknowledged) for one in annotators))
    with store.read() as connection:
        query = select(LabelEvent.__table__).where(LabelEvent.project_id == project_id).order_by(LabelEvent.sequence)
        events = list(connection.execute(query))
    verdict.lost = sum(_lost(one, events) for one in annotators)
    verdict.doubled = _doubled(annotators, events)
    verdict.inconsistencies += _order(annotators, events) + _refusals(annotators)
    verdict.inconsistencies += _server_errors(annotators)
    verdict.inconsistencies += _current_labels(store, project_id, events) + _integrity(store)
    if wrong := Pool(store, project_id).rebuild():
        verdict.inconsistencies.append(f"{wrong} projections differ from what the events give.")
    return verdict


def _lost(annotator: Annotator, events: Sequence[Any]) -> int:
    """Acknowledged events that are not stored as they were sent."""
    stored = {row.uuid: (row.annotator_id, row.item_id, row.kind, row.class_id, row.undoes) for row in events}
    return sum(
        stored.get(name)
        != (annotator.annotator_id, event["item_id"], event["kind"], event.get("class_id"), event.get("undoes"))
        for name, event in annotator.acknowledged.items()
    )


def _doubled(annotators: Sequence[Annotator], events: Sequence[Any]) -> int:
    """Events stored more than once, and stored events that nobody sent."""
    sent = {event["uuid"] for one in annotators for event in one.sent}
    counts = Counter(row.uuid for row in events)
    return sum(count - 1 for count in counts.values()) + sum(name not in sent for name in counts)


def _order(annotators: Sequence[Annotator], events: Sequence[Any]) -> list[str]:
    problems = []
    for one in annotators:
        stored = [row.uuid for row in events if row.annotator_id == one.annotator_id]
        kept = set(stored)
        if stored != [event["uuid"] for event in one.sent if event["uuid"] in kept]:
            problems.append(f"The events of {one.name} are stored in another order than that of the actions.")
    return problems


def _refusals(annotators: Sequence[Annotator]) -> list[str]:
    """All events of a drill are valid, so none may be refused, and all are sent in the end."""
    problems = []
    for one in annotators:
        reasons = Counter(reason for _, reason in one.refused)
        problems += [f"{count} events of {one.name} were refused: {reason}" for reason, count in reasons.items()]
        if one.waiting:
            problems.append(f"{len(one.waiting)} events of {one.name} could not be sent after the faults ended.")
    return problems


def _server_errors(annotators: Sequence[Annotator]) -> list[str]:
    """On any fault, the server names it (503) or does not respond; an internal error is a bug in the server."""
    count = sum(one.statuses["500"] for one in annotators)
    return [f"{count} answers were internal errors (500). The log of the server has their causes."] if count else []


def _current_labels(store: Store, project_id: int, events: Sequence[Any]) -> list[str]:
    """The projection compared with an independent reading of the events: the newest label or skip that was not
    undone."""
    undone = {row.undoes for row in events if row.kind == "undo"}
    newest = {
        (row.item_id, row.annotator_id): row
        for row in events
        if row.kind in ("label", "skip") and row.uuid not in undone
    }
    meant = {key: row.class_id for key, row in newest.items() if row.kind == "label"}
    with store.read() as connection:
        query = select(CurrentLabel.__table__).where(CurrentLabel.project_id == project_id)
        found = {(row.item_id, row.annotator_id): row.class_id for row in connection.execute(query)}
    wrong = sum(found.get(key) != meant.get(key) for key in found.keys() | meant.keys())
    return [f"{wrong} current labels differ from the newest events."] if wrong else []


def _integrity(store: Store) -> list[str]:
    if not store.is_sqlite:
        return _postgresql_integrity(store)
    problems = []
    with store.read() as connection:
        found = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check"))]
        orphans = len(connection.execute(text("PRAGMA foreign_key_check")).all())
    if found != ["ok"]:
        problems.append(f"integrity_check of the store: {'; '.join(found)[:500]}")
    if orphans:
        problems.append(f"{orphans} rows of the store violate a foreign key.")
    engine = store.home / "engine.sqlite"
    if engine.exists():
        with closing(sqlite3.connect(engine)) as raw:
            said = raw.execute("PRAGMA integrity_check").fetchone()[0]
        if said != "ok":
            problems.append(f"integrity_check of the workflow engine's database: {said}")
    return problems


def _postgresql_integrity(store: Store) -> list[str]:
    """Every B-tree index against its table (extension amcheck); reading all events has read the tables already."""
    check = """SELECT c.relname, bt_index_check(c.oid, true) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
               JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.relkind = 'i' AND a.amname = 'btree' AND n.nspname NOT LIKE 'pg%'"""
    try:
        with store.write() as connection:
            connection.execute(text("CREATE EXTENSION IF NOT EXISTS amcheck"))
            connection.execute(text(check)).all()
    except Exception as error:  # the server's sentence names the index
        return [f"amcheck: {error}"]
    return []
