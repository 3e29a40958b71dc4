"""Class rows: reading them now or as of an earlier event, adding one, and what a merged class counts as.

These functions work inside a transaction of the caller and change no label. The functions for people are in
`storage.projects.classes`.
"""

from __future__ import annotations

import colorsys
import string
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, insert, select

from core.errors import Conflict, NotFound
from storage.database.schema import ClassEvent, LabelClass
from storage.database.store import now
from storage.database.strings import composed, named

ACTION_KEYS = frozenset("usfnlazgex[]/? ")  # actions on the Label and Grid screens (label_card.js, grid_tiles.js)
STREAMLIT_KEYS = frozenset("cr.,")  # shortcuts of Streamlit itself
RESERVED_KEYS = ACTION_KEYS | STREAMLIT_KEYS
KEYS = tuple(key for key in "1234567890" + string.ascii_lowercase if key not in RESERVED_KEYS)
COLORS = (
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE8866", "#44BB99", "#BBBBBB", "#77AADD",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    id: int
    project_id: int
    name: str
    position: int
    key: str | None
    color: str | None
    effective_id: int | None  # the end of the chain of merges; None: not merged
    retired_at: datetime | None

    @property
    def active(self) -> bool:
        """Neither merged nor retired."""
        return self.effective_id is None and self.retired_at is None

    @property
    def counts_as(self) -> int:
        """The class id that labels of this class count as: the end of its chain of merges, or its own."""
        return self.id if self.effective_id is None else self.effective_id


def rows_in(connection: Connection, project_id: int) -> list[ClassRow]:
    query = select(LabelClass.__table__).where(LabelClass.project_id == project_id)
    rows = connection.execute(query.order_by(LabelClass.position, LabelClass.id))
    return with_usable_keys([ClassRow(**row._asdict()) for row in rows])


def with_usable_keys(rows: list[ClassRow]) -> list[ClassRow]:
    """`rows`, in which each active class has a usable key that no other has, or none.

    Earlier versions stored keys that belong to an action, that are not lowercase, or that two active classes share.
    Such a class gets the next free key. Keys of inactive classes stay as stored; nothing is bound to them.
    """
    taken: set[str] = set()
    unusable: set[int] = set()
    for row in rows:
        if not row.active or row.key is None:
            continue
        if is_usable_key(row.key) and row.key not in taken:
            taken.add(row.key)
        else:
            unusable.add(row.id)
    if not unusable:
        return rows
    free = iter([key for key in KEYS if key not in taken])
    return [replace(row, key=next(free, None)) if row.id in unusable else row for row in rows]


def is_usable_key(key: str) -> bool:
    """Whether the widgets can bind a class to this key: one visible lowercase character that no action uses."""
    return len(key) == 1 and key.isprintable() and key == key.lower() and key not in RESERVED_KEYS


def one_in(connection: Connection, project_id: int, class_id: int) -> ClassRow:
    row = next((row for row in rows_in(connection, project_id) if row.id == class_id), None)
    if row is None:
        raise NotFound(f"There is no class {class_id} in this project.")
    return row


def counts_as(rows: Iterable[ClassRow]) -> dict[int, int]:
    """class id -> the class id that its labels count as."""
    return {row.id: row.counts_as for row in rows}


def effective_ids(connection: Connection, project_id: int) -> dict[int, int]:
    """`counts_as` of all classes of a project."""
    return counts_as(rows_in(connection, project_id))


def effective_names(rows: Iterable[ClassRow]) -> dict[int, str]:
    """class id -> the name of the class that its labels count as; `rows` are all classes of a project."""
    rows = list(rows)
    names = {row.id: row.name for row in rows}
    return {row.id: names[row.counts_as] for row in rows}


def members_of(class_id: int) -> Select[int]:
    """A query of the classes whose labels count as `class_id`, itself included."""
    return select(LabelClass.id).where(counting_class() == class_id)


def counting_class() -> ColumnElement[int]:
    """`ClassRow.counts_as` as an expression on `LabelClass`."""
    return func.coalesce(LabelClass.effective_id, LabelClass.id)


def add_in(connection: Connection, project_id: int, name: str, by: int | None = None) -> ClassRow:
    """Add an active class in a transaction that holds the project's lock (`projects.touch`)."""
    named(name, "The class name", 1_000)
    existing = rows_in(connection, project_id)
    refuse_taken(existing, name)
    position = max((row.position for row in existing), default=-1) + 1
    taken = {row.key for row in existing if row.active}
    values = {
        "project_id": project_id,
        "name": name,
        "position": position,
        "key": default_key(name, taken),
        "color": color_of(position),
    }
    added = connection.execute(insert(LabelClass).values(values).returning(*LabelClass.__table__.columns)).one()
    record_event(connection, project_id, added.id, "add", {"name": name, "position": position}, by)
    return ClassRow(**added._asdict())


def default_key(name: str, taken: Collection[str | None]) -> str | None:
    """The key of a new class: its name if that is one free key (class "3" gets 3), else the next free one."""
    own = name.strip().lower()
    free = [key for key in KEYS if key not in taken]
    return own if own in free else next(iter(free), None)


def color_of(position: int) -> str:
    """The color of the palette, then hues of equal lightness that differ from their neighbors."""
    if position < len(COLORS):
        return COLORS[position]
    red, green, blue = colorsys.hls_to_rgb((position * 0.618034) % 1.0, 0.55, 0.5)
    return f"#{round(red * 255):02X}{round(green * 255):02X}{round(blue * 255):02X}"


def newest_event(connection: Connection, project_id: int) -> int:
    return int(
        connection.execute(
            select(func.coalesce(func.max(ClassEvent.id), 0)).where(ClassEvent.project_id == project_id)
        ).scalar_one()
    )


def rows_as_of(connection: Connection, project_id: int, event_id: int) -> list[ClassRow]:
    """The classes after class event `event_id`, with the names, merges and retirements of that time."""
    rows = {row.id: row for row in rows_in(connection, project_id)}
    query = select(ClassEvent.__table__).where(ClassEvent.project_id == project_id, ClassEvent.id <= event_id)
    known: dict[int, ClassRow] = {}
    events = list(connection.execute(query.order_by(ClassEvent.id)))
    for event in events:
        if event.kind == "add":
            fresh = replace(rows[event.class_id], name=event.detail["name"], effective_id=None, retired_at=None)
            known[event.class_id] = fresh
        elif event.kind == "rename":
            known[event.class_id] = replace(known[event.class_id], name=event.detail["to"])
        elif event.kind in ("retire", "restore"):
            retired_at = event.at if event.kind == "retire" else None
            known[event.class_id] = replace(known[event.class_id], retired_at=retired_at)
    ends = merge_ends((event.class_id, event.kind, event.detail) for event in events)
    return [replace(row, effective_id=ends.get(row.id)) for row in sorted(known.values(), key=lambda r: r.position)]


def merge_ends(events: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """class id -> the class at the end of its chain of merges, from (class id, kind, detail) in order."""
    into: dict[int, int] = {}
    for class_id, kind, detail in events:
        if kind == "merge":
            into[class_id] = detail["into"]
        elif kind == "unmerge":
            into.pop(class_id, None)
    ends = {}
    for class_id in into:
        end = into[class_id]
        while end in into:
            end = into[end]
        ends[class_id] = end
    return ends


def record_event(
    connection: Connection, project_id: int, class_id: int, kind: str, detail: dict[str, Any], by: int | None
) -> None:
    """Append a class event in the transaction of the change that it describes."""
    connection.execute(
        insert(ClassEvent).values(
            uuid=str(uuid.uuid4()),
            project_id=project_id,
            class_id=class_id,
            kind=kind,
            detail=detail,
            annotator_id=by,
            at=now(),
        )
    )


def refuse_taken(rows: list[ClassRow], name: str) -> None:
    if any(row.active and composed(row.name) == composed(name) for row in rows):
        raise Conflict(f"There is already a class named {name!r}. Choose another name.")
