"""Backups of an open store, kept in WINNOW_HOME/backups (`storage.database.restore` reads them back).

A backup is a SQLite file with every fact (labels, classes, rounds), even when the store is PostgreSQL. It does not
contain media and arrays. Their content never changes once written (packs of media only grow), so the folders beside
the database can be copied with any file tool, in any order, after the backup.

Automatic backups (before a migration, before a restore, daily) are rotated: the newest `kept` of each kind are kept
(the setting `backups.kept`, 10 by default). Backups made on request stay until they are removed by hand.
"""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.engine import make_url

from core.errors import InvalidInput
from storage.database import move as store_move
from storage.database.backup_files import (
    KEPT,
    PERIOD,
    backup_path,
    copy_sqlite,
    listed,
    prune,
    taken_at,
    write_backup,
)
from storage.database.schema import Setting
from storage.database.store import Store, insert_for

SETTING = "backups"


def backup(store: Store, reason: str = "manual", target: Path | None = None) -> Path:
    """Write a checked copy of everything committed so far and return its path; StoreUnusable says why it failed."""
    path = target if target is not None else backup_path(store.home, reason)
    if store.is_sqlite:
        write_backup(path, lambda partial: copy_sqlite(Path(make_url(store.url).database or ""), partial))
    else:
        write_backup(path, lambda partial: _copy_server(store, partial))
    prune(store.home, kept(store))
    return path


def daily(store: Store) -> Path | None:
    """Make an automatic backup unless there is one from the last day (then None). The app calls this at its start and
    once an hour."""
    if any(abs(datetime.now(UTC) - taken_at(path)) < PERIOD for path in listed(store.home, "daily")):
        return None
    return backup(store, "daily")


def kept(store: Store) -> int:
    """The setting `backups.kept`."""
    with store.read() as connection:
        value = connection.execute(select(Setting.value).where(Setting.key == SETTING)).scalar() or {}
    return max(1, int(value.get("kept", KEPT)))


def set_kept(store: Store, number: int) -> None:
    if not 1 <= number <= 10_000:
        raise InvalidInput(f"{number} backups cannot be kept; use 1 to 10,000.")
    with store.write() as connection:
        statement = insert_for(connection, Setting).values(key=SETTING, value={"kept": number})
        connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": {"kept": number}}))


def _copy_server(store: Store, partial: Path) -> None:
    with store.read() as connection, Store.open(f"sqlite:///{partial}", store.home) as copy:
        store_move.copy_rows(connection, copy)
    with contextlib.closing(sqlite3.connect(partial)) as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
