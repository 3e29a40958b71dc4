"""Classes can be added, renamed, merged and retired after labels exist. Every change is an event.

A merged class keeps its row and its labels, which count as another class (`effective_id`, the end of the chain of
merges). An unmerge is one more event, after which they count as their own class again. A retired class takes no new
labels; its existing labels stay in history and exports and are not used for training.
"""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select, update

from core.errors import Conflict, InvalidInput
from storage.database.schema import ClassEvent, LabelClass
from storage.database.store import Store, now
from storage.database.strings import named, storable
from storage.labeling import projections
from storage.projects import roles
from storage.projects.class_rows import (
    KEYS,
    RESERVED_KEYS,
    ClassRow,
    add_in,
    is_usable_key,
    merge_ends,
    one_in,
    record_event,
    refuse_taken,
    rows_in,
)
from storage.projects.projects import touch


def list_classes(store: Store, project_id: int, include_inactive: bool = False) -> list[ClassRow]:
    """The classes of a project in their order; merged and retired ones only with `include_inactive`."""
    with store.read() as connection:
        roles.check_in(connection, project_id, "read")
        rows = rows_in(connection, project_id)
    return [row for row in rows if include_inactive or row.active]


def add_class(store: Store, project_id: int, name: str, by: int | None = None) -> ClassRow:
    with store.write() as connection:
        touch(connection, project_id)
        _keep_keys(connection, project_id)
        return add_in(connection, project_id, name, by)


def rename_class(store: Store, project_id: int, class_id: int, name: str, by: int | None = None) -> ClassRow:
    """Give an active class another name; its labels follow. A taken name is refused."""
    named(name, "The class name", 1_000)
    with store.write() as connection:
        touch(connection, project_id)
        row = one_in(connection, project_id, class_id)
        if row.name == name:
            return row
        if row.active:
            refuse_taken([other for other in rows_in(connection, project_id) if other.id != class_id], name)
        _set(connection, class_id, name=name)
        record_event(connection, project_id, class_id, "rename", {"from": row.name, "to": name}, by)
        return one_in(connection, project_id, class_id)


def merge_classes(store: Store, project_id: int, source_id: int, target_id: int, by: int | None = None) -> ClassRow:
    """Let all labels of the source, old and new, count as labels of the target."""
    with store.write() as connection:
        touch(connection, project_id)
        _keep_keys(connection, project_id)
        source, target = (one_in(connection, project_id, one) for one in (source_id, target_id))
        if source_id == target_id:
            raise InvalidInput(f"The class {source.name!r} cannot be merged with itself. Choose another one.")
        for row in (source, target):
            if not row.active:
                raise Conflict(f"The class {row.name!r} is already {_inactive(row)}; merge active classes only.")
        record_event(connection, project_id, source_id, "merge", {"into": target_id}, by)
        _apply_merges(connection, project_id)
        return one_in(connection, project_id, source_id)


def unmerge_class(store: Store, project_id: int, source_id: int, by: int | None = None) -> ClassRow:
    """Undo a merge: labels of the source count as their own class again."""
    with store.write() as connection:
        touch(connection, project_id)
        _keep_keys(connection, project_id)
        source = one_in(connection, project_id, source_id)
        if source.effective_id is None:
            raise Conflict(f"The class {source.name!r} is not merged into another one.")
        refuse_taken(rows_in(connection, project_id), source.name)
        record_event(connection, project_id, source_id, "unmerge", {}, by)
        _apply_merges(connection, project_id)
        return one_in(connection, project_id, source_id)


def retire_class(store: Store, project_id: int, class_id: int, by: int | None = None) -> ClassRow:
    """Accept no new labels of the class; its existing labels stay."""
    with store.write() as connection:
        touch(connection, project_id)
        _keep_keys(connection, project_id)
        row = one_in(connection, project_id, class_id)
        if not row.active:
            raise Conflict(f"The class {row.name!r} is already {_inactive(row)}.")
        _set(connection, class_id, retired_at=now())
        record_event(connection, project_id, class_id, "retire", {}, by)
        return one_in(connection, project_id, class_id)


def restore_class(store: Store, project_id: int, class_id: int, by: int | None = None) -> ClassRow:
    """Undo `retire_class`."""
    with store.write() as connection:
        touch(connection, project_id)
        _keep_keys(connection, project_id)
        row = one_in(connection, project_id, class_id)
        if row.retired_at is None:
            raise Conflict(f"The class {row.name!r} is not retired.")
        refuse_taken(rows_in(connection, project_id), row.name)
        _set(connection, class_id, retired_at=None)
        record_event(connection, project_id, class_id, "restore", {}, by)
        return one_in(connection, project_id, class_id)


def style_class(
    store: Store, project_id: int, class_id: int, *, key: str | None = None, color: str | None = None
) -> ClassRow:
    """Set another key ("" for none) or color; a key of another active class is refused."""
    with store.write() as connection:
        touch(connection, project_id)
        _keep_keys(connection, project_id)
        row = one_in(connection, project_id, class_id)
        values: dict[str, Any] = {}
        if key is not None:
            values["key"] = _checked_key(rows_in(connection, project_id), class_id, key)
        if color is not None:
            values["color"] = _checked_color(color)
        if values:
            _set(connection, class_id, **values)
            record_event(connection, project_id, class_id, "style", values, None)
        return replace(row, **values)


def _apply_merges(connection: Connection, project_id: int) -> None:
    """Derive `effective_id` of every class from the merge events, then the labels that count."""
    query = select(ClassEvent.class_id, ClassEvent.kind, ClassEvent.detail).where(ClassEvent.project_id == project_id)
    ends = merge_ends(tuple(row) for row in connection.execute(query.order_by(ClassEvent.id)))
    for row in rows_in(connection, project_id):
        if row.effective_id != ends.get(row.id):
            _set(connection, row.id, effective_id=ends.get(row.id))
    projections.refresh_contested(connection, project_id)


def _set(connection: Connection, class_id: int, **values: Any) -> None:
    connection.execute(update(LabelClass).where(LabelClass.id == class_id).values(**values))


def _inactive(row: ClassRow) -> str:
    return "retired" if row.retired_at is not None else "merged into another one"


def _checked_key(rows: list[ClassRow], class_id: int, key: str) -> str | None:
    key = key.lower()
    if key == "":
        return None
    storable(key, "The key", 8)
    if key in RESERVED_KEYS:
        raise Conflict(f"The key {key!r} is used by an action or by the page. Choose another one: {' '.join(KEYS)}.")
    if not is_usable_key(key):
        raise InvalidInput(f"{key!r} cannot be a key. Use one letter, digit or sign.")
    holder = next((row for row in rows if row.active and row.key == key and row.id != class_id), None)
    if holder is not None:
        raise Conflict(f"The key {key!r} belongs to {holder.name!r}. Choose another one, or free it first.")
    return key


def _keep_keys(connection: Connection, project_id: int) -> None:
    """Store the keys as they are shown, before a change frees a key that a class without a usable one would get."""
    query = select(LabelClass.id, LabelClass.key).where(LabelClass.project_id == project_id)
    stored = {row.id: row.key for row in connection.execute(query)}
    for row in rows_in(connection, project_id):
        if row.key != stored[row.id]:
            _set(connection, row.id, key=row.key)


def _checked_color(color: str) -> str:
    digits = color.removeprefix("#")
    if len(color) != 7 or len(digits) != 6 or any(one not in string.hexdigits for one in digits):
        raise InvalidInput(f"{color!r} is not a color. Write it as #RRGGBB.")
    return color.upper()
