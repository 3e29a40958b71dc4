"""Backup files in WINNOW_HOME/backups: their names, how they are made and checked, and which are kept.

This module works on files and database addresses, so the checks that run before a store is open can use it. Backups of
an open store are made by `storage.database.backups` and read back by `storage.database.restore`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from core.atomic_files import replace_durably
from core.errors import InvalidInput, StoreUnusable
from storage.system.file_lock import forget

KEPT = 10
PERIOD = timedelta(days=1)  # between automatic backups
AUTOMATIC = ("before-migration", "before-restore", "daily")
log = logging.getLogger("winnow.store")


def listed(home: Path, reason: str | None = None) -> list[Path]:
    """Backups, oldest first. Those dated more than a day in the future (a wrong clock) come before all others."""
    latest = datetime.now(UTC) + PERIOD
    found = sorted((home / "backups").glob(f"winnow-*-{reason or '*'}.sqlite"))
    return sorted(found, key=lambda path: taken_at(path) <= latest)


def taken_at(path: Path) -> datetime:
    """The time in the file name; for a renamed file, its modification time."""
    try:
        return datetime.strptime(path.name.split("-")[1], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def prune(home: Path, keep: int = KEPT) -> None:
    """Remove automatic backups beyond the newest `keep` of each kind."""
    for reason in AUTOMATIC:
        for path in listed(home, reason)[:-keep]:
            path.unlink(missing_ok=True)


def write_backup(path: Path, copy: Callable[[Path], None]) -> None:
    """Write a backup with `copy`, check it and rename it to `path`, which appears only once it is complete on disk."""
    if path.exists():
        raise InvalidInput(f"{path} exists already; choose another name.")
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        copy(partial)
        check(partial)
        replace_durably(partial, path)
    except (OSError, sqlite3.Error, DBAPIError) as problem:
        raise StoreUnusable(f"The backup {path} was not made: {_cause(problem)}") from problem
    finally:
        with contextlib.suppress(OSError):
            for leftover in (partial, *(partial.with_name(partial.name + end) for end in ("-wal", "-shm"))):
                leftover.unlink(missing_ok=True)
            for end in (".lock", ".opening"):
                forget(partial.with_name(partial.name + end))


def _cause(problem: Exception) -> str:
    """Why a backup failed, and what to do."""
    known = problem.orig if isinstance(problem, DBAPIError) else problem
    text = " ".join(str(known).split())
    full = isinstance(known, OSError) and known.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "disk is full" in text or "disk I/O error" in text:
        return f"the disk is full or cannot be written ({text}). Free some space and try again."
    if isinstance(known, PermissionError):
        return f"{known.filename} cannot be written. Make the folder writable for this user."
    if isinstance(known, FileNotFoundError):
        return f"the folder {Path(str(known.filename)).parent} does not exist. Create it or choose another place."
    if isinstance(known, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text):
        return f"the store is damaged ({text}). Restore the newest backup with `python -m app restore`."
    return f"{text}."


def before_migration(path: Path, home: Path) -> Path:
    """A checked copy of an older SQLite store, made before it is migrated; returns its path."""
    target = backup_path(home, "before-migration")
    write_backup(target, lambda partial: copy_sqlite(path, partial))
    prune(home)
    return target


def before_server_migration(url: str, home: Path) -> Path | None:
    """An archive of an older PostgreSQL store, made by pg_dump; None when pg_dump is not installed.

    The migration is one transaction, so even without an archive the store is either unchanged or fully migrated.
    """
    program = shutil.which("pg_dump")
    if program is None:
        log.warning("pg_dump is not installed, so no backup was made before the migration.")
        return None
    parts = make_url(url)
    target = backup_path(home, "before-migration").with_suffix(".pgdump")
    environment = os.environ | ({"PGPASSWORD": str(parts.password)} if parts.password else {})
    address = parts.set(drivername="postgresql", password=None).render_as_string()
    done = subprocess.run(
        [program, "--format=custom", f"--file={target}", f"--dbname={address}"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    with contextlib.suppress(FileNotFoundError):
        target.chmod(0o600)
    if done.returncode:
        target.unlink(missing_ok=True)
        raise StoreUnusable(f"pg_dump could not back up the store before its migration: {done.stderr.strip()}")
    return target


def backup_path(home: Path, reason: str) -> Path:
    folder = home / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"winnow-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}-{reason}.sqlite"


def copy_sqlite(source: Path, target: Path) -> None:
    """Make a consistent copy through SQLite's backup API while other connections read and write."""
    closing = contextlib.closing
    with closing(sqlite3.connect(source, timeout=60)) as original, closing(sqlite3.connect(target, timeout=60)) as copy:
        original.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")


def check(path: Path) -> None:
    """Refuse a file that is not an intact SQLite database."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise StoreUnusable(f"The backup {path} is damaged ({found}). Choose another one.")
