"""Backup files in WINNOW_HOME/backups: their names, how they are made and checked, and which are kept.

This module works on files and database addresses, so the checks that run before a store is open can use it. Backups of
an open store and restoring are in `storage.database.backups`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.engine import make_url

from core.errors import StoreUnusable
from storage.system.atomic_files import replace_durably

KEPT = 10
AUTOMATIC = ("before-migration", "before-restore", "daily")
log = logging.getLogger("winnow.store")


def listed(home: Path, reason: str | None = None) -> list[Path]:
    """Backups, oldest first."""
    return sorted((home / "backups").glob(f"winnow-*-{reason or '*'}.sqlite"))


def taken_at(path: Path) -> datetime:
    return datetime.strptime(path.name.split("-")[1], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)


def prune(home: Path, keep: int = KEPT) -> None:
    """Remove automatic backups beyond the newest `keep` of each kind."""
    for reason in AUTOMATIC:
        for path in listed(home, reason)[:-keep]:
            path.unlink(missing_ok=True)


def before_migration(path: Path, home: Path) -> Path:
    """A checked copy of an older SQLite store, made before it is migrated; returns its path."""
    target = backup_path(home, "before-migration")
    partial = target.with_name(f".{target.name}.part")
    copy_sqlite(path, partial)
    check(partial)
    replace_durably(partial, target)
    prune(home)
    return target


def before_server_migration(url: str, home: Path) -> Path | None:
    """An archive of an older PostgreSQL store, made by pg_dump; None when pg_dump is not installed.

    The migration is one transaction, so even without an archive the store is either old or new.
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
    if done.returncode:
        target.unlink(missing_ok=True)
        raise StoreUnusable(f"pg_dump could not back the store up before its migration: {done.stderr.strip()}")
    return target


def backup_path(home: Path, reason: str) -> Path:
    folder = home / "backups"
    folder.mkdir(exist_ok=True)
    return folder / f"winnow-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%fZ')}-{reason}.sqlite"


def copy_sqlite(source: Path, target: Path) -> None:
    """A consistent copy through SQLite's backup API, while others read and write."""
    closing = contextlib.closing
    with closing(sqlite3.connect(source, timeout=60)) as original, closing(sqlite3.connect(target, timeout=60)) as copy:
        original.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")


def check(path: Path) -> None:
    """Refuse a file that is not a whole SQLite database."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise StoreUnusable(f"The backup {path} is damaged ({found}). Choose another one.")
