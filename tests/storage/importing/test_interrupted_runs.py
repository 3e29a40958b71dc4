"""Imports that are cancelled, killed or meet a full disk lose nothing and continue later; memory stays bounded."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from sqlalchemy import select, text

from core.errors import Cancelled, StoreUnusable
from core.types import Progress
from storage.database.schema import ImportRun
from storage.database.store import Store
from storage.importing import run as import_run
from storage.importing import runs
from storage.importing.open import open_source
from storage.importing.reading import Findings
from storage.importing.run import ImportOptions, run_import
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.media.probe import Measures
from storage.media.probe_pool import Examined
from storage.media.probe_process import DISK_FULL
from storage.projects.projects import create_project
from tests.storage.importing.folder_imports import items, take
from tests.storage.made_media import wav, write_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(store: Store) -> int:
    return create_project(store, "sounds", "audio").id


@pytest.fixture
def audio(sqlite_store: Store) -> int:
    return create_project(sqlite_store, "sounds", "audio").id


def test_a_cancelled_import_keeps_what_it_committed_and_resumes_later(store, project, tmp_path, monkeypatch):
    monkeypatch.setattr(import_run, "GROUP_FILES", 10)
    monkeypatch.setattr(import_run, "BATCH_FILES", 5)
    write_files(tmp_path / "in", {f"{k}.wav": wav(k) for k in range(200)})  # more than are processed at the same time

    def stop(progress: Progress) -> None:
        if progress.stage == "import" and not progress.note.startswith("0 imported"):
            raise Cancelled("enough")

    report = run_import(store, project, open_source(tmp_path / "in"), report=stop)
    assert report.status == "cancelled"
    assert 0 < report.imported == len(items(store, project)) < 200
    assert list((store.media.root / "incoming").iterdir()) == []
    again = take(store, project, tmp_path / "in")
    assert (again.imported, again.already) == (200 - report.imported, report.imported)


def test_an_import_can_be_cancelled_through_the_store(sqlite_store, audio, tmp_path, monkeypatch):
    monkeypatch.setattr(import_run, "GROUP_FILES", 10)
    monkeypatch.setattr(import_run, "BATCH_FILES", 5)
    write_files(tmp_path / "in", {f"{k}.wav": wav(k) for k in range(60)})

    def ask(progress: Progress) -> None:
        if progress.stage == "import":
            with sqlite_store.write() as connection:
                connection.execute(text("UPDATE import_runs SET cancel_requested = :yes"), {"yes": True})

    report = run_import(sqlite_store, audio, open_source(tmp_path / "in"), report=ask)
    assert report.status == "cancelled"
    with sqlite_store.read() as connection:
        assert connection.execute(select(ImportRun.status)).scalar_one() == "cancelled"


def test_a_full_disk_stops_the_import_with_a_message(sqlite_store, tmp_path, monkeypatch):
    project = create_project(sqlite_store, "p", "audio").id
    write_files(tmp_path / "in", {"a.wav": wav()})
    full = Examined(Measures("refused", DISK_FULL))
    monkeypatch.setattr("storage.media.probe_pool.ProbePool._examine", lambda self, jobs: [full] * len(jobs))
    with pytest.raises(StoreUnusable, match="disk is full"):
        take(sqlite_store, project, tmp_path / "in")
    with sqlite_store.read() as connection:
        assert connection.execute(select(ImportRun.status)).scalar_one() == "failed"


KILLED = """
import sys, time
from pathlib import Path
from storage.importing import run as importing
from storage.database.store import Store
from storage.importing.open import open_source
importing.GROUP_FILES, importing.BATCH_FILES = 40, int(sys.argv[3])
sqlite_store = Store.open(home=Path(sys.argv[1]))
lines = iter(range(1, 100))
def report(progress):
    if progress.stage == "import":
        print(progress.done, flush=True)
        if next(lines) == 6:  # it never ends by itself, however late the kill comes
            time.sleep(600)
