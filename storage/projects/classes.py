"""Classes that can be added, renamed, merged and retired after labels exist. Every change is an event.

A merged class keeps its row and its labels; it counts as another one (`effective_id`, the end of the chain of merges).
Undoing the merge is one more event, after which its labels count as themselves again. A retired class takes no new
labels; those it has stay in history and exports, and training leaves them out.
"""

from __future__ import annotations

import colorsys
import string
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from core.errors import Conflict, InvalidInput, NotFound
from storage.database.schema import ClassEvent, LabelClass
from storage.database.store import Store, now
from storage.database.strings import named, storable
from storage.labeling import projections

KEYS = tuple("1234567890") + tuple(letter for letter in string.ascii_lowercase if letter not in "cr")
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
    effective_id: int | None  # None: counts as itself
    retired_at: datetime | None

    @property
    def active(self) -> bool:
        return self.effective_id is None and self.retired_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassEventRow:
    id: int
    class_id: int
    kind: str
    detail: dict[str, Any]
    annotator_id: int | None
    at: datetime


def list_classes(store: Store, project_id: int, include_inactive: bool = False) -> list[ClassRow]:
    """In their order; merged and retired ones only when asked for."""
    with store.read() as connection:
        rows = rows_in(connection, project_id)
    return [row for row in rows if include_inactive or row.active]


def class_history(store: Store, project_id: int, class_id: int | None = None) -> list[ClassEventRow]:
    """What happened to the classes, oldest first."""
    columns = [getattr(ClassEvent, name) for name in ClassEventRow.__dataclass_fields__]
    query = select(*columns).where(ClassEvent.project_id == project_id).order_by(ClassEvent.id)
    if class_id is not None:
        query = query.where(ClassEvent.class_id == class_id)
    with store.read() as connection:
        return [ClassEventRow(**row._asdict()) for row in connection.execute(query)]


def add_class(store: Store, project_id: int, name: str, by: int | None = None) -> ClassRow:
    with store.write() as connection:
        _touch(connection, project_id)
        return add_in(connection, project_id, name, by)


def add_in(connection: Connection, project_id: int, name: str, by: int | None = None) -> ClassRow:
    """The same inside a transaction that already holds the project."""
    named(name, "The class name", 1_000)
    existing = rows_in(connection, project_id)
    _refuse_taken(existing, name)
    position = max((row.position for row in existing), default=-1) + 1
    taken = {row.key for row in existing if row.active}
    values = {
        "project_id": project_id,
        "name": name,
        "position": position,
        "key": default_key(name, taken),
        "color": color_of(position),
    }
    class_id = connection.execute(insert(LabelClass).values(values).returning(LabelClass.id)).scalar_one()
    _record(connection, project_id, class_id, "add", {"name": name, "position": position}, by)
    return one_in(connection, project_id, class_id)


def rename_class(store: Store, project_id: int, class_id: int, name: str, by: int | None = None) -> ClassRow:
    named(name, "The class name", 1_000)
    with store.write() as connection:
        _touch(connection, project_id)
        row = one_in(connection, project_id, class_id)
        if row.name == name:
            return row
        if row.active:
            _refuse_taken(rows_in(connection, project_id), name)
        _set(connection, class_id, name=name)
        _record(connection, project_id, class_id, "rename", {"from": row.name, "to": name}, by)
        return one_in(connection, project_id, class_id)


def merge_classes(store: Store, project_id: int, source_id: int, target_id: int, by: int | None = None) -> ClassRow:
    """From now on labels of the source count as the target's, old and new ones."""
    with store.write() as connection:
        _touch(connection, project_id)
        source, target = (one_in(connection, project_id, one) for one in (source_id, target_id))
        if source_id == target_id:
            raise InvalidInput(f"The class {source.name!r} cannot be merged with itself. Choose another one.")
        for row in (source, target):
            if not row.active:
                raise Conflict(f"The class {row.name!r} is already {_inactive(row)}; merge active classes only.")
        _record(connection, project_id, source_id, "merge", {"into": target_id}, by)
        _apply_merges(connection, project_id)
        return one_in(connection, project_id, source_id)


def unmerge_class(store: Store, project_id: int, source_id: int, by: int | None = None) -> ClassRow:
    """Take a merge back: the source's labels count as its own again."""
    with store.write() as connection:
        _touch(connection, project_id)
        source = one_in(connection, project_id, source_id)
        if source.effective_id is None:
            raise Conflict(f"The class {source.name!r} is not merged into another one.")
        _refuse_taken(rows_in(connection, project_id), source.name)
        _record(connection, project_id, source_id, "unmerge", {}, by)
        _apply_merges(connection, project_id)
        return one_in(connection, project_id, source_id)


def retire_class(store: Store, project_id: int, class_id: int, by: int | None = None) -> ClassRow:
    with store.write() as connection:
        _touch(connection, project_id)
        row = one_in(connection, project_id, class_id)
        if not row.active:
            raise Conflict(f"The class {row.name!r} is already {_inactive(row)}.")
        _set(connection, class_id, retired_at=now())
        _record(connection, project_id, class_id, "retire", {}, by)
        return one_in(connection, project_id, class_id)


