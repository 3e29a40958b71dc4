"""Restore the store from a backup. This also works on a damaged store, and loses no label given in the meantime.

The backup is first copied; the copy is checked and migrated to this version. After that, no other process can write
until the restore is complete: SQLite's lock files, or EXCLUSIVE locks on all tables of PostgreSQL, are held from the
safety backup to the swap. A label is therefore either in the safety backup or in the restored store. Writers wait; one
that waits too long gets `StoreUnusable`, the page answers with status 503, and the browser sends its labels again.

SQLite      a healthy store is overwritten page by page in one transaction, so open connections continue on it. A
            damaged one is renamed (`winnow.sqlite.damaged-…`) with its journal, and the backup takes its place; running
            processes notice the new file (`Store`).
PostgreSQL  all tables are made equal to the backup in one transaction.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, delete, text
from sqlalchemy.exc import OperationalError

from core.atomic_files import replace_durably
from core.errors import InvalidInput, StoreUnusable
from storage.database import backup_files, backups, checks, migrate, move
from storage.database.schema import METADATA, Project
from storage.database.store import DEADLOCKS, LOCK_TIMEOUT, Store, make_engine
from storage.system.file_lock import file_lock

LOCK_SECONDS = 60.0


def restore(store: Store, source: Path) -> Path | None:
    """Replace the store's content with that of the backup; returns the file with its previous state (None: no store).

    `store` need not be open (`Store.unopened`): a damaged one cannot be opened.
    """
    if not source.is_file():
        raise InvalidInput(f"There is no backup {source}. `python -m app backup --list` shows the existing ones.")
    backup_files.check(source)
    refuse_foreign(source)
    checks.make_home(store.home)
    with tempfile.TemporaryDirectory(dir=store.home, prefix=".restore-") as folder:
        copy = Path(folder) / "winnow.sqlite"
        shutil.copyfile(source, copy)
        with Store.open(home=Path(folder)):
            pass  # opening migrates an older backup to this version
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
        return _restore_file(store, copy) if store.is_sqlite else _restore_server(store, copy)


def refuse_foreign(source: Path) -> None:
    """Refuse a file that is no backup of a Winnow store, or one of a newer version."""
    engine = make_engine(f"sqlite:///{source}", read_only=True)
    try:
        state = migrate.state(engine)
    finally:
        engine.dispose()
    if state == "newer":
        raise StoreUnusable(f"The backup {source} was written by a newer version of Winnow. Install that version.")
    if state in ("broken", "empty"):
        raise StoreUnusable(f"{source} is not a backup of a Winnow store.")


def _restore_file(store: Store, copy: Path) -> Path | None:
    path = checks.sqlite_path(store.url)
    with (
        file_lock(Path(f"{path}.opening"), "The store's start-up lock", 300.0),
        file_lock(checks.lock_path(store.url), "The store's write lock", LOCK_SECONDS),
    ):
        before = _safety_copy(path, store.home)
        if before is None:
            before = _set_aside(path) if path.exists() else None
            _put_in_place(copy, path)
        else:
            _overwrite(path, copy)
    store.close()
    backup_files.prune(store.home, backups.kept(store))
    return before


def _safety_copy(path: Path, home: Path) -> Path | None:
    """A checked backup of the live file; None when it is damaged or missing. The caller holds its locks."""
    if not path.exists():
        return None
    target = backup_files.backup_path(home, "before-restore")
    try:
        checks.check_health(path, limit=path.stat().st_size)
        backup_files.write_backup(target, lambda partial: backup_files.copy_sqlite(path, partial))
    except StoreUnusable as problem:
        if isinstance(problem.__cause__, OSError) or "disk is full" in str(problem):
            raise
        return None
    return target


def _overwrite(path: Path, copy: Path) -> None:
    closing = contextlib.closing
    with closing(sqlite3.connect(copy)) as original, closing(sqlite3.connect(path, timeout=60)) as live:
        original.backup(live, pages=-1)


def _set_aside(path: Path) -> Path:
    """Rename the damaged file and its journal; returns the new name."""
    name = f"{path.name}.damaged-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}"
    for end in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", path.with_name(f"{name}{end}"))
    return path.with_name(name)


def _put_in_place(copy: Path, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    staged = path.with_name(f".{path.name}.restored")  # the temporary folder may be on another file system
    shutil.copyfile(copy, staged)
    os.chmod(staged, 0o600)
    replace_durably(staged, path)


def _restore_server(store: Store, copy: Path) -> Path:
    checks.require_usable_server(store.url, store.home, store.engine)
    with (
        Store.open(home=copy.parent) as old,
        old.read() as rows,
        contextlib.closing(store.engine.connect()) as connection,
        locked_tables(connection),
    ):
        before = backups.backup(store, "before-restore")
        for table in reversed(METADATA.sorted_tables):
            if table.name in move.NOT_COPIED:
                connection.execute(delete(table))
        move.copy_rows(rows, _OneTransaction(connection))
    return before


@contextlib.contextmanager
def locked_tables(connection: Connection) -> Iterator[None]:
    """One transaction in which no other connection can write to any table; reads continue. It is committed at the end.

    The table of projects comes first: nearly every write begins with a lock there, so writers finish and no new ones
    start. An attempt ends before the server looks for a deadlock (after 1 s), so that no attempt causes one.
    """
    others = [table.name for table in METADATA.sorted_tables if table.name != Project.__tablename__]
    names = ", ".join(f'"{name}"' for name in (Project.__tablename__, *others))
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        transaction = connection.begin()
        try:
            connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
            connection.execute(text(f"LOCK TABLE {names} IN EXCLUSIVE MODE"))
            break
        except OperationalError as error:
            transaction.rollback()
            if getattr(error.orig, "sqlstate", None) not in (LOCK_TIMEOUT, *DEADLOCKS):
                raise
            if time.monotonic() > deadline:
                raise StoreUnusable(
                    f"Other processes wrote to the store for {LOCK_SECONDS:.0f} s without a pause. "
                    "Nothing was restored. End the import or the workers that write to it, then try again."
                ) from error
            time.sleep(random.uniform(0.005, 0.05))
    with transaction:
        yield


class _OneTransaction:
    """A target of `move.copy_rows` whose reads and writes all belong to the caller's transaction."""

    is_sqlite = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        yield self._connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        yield self._connection
