"""An import run as a row of the store: its start, its lock and its end."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, update

from storage.database.schema import ImportRun
from storage.database.store import Store, now
from storage.importing.reports import ImportReport
from storage.projects import class_rows, projects
from storage.system.file_lock import try_lock


@contextlib.contextmanager
def running(store: Store, run_id: int) -> Iterator[None]:
    """Hold the run's lock file for the length of the block. The kernel releases it however the process ends."""
    path = _lock_path(store, run_id)
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try_lock(descriptor)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def end_interrupted(store: Store, project_id: int | None = None) -> int:
    """Set runs that are "running" in the store, but in no process, to "interrupted"; returns how many.

    A process that was killed, or whose disk was full, could not store its end. PostgreSQL may be shared with other
    machines, so only runs of this machine (those with a lock file here) are checked there.
    """
    query = select(ImportRun.id).where(ImportRun.status == "running")
    if project_id is not None:
        query = query.where(ImportRun.project_id == project_id)
    with store.read() as connection:
        found = [run_id for run_id in connection.execute(query).scalars() if _is_dead(store, run_id)]
    if found:
        with store.write() as connection:
            which = (ImportRun.id.in_(found), ImportRun.status == "running")
            connection.execute(update(ImportRun).where(*which).values(status="interrupted", finished_at=now()))
    for run_id in found:
        _lock_path(store, run_id).unlink(missing_ok=True)
    return len(found)


def _is_dead(store: Store, run_id: int) -> bool:
    try:
        descriptor = os.open(_lock_path(store, run_id), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return store.is_sqlite
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def _lock_path(store: Store, run_id: int) -> Path:
    return store.home / "imports" / f"run-{run_id}.lock"


def start(
    store: Store, project_id: int, description: str, options: dict[str, Any], new_classes: list[str]
) -> ImportReport:
    """Insert the row of the run and all its new classes at once, so that a run resumed after a kill finds the same."""
    end_interrupted(store, project_id)
    with store.write() as connection:
        projects.touch(connection, project_id)
        for name in new_classes:
            class_rows.add_in(connection, project_id, name)
        values = {
            "project_id": project_id,
            "source": description,
            "options": options,
            "status": "running",
            "counts": {},
            "started_at": now(),
        }
        run_id = connection.execute(insert(ImportRun).values(values).returning(ImportRun.id)).scalar_one()
    return ImportReport(run_id, description, new_classes=new_classes)


def finish(store: Store, run: ImportReport, status: str) -> None:
    run.status = status
    values = {"status": status, "counts": run.counts(), "finished_at": now()}
    with store.write() as connection:
        connection.execute(update(ImportRun).where(ImportRun.id == run.run_id).values(values))


@contextlib.contextmanager
def light_collector() -> Iterator[None]:
    """Exclude existing objects from garbage collection during an import. An import allocates and frees so many small
    objects that scanning all loaded modules each time took a sixth of this process's time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
