"""Copies of the database while it is in use, kept in WINNOW_HOME/backups.

A backup holds every fact (labels, classes, rounds) but not media and arrays: those are files that are never changed
after they were written, named by their hash, so the folders beside the database are copied with any file tool.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

KEPT = 10


def before_migration(path: Path, home: Path) -> Path:
    return copy_sqlite(path, backup_path(home, "before-migration"))


def before_server_migration(url: str, home: Path) -> None:
    return None


def backup_path(home: Path, reason: str) -> Path:
    folder = home / "backups"
    folder.mkdir(exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    return folder / f"winnow-{stamp}-{reason}.sqlite"


def copy_sqlite(source: Path, target: Path) -> Path:
    """A consistent copy through SQLite's backup API; under its final name only when complete and on disk."""
    partial = target.with_name(f".{target.name}.part")
    closing = contextlib.closing
    with closing(sqlite3.connect(source, timeout=60)) as original, closing(sqlite3.connect(partial)) as copy:
        original.backup(copy, pages=4096)
        copy.execute("PRAGMA journal_mode=DELETE")
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)
    return target
