"""Watches: the folder that is imported into a project, and the outcome for each of its files.

A watch is a row, so it outlives every process; the process that serves it (`app.worker.folder_watcher`) continues where
the last one stopped. Files are remembered by path, size and modification time; a file is read again only if it changed.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import func, select, update

from core.config import require
from core.errors import InvalidInput, NotFound
from storage.database.schema import Project, Watch, WatchedFile
from storage.database.store import Store, insert_for, now
from storage.importing.item_writer import LabelUse
from storage.projects import projects, roles

Outcome = Literal["taken", "duplicate", "unreadable", "refused"]
BUFFER_SIZE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    labels: LabelUse = "ignore"  # the meaning of class folders below the folder
    buffer_size: int = BUFFER_SIZE  # items that rounds choose from, however many there are
    limit: int | None = None  # files after which the watch stops automatically

    def __post_init__(self) -> None:
        require(100 <= self.buffer_size <= 100_000, f"A buffer of {self.buffer_size} items; use 100 to 100,000.")
        require(self.limit is None or self.limit >= 1, f"A limit of {self.limit} files; use at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRow:
    project_id: int
    folder: str
    host: str
    status: Literal["active", "stopped"]
    labels: LabelUse
    buffer_size: int
    remaining: int | None
    problem: str
    started_at: datetime
    looked_at: datetime | None
    stopped_at: datetime | None
    buffer: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def active(self) -> bool:
        return self.status == "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A file and its outcome. `path` is its full path in the system's encoding."""

    path: str
    name: str  # below the folder, readable
    n_bytes: int
    mtime_ns: int
    outcome: Outcome
    reason: str = ""


def start(store: Store, project_id: int, folder: Path | str, options: WatchOptions | None = None) -> WatchRow:
    """Watch `folder` from now on instead of any other folder of the project. Outcomes of its files are kept."""
    options = options or WatchOptions()
    root = checked_folder(store, folder)
    values = {
        "folder": str(root), "host": socket.gethostname(), "status": "active", "labels": options.labels,
        "buffer_size": options.buffer_size, "remaining": options.limit, "problem": "", "started_at": now(),
        "stopped_at": None,
    }  # fmt: skip
    before = get(store, project_id)
    if before is None or before.buffer_size != options.buffer_size:
        values["buffer"] = {}
    with store.write() as connection:
        projects.touch(connection, project_id)
        statement = insert_for(connection, Watch).values(project_id=project_id, **({"buffer": {}} | values))
        connection.execute(statement.on_conflict_do_update(index_elements=["project_id"], set_=values))
    row = get(store, project_id)
    assert row is not None
    return row


def checked_folder(store: Store, folder: Path | str) -> Path:
    """The folder's real path; raises when it cannot be watched."""
    try:
        root = Path(folder).expanduser().resolve(strict=True)
    except OSError as problem:
        raise InvalidInput(f"The folder {folder} cannot be read: {problem.strerror}.") from problem
    if not root.is_dir():
        raise InvalidInput(f"{folder} is not a folder. Name the folder for new files.")
    home = store.home.resolve()
    if root == home or root in home.parents or home in root.parents:
        raise InvalidInput(f"{root} contains Winnow's own files, or is inside their folder. Watch another folder.")
    return root


def stop(store: Store, project_id: int) -> WatchRow:
    with store.write() as connection:
        roles.check_in(connection, project_id, "edit")
        _end(connection, project_id)
    row = get(store, project_id)
    if row is None:
        raise NotFound("This project does not watch a folder.")
    return row


def _end(connection: Any, project_id: int) -> None:
    ends = update(Watch).where(Watch.project_id == project_id, Watch.status == "active")
    connection.execute(ends.values(status="stopped", stopped_at=now()))


def get(store: Store, project_id: int) -> WatchRow | None:
    with store.read() as connection:
        row = connection.execute(select(Watch.__table__).where(Watch.project_id == project_id)).one_or_none()
    return WatchRow(**row._asdict()) if row is not None else None


