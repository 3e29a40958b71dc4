"""Watched folders end to end: complete files, each once, refusals reported once, also if a process is killed."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from app.cli.main import main
from app.rounds import requests as round_requests
from app.rounds import steps
from app.rounds.stored_round import StoredRound
from app.worker import folder_watcher
from app.worker.folder_watcher import FolderWatcher, fill_buffer
from core.rounds import stream_buffer
from core.types import ignore
from storage.database.store import Store
from storage.importing import watch_folder, watches
from storage.importing.watches import WatchOptions
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectSettings, create_project
from storage.rounds import candidate_buffer
from storage.rounds.candidate_buffer import Buffer
from tests.round_pools import draw_project, picture

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(sqlite_home, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(sqlite_home))
    return sqlite_home


@pytest.fixture
def store(home) -> Store:
    with Store.open(home=home) as opened:
        yield opened


@pytest.fixture
def project(store) -> int:
    return create_project(store, "stream", "image", ["a", "b"], settings=ProjectSettings(preset="smoke")).id


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def until(holds: Callable[[], bool], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.mark.slow
def test_a_watched_folder_cuts_recordings_like_the_project(home, folder, capsys):
    soundfile.write(folder / "night.wav", np.random.default_rng(0).uniform(-0.5, 0.5, 32_000), 8_000)
    (folder / "sub").mkdir()
    (folder / "sub" / "copy.wav").write_bytes((folder / "night.wav").read_bytes())
    with Store.open(home=home) as store:
        project = create_project(store, "night", "audio", settings=ProjectSettings(preset="smoke")).id
    for path in (folder / "night.wav", folder / "sub" / "copy.wav"):
        os.utime(path, (time.time() - 86_400,) * 2)
    assert main(["watch", "night", str(folder), "--windows", "1", "--hop", "0.5", "--limit", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["windows"] == {"seconds": 1.0, "hop": 0.5} and (told["taken"], told["duplicate"]) == (1, 1)
    with Store.open(home=home) as store:
        windows = Pool(store, project).items()
        assert len(windows) == 7 and {item.recording_sha256 for item in windows} != {None}
    assert main(["watch", "night"]) == 0
    assert "cut into windows of 1 s, one every 0.5 s." in capsys.readouterr().out


def test_new_files_become_items_once_and_refusals_are_reported_once(store, project, folder):
    for i in range(4):
        (folder / f"{i}.png").write_bytes(picture(i % 3, i))
    (folder / "again.png").write_bytes(picture(0, 0))
    (folder / "page.png").write_bytes(b"<html>" * 9)
    watcher = FolderWatcher(store, settle_seconds=0.0)
    watch = watches.start(store, project, folder)
    assert watcher.scan(watch).moving == 6
    assert watcher.scan(watch).files == 6
    assert watches.counts(store, project) == {"taken": 4, "duplicate": 1, "unreadable": 0, "refused": 1}
    assert Pool(store, project).counts().total == 4
    for _ in range(2):
        assert not FolderWatcher(store, settle_seconds=0.0).scan(watch).busy
    [(name, reason, _)] = watches.newest(store, project, "refused")
    assert name == "page.png" and reason
    assert watches.get(store, project).looked_at is not None


def test_a_missing_folder_is_a_problem_until_it_exists_again(store, project, folder):
    watch = watches.start(store, project, folder)
    folder.rmdir()
    watcher = FolderWatcher(store, settle_seconds=0.0)
    assert not watcher.scan(watch).busy
    assert "cannot be read" in watches.get(store, project).problem
    folder.mkdir()
    watcher.scan(watch)
    assert watches.get(store, project).problem == ""


def test_only_one_process_serves_a_watch(store, project, folder):
    watch = watches.start(store, project, folder)
    with folder_watcher._exclusive(store, project) as mine:
        assert mine and FolderWatcher(store).scan(watch) is None
    assert FolderWatcher(store).scan(watch) is not None


SERVE = """
import sys, time
from app.worker import folder_watcher as watching
from storage.importing import watches
from storage.database.store import Store
watching.FILES_AT_ONCE = 20
with Store.open() as store:
    watcher = watching.FolderWatcher(store, settle_seconds=0.0)
    print("ready", flush=True)
    while True:
        watcher.scan(watches.get(store, int(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_9_in_the_middle_and_a_restart_duplicate_and_lose_nothing(store, project, folder, home):
    """60 files, a server killed while it imports them: every file is one item, every item once in the buffer."""
    watches.start(store, project, folder, WatchOptions(buffer_size=100))
    for i in range(60):
        (folder / f"{i}.png").write_bytes(picture(i % 3, i))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for some in (1, 60):
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(project)], cwd=ROOT, env=environment, stdout=subprocess.PIPE
        )
        try:
            until(lambda n=some: Pool(store, project).counts().total >= n, f"{some} files were not taken in")
            if some == 60:
                until(lambda: watches.counts(store, project)["taken"] == 60, "not all files were written down")
                until(lambda: len(Buffer.of(watches.get(store, project).buffer).item_ids) >= 55, "the buffer lags")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
    assert Pool(store, project).counts().total == 60
    assert sum(watches.counts(store, project).values()) == 60
    buffer = Buffer.of(watches.get(store, project).buffer)
    rest = candidate_buffer.next_waiting(store, project, buffer.last_item_id, 100)
    all_ids = [item.id for item in Pool(store, project).items(limit=100)]
    assert sorted([*buffer.item_ids, *rest]) == sorted(all_ids)


def test_rounds_of_a_watched_project_choose_from_a_bounded_buffer_and_replays_from_the_same(store, folder):
    drawn = draw_project(store, 160)
    watches.start(store, drawn.project_id, folder, WatchOptions(buffer_size=100))
    assert fill_buffer(store, drawn.project_id, most=100) == 160 // stream_buffer.slot_size(100)
    offered = candidate_buffer.candidates(store, drawn.project_id)
    assert offered is not None and len(offered) <= 100 < Pool(store, drawn.project_id).counts().waiting
    row = round_requests.request_round(store, drawn.project_id)
    results = {"snapshot": steps.take_snapshot(StoredRound(store, row, {}, ignore)).to_dict()}
    context = StoredRound(store, row, results, ignore).context
    assert set(context.snapshot.item_ids[context.offered]) == set(offered)
    later = dataclasses.replace(row, constraint=dict(row.constraint))
    drawn.label(offered[:5].tolist())
    fill_buffer(store, drawn.project_id)
    replayed = StoredRound(store, later, results, ignore).context
    assert np.array_equal(replayed.offered, context.offered), "the candidates are stored with the round"
    watches.stop(store, drawn.project_id)
    assert candidate_buffer.candidates(store, drawn.project_id) is None


def test_labeled_items_leave_the_buffer_with_the_next_batch(store, folder):
    drawn = draw_project(store, 140)
    watches.start(store, drawn.project_id, folder, WatchOptions(buffer_size=100))
    fill_buffer(store, drawn.project_id, most=10)
    gone = Buffer.of(watches.get(store, drawn.project_id).buffer).item_ids[:4]
    drawn.label(gone)
    fill_buffer(store, drawn.project_id, most=10)
    assert not set(gone) & set(Buffer.of(watches.get(store, drawn.project_id).buffer).item_ids)


def test_the_command_line_imports_a_number_of_files_and_ends(project, folder, store, capsys, monkeypatch):
    monkeypatch.setattr(folder_watcher, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(folder_watcher, "SCAN_SECONDS", 0.05)
    for i in range(5):
        (folder / f"{i}.png").write_bytes(picture(i % 3, i))
    assert main(["watch", "stream", str(folder), "--limit", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["taken"], printed["status"]) == (3, "stopped") and Pool(store, project).counts().total == 3
    assert main(["watch", "stream"]) == 0
    assert "is no longer watched: 3 imported" in capsys.readouterr().out
    assert main(["watch", "stream", str(folder / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["watch", "stream", str(folder), "--buffer", "5"]) == 1
    assert "use 100 to 100,000" in capsys.readouterr().err
    assert main(["watch", "stream", "--stop"]) == 0


@pytest.mark.slow
def test_a_worker_serves_the_watch_and_a_slow_writer_is_waited_for(store, project, folder, monkeypatch):
    """The thread beside a worker's rounds: a file that keeps growing is imported once, complete. The settling time is
    measured by a clock of the test, so no part of the file stays unchanged for long enough, even on a slow machine."""
    data, clock = picture(0, 0), [0.0]
    monkeypatch.setattr(watch_folder, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    watches.start(store, project, folder)
    thread = folder_watcher.WatchThread(store, seconds=0.05)
    thread.watcher = FolderWatcher(store, settle_seconds=0.6)
    thread.start()
    try:
        with open(folder / "slow.png", "wb") as file:
            for part in range(0, len(data), -(-len(data) // 6)):
                file.write(data[part : part + -(-len(data) // 6)])
                file.flush()
                clock[0] += 0.5
                time.sleep(0.1)

        def taken() -> bool:
            clock[0] += 0.1
            return watches.counts(store, project)["taken"] == 1

        until(taken, "the file was not taken in")
    finally:
        thread.end()
    [item] = Pool(store, project).items()
    assert item.n_bytes == len(data) and sum(watches.counts(store, project).values()) == 1
