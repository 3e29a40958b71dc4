"""Recordings cut into windows: separate items whose bytes are stored once, in import, labeling and deletion."""

from __future__ import annotations

import io
import os
import uuid
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sqlalchemy import func, select

from core.errors import NotFound
from core.limits import Limits
from storage.database.schema import Item
from storage.database.store import Store
from storage.database.tables.recordings import Recording
from storage.importing.open import open_source
from storage.importing.preview import preview
from storage.importing.run import ImportOptions, locator, run_import
from storage.importing.windows.kept import kept_windows
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.media import shared
from storage.media.checks import verify_items
from storage.media.folder import MediaChanged, MediaMissing
from storage.media.windows import Span, WindowOptions, window_key
from storage.projects import deletion
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.disk_use import disk_use
from storage.projects.projects import create_project, get_project
from storage.projects.recordings import find_recording, list_recordings, windows_of
from tests.storage.pools import read_item

RATE = 8_000
WINDOWS = WindowOptions(seconds=1.0)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * RATE)).astype(np.float32)


def write(path: Path, values: np.ndarray, subtype: str = "PCM_16") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, values, RATE, subtype=subtype)
    return path


def take(store: Store, project_id: int, path: Path, windows: WindowOptions | None = WINDOWS, **options):
    source = open_source(path, locate=locator(store))
    return run_import(store, project_id, source, ImportOptions(windows=windows, **options))


def items(store: Store, project_id: int) -> list:
    with store.read() as connection:
        query = select(Item.__table__).where(Item.project_id == project_id).order_by(Item.id)
        return list(connection.execute(query))


@pytest.fixture
def project(store: Store, examined_here: None) -> int:
    return create_project(store, "night", "audio", ["owl", "none"]).id


@pytest.fixture
def night(sqlite_store: Store, examined_here: None) -> int:
    return create_project(sqlite_store, "night", "audio", ["owl", "none"]).id


def test_a_recording_becomes_windows_and_its_bytes_are_kept_once(store, project, tmp_path):
    values = noise(3.5)
    write(tmp_path / "in" / "a.flac", values)
    report = take(store, project, tmp_path / "in")
    assert (report.imported, report.recordings) == (4, 1)
    rows = items(store, project)
    recording = list_recordings(store, project)[0]
    assert [(row.first_frame, row.last_frame) for row in rows] == [
        (0, 7_999), (8_000, 15_999), (16_000, 23_999), (24_000, 27_999),
    ]  # fmt: skip
    assert [row.sha256 for row in rows] == [
        window_key(Span(recording.sha256, row.first_frame, row.last_frame)) for row in rows
    ]
    assert rows[3].name == "a.flac 00:00:03.000-00:00:03.500" and rows[3].seconds == 0.5
    assert {(row.media_type, row.condition, row.sample_rate, row.channels) for row in rows} == {
        ("audio/wav", "ok", RATE, 1)
    }
    assert [path.name for path in store.media.root.glob("??/*")] == [recording.sha256]
    assert (recording.n_frames, recording.n_windows, recording.media_type) == (28_000, 4, "audio/flac")
    used = disk_use(store, project)
    assert (used.media_files, used.media_bytes) == (1, recording.n_bytes)
    whole = soundfile.read(tmp_path / "in" / "a.flac", dtype="int16")[0]
    read = shared.reader(store, project)
    for row in rows:
        data = read(row.sha256)
        assert data == read_item(store, row.id) and len(data) == row.n_bytes
        assert np.array_equal(
            soundfile.read(io.BytesIO(data), dtype="int16")[0], whole[row.first_frame : row.last_frame + 1]
        )


def test_a_second_import_adds_nothing_and_other_windows_share_the_recording(store, project, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(4))
    take(store, project, tmp_path / "in")
    again = take(store, project, tmp_path / "in")
    assert (again.imported, again.already) == (0, 4)
    overlapping = take(store, project, tmp_path / "in", WindowOptions(seconds=1, hop=0.5))
    assert (overlapping.imported, overlapping.already) == (3, 4)
    assert [row.n_windows for row in list_recordings(store, project)] == [7]


