"""Folders become items: what is taken, what is refused and why, again and again, and after a kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from core.errors import Cancelled, InvalidInput, StoreUnusable
from core.limits import Limits
from core.types import Progress
from storage.database.schema import ImportRun, Item, ItemName, LabelEvent
from storage.database.store import Store
from storage.importing import run as import_run
from storage.importing import runs
from storage.importing.open import open_source
from storage.importing.reading import Findings, ReadingOptions
from storage.importing.run import ImportOptions, run_import
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.media.probe import Measures
from storage.media.probe_pool import Examined
from storage.media.probe_process import DISK_FULL
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.storage.made_media import picture, sound, wav, write_files

ROOT = Path(__file__).resolve().parents[3]


def items(store: Store, project_id: int) -> list[Item]:
    with store.read() as connection:
        query = select(Item.__table__).where(Item.project_id == project_id).order_by(Item.id)
        return list(connection.execute(query))


def take(store: Store, project_id: int, path: Path, **options):
    reading = ReadingOptions(folders="classes")  # also where there is one class folder only
    return run_import(store, project_id, open_source(path, reading=reading), ImportOptions(**options))


@pytest.fixture
def project(store: Store) -> int:
    return create_project(store, "sounds", "audio").id


@pytest.fixture
def audio(sqlite_store: Store) -> int:
    return create_project(sqlite_store, "sounds", "audio").id


def test_class_folders_become_labels(store, project, tmp_path):
    write_files(tmp_path / "in", {"dog/a.wav": wav(1), "cat/b.wav": wav(2), "cat/c.flac": sound("FLAC")})
    report = take(store, project, tmp_path / "in")
    assert (report.imported, report.labels, report.n_refused, report.status) == (3, 3, 0, "finished")
    names = {row.id: row.name for row in list_classes(store, project)}
    assert {item.name: names[item.class_id] for item in Pool(store, project).items()} == {
        "cat/b.wav": "cat", "cat/c.flac": "cat", "dog/a.wav": "dog",
    }  # fmt: skip
    first = items(store, project)[0]
    assert (first.media_type, first.seconds, first.sample_rate, first.channels) == ("audio/wav", 0.1, 8_000, 1)
    assert store.media.read(first.sha256) == wav(2)
    with store.write() as connection:
        assert projections.rebuild(connection, project) == 0


def test_labels_can_be_hidden_truth_or_ignored(sqlite_store, tmp_path):
    write_files(tmp_path / "in", {"dog/a.wav": wav(1), "cat/b.wav": wav(2)})
    hidden = create_project(sqlite_store, "hidden", "audio").id
    report = take(sqlite_store, hidden, tmp_path / "in", labels="hidden")
    assert report.labels == 0
    names = {row.id: row.name for row in list_classes(sqlite_store, hidden)}
    assert [names[item.truth_class_id] for item in items(sqlite_store, hidden)] == ["cat", "dog"]
    assert Pool(sqlite_store, hidden).counts().labeled == 0
    ignored = create_project(sqlite_store, "ignored", "audio").id
    take(sqlite_store, ignored, tmp_path / "in", labels="ignore")
    assert list_classes(sqlite_store, ignored) == []
    assert all(item.truth_class_id is None for item in items(sqlite_store, ignored))


def test_test_folders_are_held_out_with_their_truth_and_never_served(store, project, tmp_path):
    write_files(tmp_path / "in", {"train/dog/a.wav": wav(1), "test/dog/b.wav": wav(2), "test/cat/c.wav": wav(3)})
    report = take(store, project, tmp_path / "in")
    assert (report.imported, report.held_out, report.labels) == (3, 2, 1)
    snapshot = Pool(store, project).snapshot()
    assert snapshot.held_out.sum() == 2
    assert sorted(snapshot.class_names[k] for k in snapshot.held_out_labels[snapshot.held_out]) == ["cat", "dog"]
    assert not snapshot.eligible[snapshot.held_out].any()


def test_the_same_bytes_are_one_item_with_two_names_and_new_bytes_are_a_new_item(store, project, tmp_path):
    """Items are identified by the SHA-256 of their bytes."""
    write_files(tmp_path / "in", {"dog/a.wav": wav(1), "dog/b.wav": wav(1)})
    report = take(store, project, tmp_path / "in")
    assert (report.imported, report.duplicates) == (1, [("dog/b.wav", "dog/a.wav")])
    with store.read() as connection:
        assert connection.execute(select(ItemName.name)).scalars().all() == ["dog/b.wav"]
    old = Pool(store, project).items()[0]
    write_files(tmp_path / "in", {"dog/a.wav": wav(9)})
    report = take(store, project, tmp_path / "in", labels="ignore")
    assert report.imported == 1
    new = Pool(store, project).items()[1]
    assert (new.name, new.class_id) == ("dog/a.wav", None)
    assert Pool(store, project).item(old.id).class_id == old.class_id is not None


def test_importing_again_changes_nothing(store, project, tmp_path):
    write_files(tmp_path / "in", {f"{k % 2}/{k}.wav": wav(k) for k in range(20)})
    take(store, project, tmp_path / "in")
    before = items(store, project)
    report = take(store, project, tmp_path / "in")
    assert (report.imported, report.already, report.n_duplicates) == (0, 20, 0)
    assert items(store, project) == before
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(LabelEvent)).scalar_one() == 20


def test_a_label_taken_back_stays_taken_back_when_the_folder_is_imported_again(sqlite_store, audio, tmp_path):
    write_files(tmp_path / "in", {"dog/a.wav": wav(1)})
    take(sqlite_store, audio, tmp_path / "in")
    pool = Pool(sqlite_store, audio)
    with sqlite_store.read() as connection:
        annotator = connection.execute(select(LabelEvent.annotator_id)).scalar_one()
    assert pool.undo(annotator=annotator) is not None
    take(sqlite_store, audio, tmp_path / "in")
    assert pool.items()[0].class_id is None


def test_everything_that_is_not_a_plain_media_file_is_named_with_a_reason(sqlite_store, audio, tmp_path):
    """Unreadable and foreign files in an import: the rest is imported and nothing hangs."""
    root = write_files(
        tmp_path / "in", {"dog/a.wav": wav(1), "dog/page.wav": b"<html>" * 20, "dog/x.zip": b"PK\x03\x04.."}
    )
    (root / "loop").mkdir()
    (root / "loop" / "again").symlink_to(root)
    (root / "dog" / "link.wav").symlink_to(root / "dog" / "a.wav")
    os.mkfifo(root / "dog" / "pipe.wav")
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(str(root / "s"))
        report = take(sqlite_store, audio, root)
    reasons = dict(report.refused)
    assert report.imported == 1
    assert "symbolic link" in reasons["loop/again"] and "symbolic link" in reasons["dog/link.wav"]
    assert "FIFO" in reasons["dog/pipe.wav"] and "socket" in reasons["s"]
    assert "HTML" in reasons["dog/page.wav"] and "zip archive" in reasons["dog/x.zip"]
    assert len([json.loads(line) for line in Path(report.details).read_text().splitlines()]) == report.n_refused == 6


def test_an_unreadable_file_is_named(sqlite_store, audio, tmp_path, monkeypatch):
    """As root every file can be read, so the operating system's answer is made up."""
    root = write_files(tmp_path / "in", {"dog/a.wav": wav(1), "dog/b.wav": wav(2)})
    (root / "dog" / "b.wav").chmod(0)
    report = take(sqlite_store, audio, root)
    if os.geteuid() != 0:
        assert [name for name, _ in report.refused] == ["dog/b.wav"]
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("storage.importing.folder.os.scandir", closed)
    report = take(sqlite_store, audio, root)
    assert report.refused == [("dog/", "The folder cannot be read: Permission denied.")]