importing.run_import(sqlite_store, 1, open_source(Path(sys.argv[2])), report=report)
"""


@pytest.mark.parametrize(("after", "n_batch"), [(1, 20), (4, 20), (1, 80), (2, 80)])
def test_kill_9_during_an_import_loses_nothing_and_the_import_resumes(sqlite_store, tmp_path, after, n_batch):
    """A real process is killed; labels of committed groups are stored, the next run imports the rest. Batches of 80 are
    packed."""
    project = create_project(sqlite_store, "p", "audio").id
    n_files = 15 * n_batch if n_batch > 20 else 400
    write_files(tmp_path / "in", {f"{k % 3}/{k}.wav": wav(k) for k in range(n_files)})
    code = textwrap.dedent(KILLED)
    command = [sys.executable, "-c", code, str(sqlite_store.home), str(tmp_path / "in"), str(n_batch)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    for _ in range(after):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with Store.open(home=sqlite_store.home) as store:
        done = items(store, project)
        assert len(done) < n_files
        for item in done:
            assert len(store.media.read(item.sha256)) == item.n_bytes
        report = take(store, project, tmp_path / "in")
        assert report.imported + report.already == n_files == len(items(store, project))
        assert Pool(store, project).counts().labeled == n_files
        with store.write() as connection:
            assert projections.rebuild(connection, project) == 0
        with store.read() as connection:
            statuses = connection.execute(select(ImportRun.status).order_by(ImportRun.id)).scalars().all()
        assert statuses[-1] == "finished" and set(statuses[:-1]) <= {"interrupted"}
        wait_until_empty(store.media.root / "incoming")


def wait_until_empty(folder: Path) -> None:
    end = time.monotonic() + 120
    while list(folder.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


def test_memory_does_not_grow_with_the_number_of_files(sqlite_store, tmp_path, monkeypatch):
    """Entries are streamed; ten times as many need no more memory. Their files are generated."""
    import tracemalloc

    from storage.importing.sources import Entry, FilePlace

    project = create_project(sqlite_store, "p", "audio").id
    (tmp_path / "a.wav").write_bytes(wav())
    monkeypatch.setattr(import_run, "GROUP_FILES", 250)

    class Many:
        description, strict = "many", False

        def __init__(self, n: int) -> None:
            self.n = n

        def entries(self):
            for k in range(self.n):
                yield Entry(f"{k}.wav", FilePlace(str(tmp_path / "a.wav")))

        def findings(self):
            return Findings()

    def peak(n: int) -> int:
        tracemalloc.start()
        run_import(sqlite_store, project, Many(n), ImportOptions(storage="link"))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(200)
    few, many = peak(1_000), peak(4_000)
    assert many < 2 * few + 400_000  # four times the files: linear growth would be far above


def test_an_import_that_ends_on_a_full_disk_does_not_stay_running(sqlite_store, tmp_path, monkeypatch):
    project = create_project(sqlite_store, "p", "audio").id
    write_files(tmp_path / "in", {"a.wav": wav(1)})

    def full(*_: object) -> None:
        raise StoreUnusable("The disk is full, so nothing was saved.")

    with monkeypatch.context() as patch:
        patch.setattr(import_run, "finish", full)
        patch.setattr(import_run._Importer, "run", full)
        with pytest.raises(StoreUnusable, match="disk is full"):
            take(sqlite_store, project, tmp_path / "in")
    assert run_statuses(sqlite_store) == ["running"]
    assert runs.end_interrupted(sqlite_store) == 1
    assert run_statuses(sqlite_store) == ["interrupted"]


def test_a_run_that_is_under_way_in_another_process_is_left_alone(sqlite_store):
    project = create_project(sqlite_store, "p", "audio").id
    run = runs.start(sqlite_store, project, "somewhere", {}, [])
    with runs.running(sqlite_store, run.run_id):
        assert runs.end_interrupted(sqlite_store) == 0
    assert run_statuses(sqlite_store) == ["running"]


def run_statuses(store: Store) -> list[str]:
    with store.read() as connection:
        return list(connection.execute(select(ImportRun.status).order_by(ImportRun.id)).scalars())
