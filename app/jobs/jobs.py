"""Jobs: background work that a page or the API starts, such as imports, exports and summaries.

A job is a request (`app.jobs.requests`), a process (`app.jobs.process`) and a folder (`app.jobs.folder`). The folder
holds the entire state, so it survives a page reload and a restart of the page server. A job whose process ended without
a result is reported as lost.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from app.jobs import requests
from app.jobs.folder import JobFolder
from app.jobs.requests import Request
from app.processes import child
from app.processes.messages import Message
from core.module_processes import module_command
from storage.projects import roles

Status = Literal["running", "finished", "failed", "cancelled", "lost"]
KEPT = 40  # finished jobs that are kept; older ones are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One background job, as `job.json` describes it."""

    id: str
    title: str
    project_id: int | None
    started_at: float  # seconds since the epoch
    uses: str = ""  # a file that is removed when the job succeeds, such as an upload
    makes: str = ""  # a file that is removed with the job, such as an export


REQUIRED = {"id", "title", "project_id", "started_at"}
FIELDS = {field.name for field in fields(Job)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The state of a job for a screen. A failed or cancelled job may have a result: the work it did before it ended."""

    job: Job
    status: Status
    done: int = 0
    total: int = 0
    note: str = ""
    result: dict[str, Any] | None = None
    error: str = ""


def start(
    home: Path,
    title: str,
    request: Request,
    project_id: int | None = None,
    *,
    uses: Path | None = None,
    makes: Path | None = None,
) -> Job:
    """Start a process that carries out `request`. Returns without waiting for it."""
    job = Job(
        id=uuid.uuid4().hex[:12],
        title=title,
        project_id=project_id,
        started_at=time.time(),
        uses=str(uses or ""),
        makes=str(makes or ""),
    )
    folder = _folder(home, job.id)
    folder.path.mkdir(parents=True)
    lock = folder.open_lock()  # the process inherits it, so the lock is never free in between
    try:
        actor = roles.current_actor()  # the process acts on behalf of the same person
        by = None if actor is None else asdict(actor)
        folder.write_job(asdict(job) | {"request": requests.to_dict(request), "actor": by})
        with (folder.path / "stderr.txt").open("wb") as stderr:
            process = child.start(
                module_command("app.jobs.process", str(folder.path), str(lock)),
                child.Streams(stderr=stderr),
                environment=os.environ | {"WINNOW_HOME": str(home)},
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)
    threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it ends
    _remove_old(home)
    return job


def list_jobs(home: Path, project_id: int | None = None) -> list[JobView]:
    """All jobs, or those of one project, newest first."""
    folder = home / "jobs"
    if not folder.is_dir():
        return []
    views = [view for name in os.listdir(folder) if (view := find_job(home, name)) is not None]
    found = [view for view in views if project_id is None or view.job.project_id == project_id]
    return sorted(found, key=lambda view: -view.job.started_at)


def running_imports(home: Path, project_id: int) -> list[JobView]:
    """The running imports into a project, newest first."""
    found = list_jobs(home, project_id)
    return [view for view in found if view.status == "running" and view.job.title.startswith("Import")]


def find_job(home: Path, job_id: str) -> JobView | None:
    """The current state of a job. None if there is no such job."""
    folder = _folder(home, job_id)
    values = folder.read_job()
    if values is None or not set(values) >= REQUIRED:
        return None
    job = Job(**{name: value for name, value in values.items() if name in FIELDS})
    message = folder.newest()
    if message is not None and message.ends:
        return _ended(job, message)
    if not folder.is_locked():
        message = folder.newest() or Message("progress", {})  # it may have ended since the first check
        return _ended(job, message) if message.ends else _under_way(job, "lost", message)
    return _under_way(job, "running", message)


def _under_way(job: Job, status: Status, message: Message | None) -> JobView:
    body = message.body if message is not None else {}
    return JobView(job=job, status=status, **{name: body[name] for name in ("done", "total", "note") if name in body})


def _ended(job: Job, message: Message) -> JobView:
    if message.kind == "result":
        return JobView(job=job, status="finished", result=message.body)
    body = message.body
    status: Status = "cancelled" if body["type"] == "Cancelled" else "failed"
    return JobView(job=job, status=status, result=body.get("result"), error=body["sentence"])


def cancel(home: Path, job_id: str) -> None:
    """Cancel a job. It ends at its next progress report."""
    _folder(home, job_id).cancel()


def dismiss(home: Path, job_id: str) -> None:
    """Remove a job that has ended, with the file it wrote. A running job is not removed."""
    view = find_job(home, job_id)
    if view is not None and view.status != "running":
        if view.job.makes:
            Path(view.job.makes).unlink(missing_ok=True)
        shutil.rmtree(_folder(home, job_id).path, ignore_errors=True)


def _folder(home: Path, job_id: str) -> JobFolder:
    return JobFolder(home / "jobs" / Path(job_id).name)


def _remove_old(home: Path) -> None:
    ended = [view for view in list_jobs(home) if view.status != "running"]
    for view in ended[KEPT:]:
        dismiss(home, view.job.id)
