"""Windows in exports: start and end in every row, back in the same place, and label tracks for other programs."""

from __future__ import annotations

import csv
import json
import uuid
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import soundfile
from sqlalchemy import select

from storage.database.schema import Item
from storage.database.store import Store
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.exporting.span_tables import LabeledSpan, merged
from storage.exporting.verify import verify_folder
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, locator, run_import
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.media.windows import WindowOptions
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from storage.projects.recordings import list_recordings

RATE = 8_000
CLASSES = ["owl", "fox"]
GIVEN = ["owl", "owl", "fox", None, "owl", "owl"]  # of six windows of one second


@pytest.fixture
def labeled(store: Store, tmp_path: Path, examined_here: None) -> int:
    """A recording of 5.5 s in six windows, five of them labeled, and a clip of half a second."""
    project = create_project(store, "night", "audio", CLASSES).id
    rng = np.random.default_rng(0)
    (tmp_path / "in" / "site").mkdir(parents=True)
    soundfile.write(tmp_path / "in" / "site" / "a.wav", rng.uniform(-0.5, 0.5, 44_000), RATE, subtype="PCM_24")
    soundfile.write(tmp_path / "in" / "clip.wav", rng.uniform(-0.5, 0.5, 4_000), RATE)
    options = ImportOptions(windows=WindowOptions(seconds=1), labels="ignore")
    run_import(store, project, open_source(tmp_path / "in"), options)
    ids = {row.name: row.id for row in list_classes(store, project)}
    with store.read() as connection:
        rows = connection.execute(select(Item.id, Item.recording_sha256).order_by(Item.id)).all()
    windows = [row.id for row in rows if row.recording_sha256]
    clip = next(row.id for row in rows if not row.recording_sha256)
    pairs = [*zip(windows, GIVEN, strict=True), (clip, "fox")]
    events = [
        LabelInput(uuid=str(uuid.uuid4()), item_id=item, kind="label", class_id=ids[name])
        for item, name in pairs
        if name
    ]
    answers = Pool(store, project).apply(events, annotator=annotator_named(store, "ada").id)
    assert all(answer.accepted for answer in answers)
    return project


def items(store: Store, project: int) -> list:
    columns = (Item.sha256, Item.name, Item.recording_sha256, Item.first_frame, Item.last_frame, Item.n_bytes)
    with store.read() as connection:
        return sorted(connection.execute(select(*columns).where(Item.project_id == project)).all())


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_every_row_has_its_start_and_end(store, labeled, tmp_path, form):
    export_project(store, labeled, tmp_path / "out", ExportOptions(format=form))
    table = tmp_path / "out" / f"labels.{form}"
    if form == "csv":
        rows = list(csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines()))
    elif form == "jsonl":
        rows = [json.loads(line) for line in table.read_text().splitlines()]
    else:
        rows = pyarrow.parquet.read_table(table).to_pylist()
    found = sorted((row["recording"] or "", float(row["start"]), float(row["end"]), row["label"]) for row in rows)
    assert found == [
        ("", 0.0, 0.5, "fox"), ("site/a.wav", 0.0, 1.0, "owl"), ("site/a.wav", 1.0, 2.0, "owl"),
        ("site/a.wav", 2.0, 3.0, "fox"), ("site/a.wav", 4.0, 5.0, "owl"), ("site/a.wav", 5.0, 5.5, "owl"),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "folders", "label-studio", "hugging-face", "audacity"])
def test_windows_are_imported_as_the_same_items_with_their_labels(store, labeled, tmp_path, form):
    options = ExportOptions(format=form, media=form not in ("csv", "parquet"))
    export_project(store, labeled, tmp_path / "out", options)
    assert verify_folder(tmp_path / "out").problems == []
    project = create_project(store, "again", "audio").id
    report = run_import(store, project, open_source(tmp_path / "out", locate=locator(store)), ImportOptions())
    assert (report.imported, report.labels, report.n_refused) == (6, 6, 0)
    wanted = [row for row in items(store, labeled) if row.name != "site/a.wav 00:00:03.000-00:00:04.000"]
    assert items(store, project) == wanted
    assert [row.sha256 for row in list_recordings(store, project)] == [
        row.sha256 for row in list_recordings(store, labeled)
    ]


