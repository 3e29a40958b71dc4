"""Hints that a person has seen, such as the tour: each is shown once, on any machine."""

from __future__ import annotations

from sqlalchemy import select

from storage.database.schema import Setting
from storage.database.store import Store, insert_for

PREFIX = "seen"


def has_seen(store: Store, annotator_id: int, hint: str) -> bool:
    with store.read() as connection:
        found = connection.execute(select(Setting.key).where(Setting.key == _key(annotator_id, hint)))
        return found.one_or_none() is not None


def mark_seen(store: Store, annotator_id: int, hint: str) -> None:
    with store.write() as connection:
        row = insert_for(connection, Setting).values(key=_key(annotator_id, hint), value={})
        connection.execute(row.on_conflict_do_nothing(index_elements=["key"]))


def _key(annotator_id: int, hint: str) -> str:
    return f"{PREFIX}/{annotator_id}/{hint}"