def test_a_file_that_fits_into_one_window_stays_a_clip_with_its_label(sqlite_store, night, tmp_path):
    write(tmp_path / "in" / "owl" / "short.wav", noise(0.9))
    write(tmp_path / "in" / "none" / "long.wav", noise(2.0, 1))
    report = take(sqlite_store, night, tmp_path / "in")
    assert (report.imported, report.recordings, report.labels) == (3, 1, 1)
    clip = next(row for row in items(sqlite_store, night) if row.recording_sha256 is None)
    assert clip.name == "owl/short.wav"
    assert ("none/long.wav", "Its label is that of the whole recording; its windows have none.") in report.notes


def test_windows_are_labeled_leased_and_exported_like_files(store, project, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(4))
    take(store, project, tmp_path / "in")
    pool, who = Pool(store, project), annotator_named(store, "ada").id
    served = pool.next_to_label(annotator=who, holder="tab", limit=2)
    assert len({item.id for item in served}) == 2
    owl = list_classes(store, project)[0].id
    answers = pool.apply(
        [LabelInput(uuid=str(uuid.uuid4()), item_id=served[0].id, kind="label", class_id=owl)], annotator=who
    )
    assert answers[0].accepted
    states = {
        one.item_id: one.class_id for one in windows_of(store, project, list_recordings(store, project)[0].sha256)
    }
    assert states[served[0].id] == owl and list(states.values()).count(None) == 3
    snapshot = pool.snapshot()
    assert list(snapshot.hashes) == [row.sha256 for row in items(store, project)]


def test_a_linked_recording_that_changed_marks_all_its_windows_and_recovers(sqlite_store, night, tmp_path):
    path = write(tmp_path / "in" / "a.wav", noise(3))
    take(sqlite_store, night, tmp_path / "in", storage="link")
    rows = items(sqlite_store, night)
    assert {row.link_path for row in rows} == {str(path)}
    data = path.read_bytes()
    path.write_bytes(data[:-20_000])  # shorter: the last window lies beyond the end
    with pytest.raises(MediaChanged):
        read_item(sqlite_store, rows[2].id)
    assert {row.condition for row in items(sqlite_store, night)} == {"changed"}
    assert Pool(sqlite_store, night).counts().waiting == 0
    path.write_bytes(data)
    assert len(read_item(sqlite_store, rows[0].id)) == rows[0].n_bytes
    assert {row.condition for row in items(sqlite_store, night)} == {"ok"}
    path.unlink()
    with pytest.raises(MediaMissing):
        read_item(sqlite_store, rows[1].id)
    assert verify_items(sqlite_store, night).missing == 3


def test_a_recording_is_hashed_once_per_process_and_state(sqlite_store, night, tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.wav", noise(10))
    take(sqlite_store, night, tmp_path / "in")
    store = Store.open(sqlite_store.url, sqlite_store.home)
    checked = []
    monkeypatch.setattr(type(store.media), "check", lambda self, *a: checked.append(a))
    read = shared.reader(store, night)
    for row in items(store, night):
        read(row.sha256)
    assert len(checked) == 1
    path = store.media.path(list_recordings(store, night)[0].sha256)
    os.utime(path, ns=(1, 1))
    read(items(store, night)[0].sha256)
    assert len(checked) == 2
    store.close()


def test_deleting_a_recording_deletes_its_windows_with_their_labels_and_its_bytes(store, project, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(3))
    write(tmp_path / "in" / "b.wav", noise(3, 1))
    take(store, project, tmp_path / "in")
    rows = items(store, project)
    label = LabelInput(
        uuid=str(uuid.uuid4()), item_id=rows[0].id, kind="label", class_id=list_classes(store, project)[0].id
    )
    Pool(store, project).apply([label], annotator=annotator_named(store, "ada").id)
    recording = find_recording(store, project, "a.wav")
    assert recording.n_labeled == 1
    ids = [one.item_id for one in windows_of(store, project, recording.sha256)]
    some = deletion.plan_deletion(store, project, ids[:2])
    assert (some.items, some.events, some.media_removed) == (2, 1, 0), "the third window needs the file"
    plan = deletion.plan_deletion(store, project, ids)
    assert (plan.items, plan.events, plan.media_removed, plan.media_bytes) == (3, 1, 1, recording.n_bytes)
    deletion.run_deletion(store, deletion.request_deletion(store, project, "night", ids).id)
    assert [row.name for row in list_recordings(store, project)] == ["b.wav"]
    assert len(items(store, project)) == 3 and not store.media.has(recording.sha256)
    with pytest.raises(NotFound):
        find_recording(store, project, "a.wav")
    deletion.run_deletion(store, deletion.request_deletion(store, project, "night").id)
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(Recording)).scalar_one() == 0


