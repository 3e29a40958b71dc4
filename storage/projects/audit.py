"""The audit log: who changed access, and what was deleted. Entries stay when their project is gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from storage.database.access_schema import AuditEntry
from storage.database.store import Store, now


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    project_id: int | None
    annotator_id: int | None  # None: the command line
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    id: int
    at: datetime
    annotator_id: int | None
    project_id: int | None
    kind: str
    detail: dict[str, Any]


def record(connection: Connection, entry: Entry) -> None:
    """Add an entry in the transaction of the change that it describes."""
    values = {"kind": entry.kind, "project_id": entry.project_id, "annotator_id": entry.annotator_id}
    connection.execute(insert(AuditEntry).values(**values, detail=entry.detail, at=now()))


def list_entries(store: Store, project_id: int | None = None, limit: int = 1_000) -> list[AuditRow]:
    """The newest entries, newest first; those of one project when it is given."""
    query = select(AuditEntry.__table__).order_by(AuditEntry.id.desc()).limit(limit)
    if project_id is not None:
        query = query.where(AuditEntry.project_id == project_id)
    with store.read() as connection:
        return [AuditRow(**row._asdict()) for row in connection.execute(query)]
