"""Long work that a page starts and does not wait for: imports and exports, each a command line of its own process.

A job is a folder in `WINNOW_HOME/jobs`: `job.json` (what was asked), `progress.json`, `result.json` (what the command
printed), `ended.json`, `error.txt`, and `lock`, held by the process from before its start until it ends, however it
ends. So a reloaded page or a restarted server finds the job as it is, and a job whose process died is seen to be lost.
Cancelling leaves a file that the job looks for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from storage.database.file_lock import try_lock, unlock

Status = Literal["running", "finished", "failed", "cancelled", "lost"]
ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = 40  # finished jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: str
    title: str
    project_id: int | None
    arguments: tuple[str, ...]  # the command, then its options
    started_at: float  # seconds since the epoch
    uses: str = ""  # a file that is removed when the job succeeds, such as an upload
    makes: str = ""  # a file that is removed when the job is forgotten, such as an export


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as a screen shows it."""

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
    arguments: Sequence[str],
    project_id: int | None = None,
    *,
    uses: Path | None = None,
    makes: Path | None = None,
) -> Job:
    """Run `python -m app ARGUMENTS` with `--json` in a process of its own."""
    job = Job(
        id=uuid.uuid4().hex[:12],
        title=title,
        project_id=project_id,
        arguments=tuple(arguments),
        started_at=time.time(),
        uses=str(uses or ""),
        makes=str(makes or ""),
    )
    folder = _folder(home, job.id)
    folder.mkdir(parents=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try_lock(lock)  # handed on to the process: there is no moment at which nobody holds it
        (folder / "job.json").write_text(json.dumps(asdict(job)))
        with (folder / "error.txt").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "app.jobs.job_process", str(folder), str(lock)],
                cwd=ROOT,
                env=os.environ | {"WINNOW_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)
    threading.Thread(target=process.wait, daemon=True).start()  # so that it does not stay as a zombie
    _forget_old(home)
    return job


def listed(home: Path, project_id: int | None = None) -> list[JobView]:
    """Newest first; those of one project when named."""
    folder = home / "jobs"
    if not folder.is_dir():
        return []
    views = [view for name in os.listdir(folder) if (view := look(home, name)) is not None]
    mine = [view for view in views if project_id is None or view.job.project_id == project_id]
    return sorted(mine, key=lambda view: -view.job.started_at)


def look(home: Path, job_id: str) -> JobView | None:
    """The job as it is now; None for one that is not there."""
    folder = _folder(home, job_id)
    asked = _read(folder / "job.json")
    if asked is None:
        return None
    job = Job(**(asked | {"arguments": tuple(asked["arguments"])}))
    progress = _read(folder / "progress.json") or {}
    told = {name: progress[name] for name in ("done", "total", "note") if name in progress}
    ended = _read(folder / "ended.json")
    if ended is None:
        return JobView(job=job, status="running" if _alive(folder) else "lost", **told)
    code, result = int(ended["code"]), _read(folder / "result.json")
    if code == 0:
        return JobView(job=job, status="finished", result=result, **told)
    error = (folder / "error.txt").read_text(errors="replace").strip() if (folder / "error.txt").exists() else ""
    status: Status = "cancelled" if code == 130 else "failed"
    return JobView(job=job, status=status, result=result, error=error[-600:], **told)


def cancel(home: Path, job_id: str) -> None:
    folder = _folder(home, job_id)
    if folder.is_dir():
        (folder / "cancel").touch()


def dismiss(home: Path, job_id: str) -> None:
    """Forget a job that has ended, and what it made; one that runs stays."""
    seen = look(home, job_id)
    if seen is not None and seen.status != "running":
        if seen.job.makes:
            Path(seen.job.makes).unlink(missing_ok=True)
        shutil.rmtree(_folder(home, job_id), ignore_errors=True)


def _alive(folder: Path) -> bool:
    """Its process holds the lock, or has just ended properly."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            if try_lock(descriptor):
                unlock(descriptor)
                return (folder / "ended.json").exists()
            return True
        finally:
            os.close(descriptor)
    return False


def _folder(home: Path, job_id: str) -> Path:
    return home / "jobs" / Path(job_id).name


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _forget_old(home: Path) -> None:
    ended = [view for view in listed(home) if view.status != "running"]
    for view in ended[KEPT:]:
        dismiss(home, view.job.id)
