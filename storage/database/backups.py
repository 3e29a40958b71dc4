"""Copies of the database while it is in use, kept in WINNOW_HOME/backups, and the way back.

A backup is a SQLite file with every fact (labels, classes, rounds), also when the store is PostgreSQL. Media and arrays
are not in it: what is in those files never changes once written (packs of media only grow); copy the folders beside
the database with any file tool, in any order, after the backup.

Automatic backups (before a migration, before a restore, daily) roll: of each kind the newest `kept` stay (the setting
`backups.kept`, 10 unless set). Backups someone asked for stay until someone removes them.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.engine import make_url

from core.errors import InvalidInput, StoreUnusable
from storage.database import checks as store_checks
from storage.database import migrate
from storage.database import move as store_move
from storage.database.backup_files import KEPT, backup_path, check, copy_sqlite, listed, prune, taken_at
from storage.database.file_lock import file_lock, forget
from storage.database.schema import Setting
from storage.database.store import Store, insert_for, make_engine
from storage.system.atomic_files import replace_durably

SETTING = "backups"


def backup(store: Store, reason: str = "manual", target: Path | None = None) -> Path:
    """A checked copy of everything committed until now; returns its path."""
    path = target if target is not None else backup_path(store.home, reason)
    if path.exists():
        raise InvalidInput(f"{path} exists already; choose another name.")
    partial = path.with_name(f".{path.name}.part")
    partial.unlink(missing_ok=True)
    try:
        if store.is_sqlite:
            copy_sqlite(Path(make_url(store.url).database or ""), partial)
        else:
            _copy_server(store, partial)
        check(partial)
        replace_durably(partial, path)
    finally:
        for leftover in (partial, *(partial.with_name(partial.name + end) for end in ("-wal", "-shm"))):
            leftover.unlink(missing_ok=True)
        for end in (".lock", ".opening"):
            forget(partial.with_name(partial.name + end))
    prune(store.home, kept(store))
    return path


def daily(store: Store) -> Path | None:
    """One automatic backup a day; None when today's is there. The app calls it when it starts and once an hour."""
    newest = max(listed(store.home, "daily"), default=None)
    if newest is not None and datetime.now(UTC) - taken_at(newest) < timedelta(days=1):
        return None
    return backup(store, "daily")


def restore(store: Store, source: Path) -> Path:
    """Make the store what the backup holds; returns the backup of what it was until now."""
    if not source.is_file():
        raise InvalidInput(f"There is no backup {source}. `python -m app backup --list` shows those there are.")
    check(source)
    _refuse_newer(source)
    before = backup(store, "before-restore")
    if store.is_sqlite:
        _restore_file(store, source)
    else:
        _restore_server(store, source)
    return before


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


def _refuse_newer(source: Path) -> None:
    engine = make_engine(f"sqlite:///{source}", read_only=True)
    try:
        state = migrate.state(engine)
    finally:
        engine.dispose()
    if state == "newer":
        raise StoreUnusable(f"The backup {source} was written by a newer version of Winnow. Install that version.")
    if state in ("broken", "empty"):
        raise StoreUnusable(f"{source} is not a backup of a Winnow store.")


def _restore_file(store: Store, source: Path) -> None:
    """Page by page into the live file, in one SQLite transaction; then this version's tables."""
    path = store_checks.sqlite_path(store.url)
    with file_lock(store_checks.lock_path(store.url), "The store's write lock"):
        closing = contextlib.closing
        with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(path, timeout=60)) as live:
            original.backup(live, pages=-1)
    store.close()
    store_checks.prepare(store.url, store.home, store.engine, may_migrate=True)


def _restore_server(store: Store, source: Path) -> None:
    """A copy of the backup is migrated, then the server's tables are made equal to it."""
    with tempfile.TemporaryDirectory(dir=store.home) as folder:
        shutil.copyfile(source, Path(folder) / "winnow.sqlite")
        with Store.open(home=Path(folder)) as old, old.read() as connection:
            store_move.copy_rows(connection, store)
