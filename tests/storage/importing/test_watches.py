"""Watched folders: only files that no longer change, each once, refusals reported once, on every database."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from core.errors import InvalidInput, NotFound
from storage.importing import watches
from storage.importing.watch_folder import FolderScanner
from storage.importing.watches import FileRow, WatchOptions
from storage.projects.projects import archive_project, create_project
from storage.rounds import candidate_buffer
from storage.rounds.candidate_buffer import Buffer
from tests.storage.made_media import picture, write_files


@pytest.fixture
def project(store) -> int:
    return create_project(store, "stream", "image", ["a", "b"]).id


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def names(arrivals) -> list[str]:
    return [arrival.entry.name for arrival in arrivals]


def aged(path: Path) -> None:
    """Set the modification time to yesterday. The change time of the inode cannot be set, so scans still wait for the
    settling time."""
    os.utime(path, (time.time() - 86_400,) * 2)


def test_a_file_is_imported_when_two_scans_found_it_unchanged(store, project, folder):
    scanner = FolderScanner(settle_seconds=0.0)
    (folder / "half.png").write_bytes(b"first half")
    assert scanner.scan(store, project, folder, 10) == [] and scanner.n_changing == 1
    with open(folder / "half.png", "ab") as file:
        file.write(b" and the second")
    assert scanner.scan(store, project, folder, 10) == [], "it grew since"
    aged(folder / "half.png")
    assert scanner.scan(store, project, folder, 10) == [], "its time changed since"
    assert names(scanner.scan(store, project, folder, 10)) == ["half.png"]


def test_the_settling_time_is_counted_from_the_last_change(store, project, folder, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("storage.importing.watch_folder.time.monotonic", lambda: clock[0])
    scanner = FolderScanner(settle_seconds=5.0)
    (folder / "a.png").write_bytes(b"x")
    for seconds, taken in ((0, []), (4.9, []), (5.1, ["a.png"])):
        clock[0] = 100.0 + seconds
        assert names(scanner.scan(store, project, folder, 10)) == taken


def test_unfinished_and_hidden_names_are_left_alone_and_links_are_refused(store, project, folder):
    write_files(folder, {".rsync.png.X1": b"x", "b.png.part": b"x", ".git/c.png": b"x", "d.png": picture()})
    (folder / "link.png").symlink_to(folder / "d.png")
    scanner = FolderScanner(settle_seconds=0.0)
    [refused] = scanner.scan(store, project, folder, 10)
    assert refused.entry.name == "link.png" and "symbolic link" in refused.entry.problem
    assert names(scanner.scan(store, project, folder, 10)) == ["d.png", "link.png"]


def test_a_file_with_an_outcome_is_not_read_again_until_it_changes(store, project, folder):
    write_files(folder, {"a.png": picture(seed=1), "b.png": picture(seed=2)})
    watches.start(store, project, folder)
    scanner = FolderScanner(settle_seconds=0.0)
    scanner.scan(store, project, folder, 10)
    found = scanner.scan(store, project, folder, 10)
    rows = [
        FileRow(
            path=one.path, name=one.entry.name, n_bytes=one.n_bytes, mtime_ns=one.mtime_ns, outcome=fate, reason=why
        )
        for one, fate, why in zip(found, ("taken", "refused"), ("", "no picture"), strict=True)
    ]
    watches.record(store, project, rows)
    watches.record(store, project, rows)
    assert watches.counts(store, project) == {"taken": 1, "duplicate": 0, "unreadable": 0, "refused": 1}
    assert [(name, why) for name, why, _ in watches.newest(store, project, "refused")] == [("b.png", "no picture")]
    fresh = FolderScanner(settle_seconds=0.0)  # another process
    assert fresh.scan(store, project, folder, 10) == [] and fresh.n_changing == 0
    (folder / "b.png").write_bytes(picture(seed=3))
    fresh.scan(store, project, folder, 10)
    assert names(fresh.scan(store, project, folder, 10)) == ["b.png"]


def test_a_scan_returns_at_most_a_limit_and_the_next_continues(store, project, folder):
    write_files(folder, {f"{i}.png": picture(seed=i) for i in range(7)})
    scanner = FolderScanner(settle_seconds=0.0)
    assert scanner.scan(store, project, folder, 3) == []
    assert names(scanner.scan(store, project, folder, 3)) == ["0.png", "1.png", "2.png"]
    assert scanner.n_changing == 7


def test_a_watch_is_a_row_that_starts_stops_and_ends_at_its_limit(store, project, folder):
    assert watches.get(store, project) is None
    with pytest.raises(NotFound, match="does not watch a folder"):
        watches.stop(store, project)
    row = watches.start(store, project, folder, WatchOptions(buffer_size=300, limit=2))
    assert (row.active, row.folder, row.remaining) == (True, str(folder), 2)
    assert [one.project_id for one in watches.active_here(store)] == [project]
    watches.save_buffer(store, project, Buffer(slots=((1, (4, 5)),), last_item_id=5, batch=33).as_dict())
    for n, left in ((1, 1), (2, 0)):
        file = FileRow(path=f"/in/{n}", name=f"{n}", n_bytes=1, mtime_ns=1, outcome="taken")
        watches.record(store, project, [file])
        assert watches.get(store, project).remaining == left
    assert not watches.get(store, project).active and watches.active_here(store) == []
    again = watches.start(store, project, folder, WatchOptions(buffer_size=300))
    assert Buffer.of(again.buffer).item_ids == [4, 5], "the buffer belongs to the project and is kept"
    assert watches.start(store, project, folder, WatchOptions(buffer_size=400)).buffer == {}
    assert candidate_buffer.candidates(store, project) is None
    archive_project(store, project)
    assert watches.active_here(store) == []


@pytest.mark.parametrize("place", ["home", "home/watching", "."])
def test_the_stores_own_folders_are_not_watched(store, project, tmp_path, place):
    (tmp_path / "home" / "watching").mkdir()
    with pytest.raises(InvalidInput, match="Winnow's own files"):
        watches.start(store, project, tmp_path / place)
    with pytest.raises(InvalidInput, match="cannot be read"):
        watches.start(store, project, tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is not a folder"):
        watches.start(store, project, tmp_path / "file")
    assert watches.get(store, project) is None
