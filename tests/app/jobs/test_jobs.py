"""Imports and exports that a page starts: shown on any page, cancelled, and reported as lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app.jobs import jobs, process, requests
from app.jobs.folder import JobFolder
from app.jobs.operations import IMPORT_CANCELLED
from app.jobs.requests import ExportRequest, ImportRequest, PreviewRequest, SummaryOptions, SummaryRequest
from app.processes import child
from app.processes.messages import Message
from core.errors import InvalidInput
from storage.database.store import Store
from storage.exporting.rows import ExportOptions
from storage.importing.run import ImportOptions
from storage.labeling.pool import Pool
from storage.projects.projects import create_project, get_project, list_projects
from tests.storage.made_media import wav, write_files

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG", "WINNOW_LIMITS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen[bytes]]:
    """The processes of the jobs; they do nothing until they are killed."""
    made: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def record(arguments, **options):
        made.append(popen([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return made[-1]

    monkeypatch.setattr(child.subprocess, "Popen", record)
    return made


def ended(home: Path, job: jobs.Job) -> jobs.JobView:
    wait_for(lambda: (view := jobs.find_job(home, job.id)) is None or view.status != "running", "the job did not end")
    view = jobs.find_job(home, job.id)
    assert view is not None
    return view


def wait_for(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


def test_an_import_and_an_export_run_beside_the_page_and_store_their_results(home, tmp_path):
    """A project whose name is the number of another project is exported, and not that other project."""
    with Store.open(home=home) as store:
        create_project(store, "2", "audio", ["x"])
        create_project(store, "-p <b>two</b>", "audio", ["dog"])
    upload = tmp_path / "upload.zip"
    with zipfile.ZipFile(upload, "w") as packed:
        packed.writestr("dog/a.wav", wav(1))
        packed.writestr("dog/no.wav", b"<html>" * 9)
    request = ImportRequest(
        source=str(upload), project="-p <b>two</b>", options=ImportOptions(classes="add", skip_problems=True)
    )
    job = jobs.start(home, "Import into two", request, 2, uses=upload)
    assert [view.job for view in jobs.list_jobs(home, 2)] == [job] and jobs.list_jobs(home, 1) == []
    done = ended(home, job)
    assert (done.status, done.error) == ("finished", "") and done.result is not None
    assert (done.result["imported"], done.result["n_refused"]) == (1, 1)
    wait_for(lambda: not upload.exists(), "the upload is still there")  # removed after the end is reported
    target = home / "exports" / "two.zip"
    target.parent.mkdir()
    job = jobs.start(home, "Export", ExportRequest(project_id=2, target=str(target)), 2, makes=target)
    done = ended(home, job)
    assert done.status == "finished" and done.result is not None and done.result["rows"] == 1
    jobs.dismiss(home, job.id)
    assert jobs.find_job(home, job.id) is None and not target.exists()
    assert [view.job.title for view in jobs.list_jobs(home)] == ["Import into two"]


def test_an_import_cancelled_before_it_began_says_so_and_writes_nothing(home, tmp_path, monkeypatch):
    with Store.open(home=home) as store:
        create_project(store, "animals", "audio", ["dog"])
    upload = write_files(tmp_path / "in", {"dog/a.wav": wav(1)})
    popen = subprocess.Popen

    def cancel_first(arguments, **options):
        jobs.cancel(home, Path(arguments[-2]).name)
        return popen(arguments, **options)

    monkeypatch.setattr(child.subprocess, "Popen", cancel_first)
    request = ImportRequest(source=str(upload), project="animals")
    job = jobs.start(home, "Import", request, 1, uses=upload / "dog/a.wav")
    done = ended(home, job)
    assert done.status == "cancelled" and done.error.startswith("Cancelled.")
    assert (upload / "dog/a.wav").exists()
    with Store.open(home=home) as store:
        assert Pool(store, get_project(store, "animals").id).counts().total == 0


def test_a_job_that_fails_keeps_its_message(home):
    request = ExportRequest(project_id=7, target=str(home / "x.zip"))
    done = ended(home, jobs.start(home, "Export", request))
    assert done.status == "failed" and "7" in done.error and done.result is None
    assert not (home / "x.zip").exists()


def test_an_import_without_usable_files_fails_and_lists_what_was_refused(home, tmp_path):
    folder = write_files(tmp_path / "in", {"no.wav": b"<html>" * 9})
    done = ended(home, jobs.start(home, "Import", ImportRequest(source=str(folder), project="new", kind="audio")))
    assert done.status == "failed" and done.error.startswith("Nothing was imported from")
    assert done.result is not None and [name for name, _ in done.result["refused"]] == ["no.wav"]


def test_a_preview_is_a_job_that_writes_nothing(home, tmp_path):
    folder = write_files(tmp_path / "in", {"dog/a.wav": wav(1)})
    done = ended(home, jobs.start(home, "Look through", PreviewRequest(source=str(folder), project="new")))
    assert done.status == "finished" and done.result is not None
    assert (done.result["n_entries"], done.result["labels"]) == (1, {"dog": 1})
    with Store.open(home=home) as store:
        assert list_projects(store) == []


def test_an_import_cancelled_while_it_runs_keeps_what_it_imported(home, tmp_path, monkeypatch):
    """The job runs in this process and is cancelled after its first progress message."""
    monkeypatch.setenv("WINNOW_HOME", str(home))
    monkeypatch.setattr("app.processes.messages.SECONDS_BETWEEN_PROGRESS", 0.0)
    folder = write_files(tmp_path / "in", {f"dog/{number}.wav": wav(number) for number in range(300)})
    with Store.open(home=home) as store:
        create_project(store, "animals", "audio", ["dog"])
    request = ImportRequest(source=str(folder), project="animals")
    path = home / "jobs" / "0123456789ab"
    path.mkdir(parents=True)
    job = {"id": path.name, "title": "Import", "project_id": 1, "started_at": 5.0, "uses": ""}
    JobFolder(path).write_job(job | {"request": requests.to_dict(request)})
    send, views = JobFolder.send, []

    def send_and_cancel(self: JobFolder, message: Message) -> None:
        send(self, message)
        views.append(jobs.find_job(home, path.name))
        jobs.cancel(home, path.name)

    monkeypatch.setattr(JobFolder, "send", send_and_cancel)
    lock = JobFolder(path).open_lock()
    assert process.main(path, lock) == 1
    os.close(lock)
    assert views[0].status == "running" and len(views) == 2
    done = views[1]
    assert (done.status, done.error, done.result["status"]) == ("cancelled", IMPORT_CANCELLED, "cancelled")
    with Store.open(home=home) as store:
        assert Pool(store, 1).counts().total == done.result["imported"]


@pytest.mark.parametrize(
    "request_",
    [
        PreviewRequest(source="/a b", project="x"),
        ImportRequest(source="-p", project="'", kind="image", options=ImportOptions(labels="hidden", storage="link")),
        ExportRequest(project_id=3, target="t", options=ExportOptions(format="parquet", pseudo_above=0.5)),
        SummaryRequest(project_id=3, summary=SummaryOptions(percent=2.5), options=ExportOptions(media=True)),
    ],
)
def test_a_request_survives_json(request_):
    assert requests.from_dict(json.loads(json.dumps(requests.to_dict(request_)))) == request_


def test_an_unknown_request_is_refused():
    with pytest.raises(InvalidInput, match="no job type 'dance'"):
        requests.from_dict({"type": "dance"})


OLD_JOB = {
    "title": "Export as csv",
    "project_id": 1,
    "arguments": ["export"],
    "started_at": 5.0,
    "uses": "",
    "makes": "",
}
OLD_FILES = [
    ({"ended.json": b'{"code": 0}', "result.json": b'{"rows": 4}'}, "finished", {"rows": 4}, ""),
    ({"ended.json": b'{"code": 1}', "result.json": b"null", "error.txt": b"No room.\n"}, "failed", None, "No room."),
    ({"ended.json": b'{"code": 130}', "result.json": b"null", "error.txt": b"Stopped."}, "cancelled", None, "Stopped."),
    ({"progress.json": b'{"stage": "rows", "done": 2, "total": 9, "note": ""}'}, "lost", None, ""),
]


@pytest.mark.parametrize(("files", "status", "result", "error"), OLD_FILES)
def test_jobs_of_the_previous_version_are_read(home, files, status, result, error):
    """Their folders have a command line in place of a request, and an exit code in place of a message."""
    job = json.dumps(OLD_JOB | {"id": "0123456789ab"}).encode()
    write_files(home / "jobs" / "0123456789ab", files | {"job.json": job, "lock": b""})
    [view] = jobs.list_jobs(home, 1)
    assert (view.status, view.result, view.error, view.job.title) == (status, result, error, "Export as csv")
    jobs.dismiss(home, "0123456789ab")
    assert jobs.list_jobs(home) == []


def test_a_killed_process_is_reported_as_lost_and_a_paused_one_is_not(home, started):
    """The kernel's lock determines the state, so every process that reads the job sees the same state at once."""
    job = jobs.start(home, "Export", ExportRequest(project_id=1, target=str(home / "x.zip")))
    os.kill(started[0].pid, signal.SIGSTOP)
    view = jobs.find_job(home, job.id)
    assert view is not None and view.status == "running"
    jobs.dismiss(home, job.id)
    assert jobs.find_job(home, job.id) is not None
    os.kill(started[0].pid, signal.SIGKILL)
    assert ended(home, job).status == "lost"
    jobs.dismiss(home, job.id)
    assert jobs.list_jobs(home) == []


def test_names_of_jobs_never_become_paths(home, tmp_path):
    (tmp_path / "job.json").write_text('{"id": "x", "title": "", "project_id": 1, "arguments": [], "started_at": 0}')
    for name in ("../..", "..", "", "/etc", "a\0b", "x" * 3000):
        assert jobs.find_job(home, name) is None
        jobs.cancel(home, name)
        jobs.dismiss(home, name)
    assert not (tmp_path / "cancel").exists() and (tmp_path / "job.json").exists()


def test_old_jobs_beyond_a_number_are_removed(home, monkeypatch):
    monkeypatch.setattr(jobs, "KEPT", 1)
    for number in range(3):
        folder = home / "jobs" / f"old{number}"
        write_files(folder, {"job.json": _job(f"old{number}", number), "ended.json": b'{"code": 0}', "lock": b""})
    jobs._remove_old(home)
    assert [view.job.id for view in jobs.list_jobs(home)] == ["old2"]


def _job(name: str, at: float) -> bytes:
    return f'{{"id": "{name}", "title": "", "project_id": 1, "arguments": [], "started_at": {at}}}'.encode()