def test_a_recording_of_two_projects_stays_when_one_is_deleted(sqlite_store, night, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(2))
    other = create_project(sqlite_store, "other", "audio").id
    take(sqlite_store, night, tmp_path / "in")
    take(sqlite_store, other, tmp_path / "in")
    sha256 = list_recordings(sqlite_store, other)[0].sha256
    plan = deletion.plan_deletion(sqlite_store, night)
    assert (plan.media_removed, plan.media_shared) == (0, 1)
    deletion.run_deletion(sqlite_store, deletion.request_deletion(sqlite_store, night, "night").id)
    assert sqlite_store.media.has(sha256)
    assert len(read_item(sqlite_store, items(sqlite_store, other)[0].id)) > 0


def test_a_preview_says_how_many_windows_an_import_makes(sqlite_store, night, tmp_path):
    for name, seconds in (("a.wav", 20.3), ("b.flac", 7.05), ("short.wav", 0.9)):
        write(tmp_path / "in" / name, noise(seconds))
    for windows in (WINDOWS, WindowOptions(seconds=2.0, hop=0.5)):
        seen = preview(open_source(tmp_path / "in"), None, kind="audio", windows=windows)
        project = create_project(sqlite_store, f"hop {windows.step}", "audio").id
        done = take(sqlite_store, project, tmp_path / "in", windows)
        assert (seen.n_recordings, seen.n_windows + 1) == (2, done.imported)
        assert seen.cut == f"2 recordings → {seen.n_windows} windows of {windows.seconds:g} s"
        assert kept_windows(get_project(sqlite_store, project)) == windows, "a watched folder cuts like the import"
    write(tmp_path / "coded" / "c.ogg", noise(9.0), "VORBIS")
    assert preview(open_source(tmp_path / "coded"), None, windows=WINDOWS).cut.startswith("1 recording → about ")


def test_a_preview_names_files_that_an_import_without_windows_refuses(sqlite_store, night, tmp_path):
    write(tmp_path / "in" / "long.flac", noise(61))
    write(tmp_path / "in" / "large.wav", noise(20, 1))
    write(tmp_path / "in" / "short.wav", noise(2, 2))
    limits = Limits(max_seconds=60, max_file_bytes=300_000)
    seen = preview(open_source(tmp_path / "in"), None, kind="audio", limits=limits)
    done = take(sqlite_store, night, tmp_path / "in", None, limits=limits)
    assert {one.name for one in seen.problems} == {name for name, _ in done.refused} == {"long.flac", "large.wav"}
    assert all("--windows" in one.problem for one in seen.problems)
    assert (seen.n_long, round(seen.longest_seconds)) == (1, 61), "windows are still suggested"
    cut = preview(open_source(tmp_path / "in"), None, kind="audio", limits=limits, windows=WINDOWS)
    assert not cut.problems and cut.cut == "3 recordings → 83 windows of 1 s"


