"""The background check of a large SQLite store, and why the last automatic backup failed, for the screens.

Opening a store checks files up to `checks.CHECK_LIMIT_BYTES`. A larger one is checked here by a thread, on a connection
of its own, while the app is already in use.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

from core.atomic_files import write_file
from core.errors import StoreUnusable
from storage.database import checks
from storage.database.store import Store, now

PROBLEM_FILE = "backup-problem.json"


class BackgroundCheck:
    """A check that runs in a thread: call `start` once; `sentence` describes its state for display."""

    def __init__(self, store: Store) -> None:
        self._path = checks.sqlite_path(store.url) if store.is_sqlite else None
        self._thread: threading.Thread | None = None
        self.problem = ""

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, limit: int = checks.CHECK_LIMIT_BYTES) -> None:
        """Check the file in a thread if it is larger than `limit`; smaller ones were checked when they were opened."""
        if self._path is not None and self._path.stat().st_size > limit:
            self._thread = threading.Thread(target=self._check, name="store-check", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _check(self) -> None:
        assert self._path is not None
        try:
            checks.check_health(self._path, limit=self._path.stat().st_size)
        except StoreUnusable as problem:
            self.problem = str(problem)
        except OSError as problem:
            self.problem = f"The database {self._path} could not be checked: {problem.strerror}."


def note_backup(home: Path, problem: str) -> None:
    """Store why the last automatic backup failed; an empty text means that it succeeded."""
    path = home / "backups" / PROBLEM_FILE
    with contextlib.suppress(OSError):  # a full disk: the log has the sentence too
        if not problem:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(path, json.dumps({"problem": problem, "at": now().isoformat()}))


def backup_problem(home: Path) -> str:
    """Why the last automatic backup failed; empty if it succeeded."""
    try:
        return str(json.loads((home / "backups" / PROBLEM_FILE).read_text())["problem"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
