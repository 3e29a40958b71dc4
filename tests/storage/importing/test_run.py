"""The import of folders: accepted and refused files with reasons, repeated imports, and damaged files."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from core.errors import InvalidInput
from core.limits import Limits
from storage.database.schema import ItemName, LabelEvent
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import run_import
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.storage.importing.folder_imports import items, take
from tests.storage.made_media import picture, sound, wav, write_files


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


def test_labels_can_be_hidden_or_ignored(sqlite_store, tmp_path):
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


def test_test_folders_become_test_items_with_their_labels_and_are_never_served(store, project, tmp_path):
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


def test_an_undone_label_stays_undone_when_the_folder_is_imported_again(sqlite_store, audio, tmp_path):
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
    """Root can read every file, so the error of the operating system is simulated."""
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
    """The walk found a file, but the reader finds a link, a pipe or nothing: refused each time, without waiting."""
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
    """The item is marked with the reason and never served, and the batch continues."""
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
        ("caf\\xe9.wav", "Its path is not valid text (UTF-8), so a link to it cannot be stored. Import it as a copy.")
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


def test_limits_of_the_options_hold_in_an_import(sqlite_store, audio, tmp_path):
    write_files(tmp_path / "in", {"a.wav": wav(), "b.wav": wav(n_samples=80_000)})
    report = take(sqlite_store, audio, tmp_path / "in", limits=Limits(max_seconds=1.0))
    assert report.imported == 1 and "max_seconds" in report.refused[0][1]
