"""Groups: random splits keep them together, and groups on both sides are reported."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sqlalchemy import select

from core.errors import InvalidInput
from core.rounds.summary import set_aside
from storage.database.schema import Item
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.groups import group_column, groups_on_both_sides
from storage.labeling.pool import Pool
from storage.labeling.random_split import is_test_group
from storage.media.windows import WindowOptions
from storage.projects.projects import create_project
from tests.storage.made_media import wav

SPEAKERS = [f"speaker {number}" for number in range(12)]


def clips(folder: Path, rows: list[str], header: str = "path,label,group") -> Path:
    """A manifest with a clip for every row; rows are the cells after the path."""
    folder.mkdir(parents=True)
    lines = [header]
    for number, row in enumerate(rows):
        (folder / f"{number:03d}.wav").write_bytes(wav(number))
        lines.append(f"{number:03d}.wav,{row}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    return folder


def sides(store: Store, project: int) -> dict[str, set[bool]]:
    with store.read() as connection:
        query = select(Item.id, group_column().label("group"), Item.held_out).where(Item.project_id == project)
        rows = connection.execute(query).all()
    found: dict[str, set[bool]] = defaultdict(set)
    for row in rows:
        found[row.group or f"item {row.id}"].add(bool(row.held_out))
    return found


def test_a_random_split_never_divides_a_group(store: Store, tmp_path, examined_here):
    rows = [f"yes,{speaker}" for speaker in SPEAKERS for _ in range(5)]
    project = create_project(store, "words", "audio", ["yes"]).id
    options = ImportOptions(test_share=0.3)
    report = run_import(store, project, open_source(clips(tmp_path / "in", rows)), options)
    found = sides(store, project)
    expected = {speaker for speaker in SPEAKERS if is_test_group(speaker, 0.3)}
    assert 0 < len(expected) < 12
    assert {group for group, side in found.items() if side == {True}} == expected
    assert all(len(side) == 1 for side in found.values())
    assert report.held_out == 5 * len(expected) and report.labels == 5 * (12 - len(expected))
    said = f"{5 * len(expected)} of 60 items are test items ({len(expected)} of 12 groups)"
    assert any(said in warning for warning in report.warnings)
    assert groups_on_both_sides(store, project) == []


def test_windows_of_a_recording_are_a_group(sqlite_store: Store, tmp_path, examined_here):
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for number in range(8):
        soundfile.write(tmp_path / "in" / f"{number}.wav", rng.uniform(-0.5, 0.5, 32_000), 8_000)
    project = create_project(sqlite_store, "night", "audio").id
    options = ImportOptions(test_share=0.5, windows=WindowOptions(seconds=1))
    run_import(sqlite_store, project, open_source(tmp_path / "in"), options)
    found = sides(sqlite_store, project)
    assert len(found) == 8 and all(len(side) == 1 for side in found.values())
    snapshot = Pool(sqlite_store, project).snapshot()
    assert snapshot.groups is not None and len(np.unique(snapshot.groups)) == 8
    assert snapshot.windows is not None and sorted(np.unique(snapshot.windows[:, 1])) == [0, 1, 2, 3]


def test_a_split_that_the_source_names_stays_and_divided_groups_are_reported(
    sqlite_store: Store, tmp_path, examined_here
):
    rows = ["yes,anna,train", "yes,anna,test", "yes,ben,train", "yes,ben,train"]
    project = create_project(sqlite_store, "words", "audio", ["yes"]).id
    source = open_source(clips(tmp_path / "in", rows, "path,label,group,split"))
    report = run_import(sqlite_store, project, source, ImportOptions(test_share=0.9))
    assert report.held_out == 1
    assert groups_on_both_sides(sqlite_store, project) == ["anna"]
    assert any("1 group is both in the pool and among the test items (anna)" in one for one in report.warnings)


def test_projects_without_groups_have_no_arrays_for_them(sqlite_store: Store, tmp_path, examined_here):
    project = create_project(sqlite_store, "words", "audio", ["yes"]).id
    run_import(sqlite_store, project, open_source(clips(tmp_path / "in", ["yes"] * 3, "path,label")))
    snapshot = Pool(sqlite_store, project).snapshot()
    assert snapshot.groups is None and snapshot.windows is None


@pytest.mark.parametrize("share", [-0.1, 0.95])
def test_impossible_shares_are_refused(share):
    with pytest.raises(InvalidInput, match="share"):
        ImportOptions(test_share=share)


def test_a_summary_sets_whole_groups_aside_and_keeps_every_class():
    labels = np.tile([0, 1, 2], 20)
    groups = np.repeat(np.arange(10), 6)
    aside = set_aside(labels, 0.2, 0, groups)
    assert {len({bool(one) for one in aside[groups == group]}) for group in range(10)} == {1}
    assert 12 <= aside.sum() <= 18 and set(labels[~aside]) == {0, 1, 2}
    lone = set_aside(np.array([0, 0, 1, 1]), 0.5, 0, np.array([0, 0, 1, 1]))
    assert not lone.any(), "each class has one group"
