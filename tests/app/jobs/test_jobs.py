"""Imports and exports that a page starts: seen by any page, cancelled, lost and found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jobs import jobs
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.projects import create_project, get_project
from tests.storage.made_media import wav, write_files


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG", "WINNOW_LIMITS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen[bytes]]:
    """The processes that jobs run in; they do nothing, and go on doing it until they are killed."""
    made: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def record(arguments, **options):
        made.append(popen([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return made[-1]

    monkeypatch.setattr(jobs.subprocess, "Popen", record)
    return made


def ended(home: Path, job: jobs.Job) -> jobs.JobView:
    wait_for(lambda: (view := jobs.look(home, job.id)) is None or view.status != "running", "the job did not end")
    view = jobs.look(home, job.id)
    assert view is not None
    return view


def wait_for(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


def test_an_import_and_an_export_run_beside_the_page_and_leave_their_results(home, tmp_path):
    """The project named like the number of another is the one that is exported."""
    with Store.open(home=home) as store:
        create_project(store, "2", "audio", ["x"])
        create_project(store, "-p <b>two</b>", "audio", ["dog"])
    upload = tmp_path / "upload.zip"
    with zipfile.ZipFile(upload, "w") as packed:
        packed.writestr("dog/a.wav", wav(1))
        packed.writestr("dog/no.wav", b"<html>" * 9)
    asked = ["import", "--project=-p <b>two</b>", "--classes=add", "--skip-problems", "--", str(upload)]
    job = jobs.start(home, "Import into two", asked, 2, uses=upload)
    assert [view.job for view in jobs.listed(home, 2)] == [job] and jobs.listed(home, 1) == []
    done = ended(home, job)
    assert (done.status, done.error) == ("finished", "") and done.result is not None
    assert (done.result["imported"], done.result["n_refused"], done.done) == (1, 1, done.total)
    wait_for(lambda: not upload.exists(), "the upload is still there")  # removed after the end is told
    target = home / "exports" / "two.zip"
    target.parent.mkdir()
    job = jobs.start(home, "Export", ["export", "--", "-p <b>two</b>", str(target)], 2, makes=target)
    done = ended(home, job)
    assert done.status == "finished" and done.result is not None and done.result["rows"] == 1
    jobs.dismiss(home, job.id)
    assert jobs.look(home, job.id) is None and not target.exists()
    assert [view.job.title for view in jobs.listed(home)] == ["Import into two"]


def test_an_import_cancelled_before_it_began_says_so_and_writes_nothing(home, tmp_path, monkeypatch):
    with Store.open(home=home) as store:
        create_project(store, "animals", "audio", ["dog"])
    upload = write_files(tmp_path / "in", {"dog/a.wav": wav(1)})
    popen = subprocess.Popen

    def cancel_first(arguments, **options):
        jobs.cancel(home, Path(arguments[3]).name)
        return popen(arguments, **options)

    monkeypatch.setattr(jobs.subprocess, "Popen", cancel_first)
    job = jobs.start(home, "Import", ["import", str(upload), "--project=animals"], 1, uses=upload / "dog/a.wav")
    done = ended(home, job)
    assert done.status == "cancelled" and done.error.startswith("Cancelled.")
    assert (upload / "dog/a.wav").exists()
    with Store.open(home=home) as store:
        assert Pool(store, get_project(store, "animals").id).counts().total == 0


def test_a_command_that_fails_leaves_its_sentence(home):
    done = ended(home, jobs.start(home, "Export", ["export", "nobody", str(home / "x.zip")]))
    assert done.status == "failed" and done.error == "There is no project 'nobody'. There are: none yet."


def test_a_killed_process_is_seen_as_lost_and_a_paused_one_is_not(home, started):
    """By the kernel's lock, so it holds for every process that looks, at once."""
    job = jobs.start(home, "Export", ["export", "nobody", str(home / "x.zip")])
    os.kill(started[0].pid, signal.SIGSTOP)
    view = jobs.look(home, job.id)
    assert view is not None and view.status == "running"
    jobs.dismiss(home, job.id)
    assert jobs.look(home, job.id) is not None
    os.kill(started[0].pid, signal.SIGKILL)
    assert ended(home, job).status == "lost"
    jobs.dismiss(home, job.id)
    assert jobs.listed(home) == []


def test_names_of_jobs_never_become_paths(home, tmp_path):
    """Names with path parts find no job, and no file outside the folder of jobs is touched."""
    (tmp_path / "job.json").write_text('{"id": "x", "title": "", "project_id": 1, "arguments": [], "started_at": 0}')
    for name in ("../..", "..", "", "/etc", "a\0b", "x" * 3000):
        assert jobs.look(home, name) is None
        jobs.cancel(home, name)
        jobs.dismiss(home, name)
    assert not (tmp_path / "cancel").exists() and (tmp_path / "job.json").exists()


def test_old_jobs_are_forgotten_beyond_a_number(home, monkeypatch):
    monkeypatch.setattr(jobs, "KEPT", 1)
    for number in range(3):
        folder = home / "jobs" / f"old{number}"
        write_files(folder, {"job.json": _job(f"old{number}", number), "ended.json": b'{"code": 0}', "lock": b""})
    jobs._forget_old(home)
    assert [view.job.id for view in jobs.listed(home)] == ["old2"]


def _job(name: str, at: float) -> bytes:
    return f'{{"id": "{name}", "title": "", "project_id": 1, "arguments": [], "started_at": {at}}}'.encode()