def test_limits_of_recordings_and_their_windows(sqlite_store, night, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(3))
    report = take(sqlite_store, night, tmp_path / "in", limits=Limits(max_windows=2))
    assert report.n_refused == 1 and "3 windows; the limit is 2 (max_windows)" in report.refused[0][1]
    report = take(sqlite_store, night, tmp_path / "in", limits=Limits(max_recording_bytes=1_000))
    assert "max_recording_bytes" in report.refused[0][1]
    limits = Limits(max_seconds=1.5, max_file_bytes=20_000)
    assert take(sqlite_store, night, tmp_path / "in", limits=limits).imported == 3, "limits of clips do not apply"
    refused = take(sqlite_store, night, tmp_path / "in", None, limits=Limits(max_seconds=1.5)).refused
    assert "Import it with windows" in refused[0][1]
    refused = take(sqlite_store, night, tmp_path / "in", None, limits=limits).refused
    assert "48,044 bytes; the limit is 20,000 (max_file_bytes)" in refused[0][1] and "--windows" in refused[0][1]


def test_long_clips_are_imported_with_the_suggestion_to_cut_them(sqlite_store, night, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(61))
    write(tmp_path / "in" / "b.wav", noise(2, 1))
    report = take(sqlite_store, night, tmp_path / "in", None)
    assert report.imported == 2 and any(
        "1 file is longer than 60 s (up to about 61 s)" in one for one in report.warnings
    )


@pytest.mark.parametrize(("rate", "channels", "subtype"), [(192_000, 8, "FLOAT"), (8_000, 1, "PCM_U8")])
def test_rates_channels_and_depths_of_field_recorders(sqlite_store, night, tmp_path, rate, channels, subtype):
    (tmp_path / "in").mkdir()
    values = np.random.default_rng(0).uniform(-0.5, 0.5, (2 * rate, channels))
    soundfile.write(tmp_path / "in" / "a.wav", values, rate, subtype=subtype)
    assert take(sqlite_store, night, tmp_path / "in", WindowOptions(seconds=0.5)).imported == 4
    row = items(sqlite_store, night)[3]
    assert (row.sample_rate, row.channels, row.seconds) == (rate, channels, 0.5)
    found, found_rate = soundfile.read(io.BytesIO(read_item(sqlite_store, row.id)), always_2d=True)
    whole = soundfile.read(tmp_path / "in" / "a.wav", always_2d=True)[0]
    assert found_rate == rate and np.array_equal(found, whole[3 * rate // 2 :])


def test_ten_thousand_windows_of_one_file_are_served_without_a_repeat(sqlite_store, night, tmp_path):
    write(tmp_path / "in" / "a.wav", noise(1_000))
    report = take(sqlite_store, night, tmp_path / "in", WindowOptions(seconds=0.1))
    assert report.imported == 10_000
    pool, who = Pool(sqlite_store, night), annotator_named(sqlite_store, "ada").id
    assert pool.counts().waiting == 10_000
    served = [item for tab in range(4) for item in pool.next_to_label(annotator=who, holder=f"tab{tab}", limit=50)]
    assert len({item.id for item in served}) == 200


def test_hours_of_silence_are_windows_like_any_other(sqlite_store, night, tmp_path):
    path = tmp_path / "in" / "silence.flac"
    path.parent.mkdir()
    with soundfile.SoundFile(path, "w", 1_000, 1, subtype="PCM_16") as file:
        for _ in range(3):
            file.write(np.zeros(3_600_000, np.int16))
    report = take(sqlite_store, night, path.parent, WindowOptions(seconds=30))
    assert (report.imported, report.n_duplicates) == (360, 0), "equal sound at another place is another item"
    data = soundfile.read(io.BytesIO(read_item(sqlite_store, items(sqlite_store, night)[-1].id)), dtype="int16")[0]
    assert len(data) == 30_000 and not data.any()


def test_a_damaged_recording_is_examined_in_a_child_and_reported(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "night", "audio").id
    (tmp_path / "in").mkdir()
    good = write(tmp_path / "in" / "good.flac", noise(20)).read_bytes()
    (tmp_path / "in" / "cut.flac").write_bytes(good[: len(good) // 2])
    (tmp_path / "in" / "head.flac").write_bytes(good[:60])
    report = take(sqlite_store, project, tmp_path / "in")
    assert report.recordings == 2 and 27 < report.imported < 33
    assert any(name == "cut.flac" and "states 20.0 s" in note for name, note in report.notes)
    assert [name for name, _ in report.unreadable] == ["head.flac"]