def active_here(store: Store) -> list[WatchRow]:
    """Active watches of folders on this machine, without those of archived projects."""
    query = (
        select(Watch.__table__)
        .join(Project, Project.id == Watch.project_id)
        .where(Watch.status == "active", Watch.host == socket.gethostname(), Project.archived_at.is_(None))
        .order_by(Watch.project_id)
    )
    with store.read() as connection:
        return [WatchRow(**row._asdict()) for row in connection.execute(query)]


def path_key(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()


def known_files(store: Store, project_id: int, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """path -> (n_bytes, mtime_ns) of the files that have an outcome."""
    by_key = {path_key(path): path for path in paths}
    query = select(WatchedFile.path_key, WatchedFile.n_bytes, WatchedFile.mtime_ns).where(
        WatchedFile.project_id == project_id, WatchedFile.path_key.in_(list(by_key))
    )
    with store.read() as connection:
        return {by_key[row.path_key]: (row.n_bytes, row.mtime_ns) for row in connection.execute(query)}


def record(store: Store, project_id: int, files: Sequence[FileRow]) -> None:
    """Store the outcomes of these files in one transaction; the last file of a limited watch ends the watch."""
    if not files:
        return
    rows = [
        {
            "project_id": project_id, "path_key": path_key(file.path), "name": file.name, "n_bytes": file.n_bytes,
            "mtime_ns": file.mtime_ns, "outcome": file.outcome, "reason": file.reason, "at": now(),
        }
        for file in files
    ]  # fmt: skip
    taken = sum(file.outcome != "refused" for file in files)
    with store.write() as connection:
        statement = insert_for(connection, WatchedFile)
        changed = {name: statement.excluded[name] for name in rows[0] if name not in ("project_id", "path_key")}
        connection.execute(
            statement.on_conflict_do_update(index_elements=["project_id", "path_key"], set_=changed), rows
        )
        limited = update(Watch).where(Watch.project_id == project_id, Watch.remaining.is_not(None))
        connection.execute(limited.values(remaining=Watch.remaining - taken))
        left = connection.execute(select(Watch.remaining).where(Watch.project_id == project_id)).scalar()
        if left is not None and left <= 0:
            _end(connection, project_id)


def record_scan(store: Store, project_id: int, problem: str = "") -> None:
    """Store the time of a scan of the folder; `problem` says why it failed."""
    with store.write() as connection:
        values = {"looked_at": now(), "problem": problem}
        connection.execute(update(Watch).where(Watch.project_id == project_id).values(values))


def save_buffer(store: Store, project_id: int, buffer: dict[str, Any]) -> None:
    with store.write() as connection:
        connection.execute(update(Watch).where(Watch.project_id == project_id).values(buffer=buffer))


def counts(store: Store, project_id: int) -> dict[Outcome, int]:
    """The number of files by their outcome."""
    query = (
        select(WatchedFile.outcome, func.count())
        .where(WatchedFile.project_id == project_id)
        .group_by(WatchedFile.outcome)
    )
    with store.read() as connection:
        found = {outcome: int(n) for outcome, n in connection.execute(query)}
    return {"taken": 0, "duplicate": 0, "unreadable": 0, "refused": 0} | found  # type: ignore[return-value]


def newest(store: Store, project_id: int, outcome: Outcome, limit: int = 20) -> list[tuple[str, str, datetime]]:
    """(name, reason, when) of the newest files with this outcome, newest first."""
    query = (
        select(WatchedFile.name, WatchedFile.reason, WatchedFile.at)
        .where(WatchedFile.project_id == project_id, WatchedFile.outcome == outcome)
        .order_by(WatchedFile.at.desc(), WatchedFile.name)
        .limit(limit)
    )
    with store.read() as connection:
        return [(row.name, row.reason, row.at) for row in connection.execute(query)]