def test_a_file_that_takes_another_place_after_the_walk_is_not_followed(sqlite_store, audio, tmp_path):
    """The walk saw a file, the reader finds a link, a pipe or nothing: refused each time, without waiting."""
    root = write_files(tmp_path / "in", {name: wav(n) for n, name in enumerate(("a.wav", "b.wav", "c.wav", "d.wav"))})
    source = open_source(root)
    entries = list(source.entries())
    source.entries = lambda: iter(entries)  # type: ignore[method-assign]
    for name in ("a.wav", "b.wav", "c.wav"):
        (root / name).unlink()
    (root / "a.wav").symlink_to("/etc/passwd")
    os.mkfifo(root / "b.wav")
    report = run_import(sqlite_store, audio, source)
    assert report.imported == 1 and [name for name, _ in report.refused] == ["a.wav", "b.wav", "c.wav"]


def test_damaged_files_are_kept_as_unreadable_and_repaired_when_they_can_be_read(store, tmp_path):
    """The item is marked with the reason, the batch goes on, and it is never served."""
    project = create_project(store, "pictures", "image").id
    data = picture("PNG", size=(40, 40))
    write_files(tmp_path / "in", {"a.png": data[: len(data) // 2], "b.png": picture(seed=3)})
    report = take(store, project, tmp_path / "in")
    assert (report.imported, report.n_unreadable) == (2, 1)
    first, second = items(store, project)
    assert (first.condition, second.condition) == ("unreadable", "ok")
    assert "does not decode" in first.condition_note
    pool = Pool(store, project)
    assert pool.counts().waiting == 1
    with store.write() as connection:  # as if the decoder had only run out of time
        connection.execute(text("UPDATE items SET condition='unreadable' WHERE id=:id"), {"id": second.id})
        projections.refresh_states(connection, project, [second.id])
    assert pool.counts().waiting == 0
    take(store, project, tmp_path / "in")
    assert items(store, project)[1].condition == "ok"
    assert pool.counts().waiting == 1


def test_pictures_are_refused_in_a_sound_project(sqlite_store, audio, tmp_path):
    write_files(tmp_path / "in", {"a.png": picture()})
    report = take(sqlite_store, audio, tmp_path / "in")
    assert report.imported == 0 and "holds audio" in report.refused[0][1]


NAMES = [
    "<img src=x onerror=alert(1)>.wav", "![x](http:~~evil).wav", "[a](javascript:x).wav", ":red[x].wav", "$x$.wav",
    "a\u202egpj.wav", "\U0001f600.wav", "a\nb.wav", "=1+1.wav", "-x.wav", "@x.wav", "x" * 251 + ".wav", "a b\t.wav",
]  # fmt: skip


def test_names_are_kept_exactly(sqlite_store, audio, tmp_path):
    """Names are stored exactly as they are; the screens show them as text."""
    write_files(tmp_path / "in", {name: wav(n) for n, name in enumerate(NAMES)})
    take(sqlite_store, audio, tmp_path / "in")
    assert {item.name for item in items(sqlite_store, audio)} == set(NAMES)


def test_names_that_are_not_text_are_kept_readable(sqlite_store, audio, tmp_path):
    (tmp_path / "in").mkdir()
    with open(os.path.join(os.fsencode(tmp_path / "in"), b"caf\xe9.wav"), "wb") as file:
        file.write(wav())
    report = take(sqlite_store, audio, tmp_path / "in", storage="link")
    assert report.refused == [
        ("caf\\xe9.wav", "Its path is not valid text (UTF-8), so a link to it cannot be kept. Import it as a copy.")
    ]
    take(sqlite_store, audio, tmp_path / "in")
    assert [item.name for item in items(sqlite_store, audio)] == ["caf\\xe9.wav"]


def test_class_names_are_kept_exactly_and_never_become_paths(sqlite_store, audio, tmp_path):
    strange = ["CON", "..cat", "![x](http:evil)", "a b ", "*bold*", "=1+1"]
    write_files(tmp_path / "in", {f"{name}/{n}.wav": wav(n) for n, name in enumerate(strange)})
    take(sqlite_store, audio, tmp_path / "in")
    assert sorted(row.name for row in list_classes(sqlite_store, audio)) == sorted(strange)


def test_unknown_and_similar_classes_stop_a_folder_before_anything_is_written(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "p", "audio", ["dog"]).id
    write_files(tmp_path / "in", {"Dog/a.wav": wav(1), "cat/b.wav": wav(2), "dog/c.wav": wav(3)})
    with pytest.raises(InvalidInput, match="differs from 'dog' only in case"):
        take(sqlite_store, project, tmp_path / "in")
    assert items(sqlite_store, project) == []
    take(sqlite_store, project, tmp_path / "in", classes="match")
    assert [row.name for row in list_classes(sqlite_store, project)] == ["dog", "cat"]
    assert Pool(sqlite_store, project).counts().labeled == 3


def test_a_cancelled_import_keeps_what_it_committed_and_goes_on_later(store, project, tmp_path, monkeypatch):
    monkeypatch.setattr(import_run, "GROUP_FILES", 10)
    monkeypatch.setattr(import_run, "BATCH_FILES", 5)
    write_files(tmp_path / "in", {f"{k}.wav": wav(k) for k in range(200)})  # more than can be on its way at once

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


def test_a_full_disk_stops_the_import_with_a_sentence(sqlite_store, tmp_path, monkeypatch):
    project = create_project(sqlite_store, "p", "audio").id
    write_files(tmp_path / "in", {"a.wav": wav()})
    full = Examined(Measures("refused", DISK_FULL))
    monkeypatch.setattr("storage.media.probe_pool.ProbePool._examine", lambda self, jobs: [full] * len(jobs))
    with pytest.raises(StoreUnusable, match="disk is full"):
        take(sqlite_store, project, tmp_path / "in")
    with sqlite_store.read() as connection:
        assert connection.execute(select(ImportRun.status)).scalar_one() == "failed"


def test_limits_of_the_options_hold_in_an_import(sqlite_store, audio, tmp_path):
    write_files(tmp_path / "in", {"a.wav": wav(), "b.wav": wav(n_samples=80_000)})
    report = take(sqlite_store, audio, tmp_path / "in", limits=Limits(max_seconds=1.0))
    assert report.imported == 1 and "max_seconds" in report.refused[0][1]


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
def test_kill_9_during_an_import_loses_nothing_and_it_goes_on(sqlite_store, tmp_path, after, n_batch):
    """A real process, really killed; labels of committed groups are there, the rest comes with the next run. Batches of
    80 are packed."""
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


def test_memory_stays_flat_however_many_files_there_are(sqlite_store, tmp_path, monkeypatch):
    """Entries are streamed; ten times as many cost no more. The files behind them are made up."""
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


def test_an_import_whose_end_met_a_full_disk_is_not_running_for_ever(sqlite_store, tmp_path, monkeypatch):
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