def restore_class(store: Store, project_id: int, class_id: int, by: int | None = None) -> ClassRow:
    with store.write() as connection:
        _touch(connection, project_id)
        row = one_in(connection, project_id, class_id)
        if row.retired_at is None:
            raise Conflict(f"The class {row.name!r} is not retired.")
        _refuse_taken(rows_in(connection, project_id), row.name)
        _set(connection, class_id, retired_at=None)
        _record(connection, project_id, class_id, "restore", {}, by)
        return one_in(connection, project_id, class_id)


def style_class(
    store: Store, project_id: int, class_id: int, *, key: str | None = None, color: str | None = None
) -> ClassRow:
    """Another key ("" for none) or color; a key that another active class has is refused."""
    with store.write() as connection:
        _touch(connection, project_id)
        row = one_in(connection, project_id, class_id)
        values: dict[str, Any] = {}
        if key is not None:
            values["key"] = _checked_key(rows_in(connection, project_id), class_id, key)
        if color is not None:
            values["color"] = _checked_color(color)
        if values:
            _set(connection, class_id, **values)
            _record(connection, project_id, class_id, "style", values, None)
        return replace(row, **values)


def default_key(name: str, taken: Collection[str | None]) -> str | None:
    """A name of one character is its own key where that is free (the class "3" has the key 3), else the next free."""
    own = name.strip().lower()
    free = [key for key in KEYS if key not in taken]
    return own if own in free else next(iter(free), None)


def color_of(position: int) -> str:
    """The palette's color, then hues at equal lightness, each far from its neighbors."""
    if position < len(COLORS):
        return COLORS[position]
    red, green, blue = colorsys.hls_to_rgb((position * 0.618034) % 1.0, 0.55, 0.5)
    return f"#{round(red * 255):02X}{round(green * 255):02X}{round(blue * 255):02X}"


def rows_in(connection: Connection, project_id: int) -> list[ClassRow]:
    query = select(LabelClass.__table__).where(LabelClass.project_id == project_id)
    rows = connection.execute(query.order_by(LabelClass.position, LabelClass.id))
    return [ClassRow(**row._asdict()) for row in rows]


def one_in(connection: Connection, project_id: int, class_id: int) -> ClassRow:
    query = select(LabelClass.__table__).where(LabelClass.id == class_id, LabelClass.project_id == project_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"There is no class {class_id} in this project.")
    return ClassRow(**row._asdict())


def newest_event(connection: Connection, project_id: int) -> int:
    return int(
        connection.execute(
            select(func.coalesce(func.max(ClassEvent.id), 0)).where(ClassEvent.project_id == project_id)
        ).scalar_one()
    )


def rows_as_of(connection: Connection, project_id: int, event_id: int) -> list[ClassRow]:
    """The classes as they were after class event `event_id`: names, merges, retirements."""
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
    ends = _ends((event.class_id, event.kind, event.detail) for event in events)
    return [replace(row, effective_id=ends.get(row.id)) for row in sorted(known.values(), key=lambda r: r.position)]


def _apply_merges(connection: Connection, project_id: int) -> None:
    """`effective_id` of every class, derived from the merge events; then the labels that count."""
    query = select(ClassEvent.class_id, ClassEvent.kind, ClassEvent.detail).where(ClassEvent.project_id == project_id)
    ends = _ends(tuple(row) for row in connection.execute(query.order_by(ClassEvent.id)))
    for row in rows_in(connection, project_id):
        if row.effective_id != ends.get(row.id):
            _set(connection, row.id, effective_id=ends.get(row.id))
    projections.refresh_contested(connection, project_id)


def _ends(events: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    """The class at the end of each chain of merges that stands."""
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


def _record(
    connection: Connection, project_id: int, class_id: int, kind: str, detail: dict[str, Any], by: int | None
) -> None:
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


def _set(connection: Connection, class_id: int, **values: Any) -> None:
    connection.execute(update(LabelClass).where(LabelClass.id == class_id).values(**values))


def _refuse_taken(rows: list[ClassRow], name: str) -> None:
    if any(row.active and row.name == name for row in rows):
        raise Conflict(f"There is already a class named {name!r}. Choose another name.")


def _inactive(row: ClassRow) -> str:
    return "retired" if row.retired_at is not None else "merged into another one"


def _checked_key(rows: list[ClassRow], class_id: int, key: str) -> str | None:
    if key == "":
        return None
    storable(key, "The key", 8)
    holder = next((row for row in rows if row.active and row.key == key and row.id != class_id), None)
    if holder is not None:
        raise Conflict(f"The key {key!r} belongs to {holder.name!r}. Choose another one, or free it first.")
    return key


def _checked_color(color: str) -> str:
    digits = color.removeprefix("#")
    if len(color) != 7 or len(digits) != 6 or any(one not in string.hexdigits for one in digits):
        raise InvalidInput(f"{color!r} is not a color. Write it as #RRGGBB.")
    return color.upper()


def _touch(connection: Connection, project_id: int) -> None:
    from storage.projects.projects import touch

    touch(connection, project_id)