def test_in_another_store_the_files_of_windows_become_clips_with_their_labels(sqlite_store, labeled, store, tmp_path):
    export_project(store, labeled, tmp_path / "out", ExportOptions(format="csv", media=True))
    other = Store.open(f"sqlite:///{tmp_path / 'other' / 'other.sqlite'}", tmp_path / "other")
    project = create_project(other, "again", "audio").id
    report = run_import(other, project, open_source(tmp_path / "out", locate=locator(other)), ImportOptions())
    assert (report.imported, report.labels, report.recordings) == (6, 6, 0)
    other.close()


def test_a_label_track_joins_adjacent_windows_of_one_class(store, labeled, tmp_path):
    export_project(store, labeled, tmp_path / "out", ExportOptions(format="audacity"))
    tracks = {path.name: path.read_text() for path in (tmp_path / "out" / "tracks").iterdir()}
    assert tracks == {
        "site__a.wav.txt": "0.000000\t2.000000\towl\n2.000000\t3.000000\tfox\n4.000000\t5.500000\towl\n",
        "clip.wav.txt": "0.000000\t0.500000\tfox\n",
    }


def test_a_selection_table_has_the_columns_that_raven_requires(store, labeled, tmp_path):
    export_project(store, labeled, tmp_path / "out", ExportOptions(format="raven"))
    table = tmp_path / "out" / "tracks" / "site__a.wav.Table.1.selections.txt"
    rows = list(csv.DictReader(table.read_text().splitlines(), delimiter="\t"))
    assert [(row["Selection"], row["View"], row["Channel"]) for row in rows] == [
        (str(number), "Spectrogram 1", "1") for number in (1, 2, 3)
    ]
    assert [(float(row["Begin Time (s)"]), float(row["End Time (s)"]), row["Annotation"]) for row in rows] == [
        (0.0, 2.0, "owl"), (2.0, 3.0, "fox"), (4.0, 5.5, "owl"),
    ]  # fmt: skip
    assert {(row["Low Freq (Hz)"], row["High Freq (Hz)"], row["Begin File"]) for row in rows} == {
        ("0", "4000", "a.wav")
    }


def test_overlapping_windows_join_by_class_and_other_classes_stay_apart():
    spans = [LabeledSpan(0, 2, "a", 0.5), LabeledSpan(1, 3, "b"), LabeledSpan(2, 4, "a", 1.0), LabeledSpan(9, 10, "a")]
    assert merged(reversed(spans)) == [LabeledSpan(0, 4, "a", 0.75), LabeledSpan(1, 3, "b"), LabeledSpan(9, 10, "a")]


def test_a_table_with_starts_and_ends_labels_parts_of_a_recording(sqlite_store, tmp_path, examined_here):
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "a.flac", rng.uniform(-0.5, 0.5, 80_000), RATE)
    rows = "path,start,end,label,group\na.flac,0,1.5,owl,north\na.flac,4,5,fox,north\na.flac,9.5,11,fox,south\n"
    (tmp_path / "parts.csv").write_text(rows)
    project = create_project(sqlite_store, "night", "audio").id
    options = ImportOptions(skip_problems=True)
    report = run_import(sqlite_store, project, open_source(tmp_path / "parts.csv"), options)
    assert (report.imported, report.labels, report.n_refused) == (2, 2, 1)
    assert "ends after 80,000 frames (10.0 s)" in report.refused[0][1]
    with sqlite_store.read() as connection:
        found = connection.execute(select(Item.first_frame, Item.last_frame, Item.group_name).order_by(Item.id)).all()
    assert found == [(0, 11_999, "north"), (32_000, 39_999, "north")]


def test_starts_and_ends_of_a_table_of_cut_files_are_not_parts(sqlite_store, tmp_path, examined_here):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", rng.uniform(-0.5, 0.5, 8_000), RATE)
    (tmp_path / "cut.csv").write_text("slice_file_name,start,end,class\na.wav,10,11,owl\nb.wav,20,21,fox\n")
    project = create_project(sqlite_store, "cut", "audio").id
    report = run_import(sqlite_store, project, open_source(tmp_path / "cut.csv"), ImportOptions())
    assert (report.imported, report.recordings) == (2, 0)
    assert any("are not used: every row names a different file" in warning for warning in report.warnings)
