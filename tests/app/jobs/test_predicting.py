"""`python -m app predict`: tables in three formats, unreadable files, interruption, and the nearest labeled item."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from app.cli.main import main
from app.jobs import predicting
from app.jobs.predicting import NearestLabeled, PredictOptions, predict_files
from core.errors import Cancelled, Conflict, NotFound
from core.types import Progress
from storage.database.store import Store
from tests.app.real_rounds import copied_store, quick_settings, run_round_here
from tests.round_pools import Drawn, draw_project, picture

pytestmark = pytest.mark.usefixtures("one_thread")
N_FILES = 23


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def made_shapes(tmp_path_factory) -> tuple[Path, Drawn]:
    """A store with a finished round, run once."""
    template = tmp_path_factory.mktemp("shapes") / "home"
    with Store.open(home=template) as store:
        drawn = draw_project(store, 24, n_held_out=3)
        drawn.label(drawn.item_ids[3:15])
        run_round_here(store, drawn.project_id, quick_settings(image_size=16))
    return template, drawn


@pytest.fixture
def shapes(made_shapes, home, monkeypatch) -> Iterator[Drawn]:
    monkeypatch.setattr(predicting, "BLOCK", 4)
    template, drawn = made_shapes
    with copied_store(template, home) as store:
        yield drawn.in_store(store)


@pytest.fixture
def files(tmp_path) -> Path:
    """New pictures in nested folders, one of them damaged, and a file of another kind."""
    folder = tmp_path / "files"
    for number in range(N_FILES):
        path = folder / f"part {number % 2}" / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number % 3, 1_000 + number))
    (folder / "part 1" / "13.png").write_bytes(b"\x89PNG damaged")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_file_has_a_row_and_unreadable_ones_state_the_reason(shapes, files, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(["predict", "shapes", str(files), "--out", str(out), "--all", "--json"]) == 0
    output = capsys.readouterr()
    rows = jsonl(out)
    assert [row["file"] for row in rows] == [str(path) for path in sorted(files.rglob("*.png"))]
    bad = [row for row in rows if row["error"]]
    assert [Path(row["file"]).name for row in bad] == ["13.png"] and bad[0]["class"] is None
    assert "13.png cannot be read" in output.err
    done = json.loads(output.out)
    assert (done["files"], done["unreadable"], done["round"]) == (N_FILES, 1, 1)
    for row in (row for row in rows if not row["error"]):
        p = np.array([row[f"p_{name}"] for name in ("bars", "blobs", "checks")])
        assert p.sum() == pytest.approx(1, abs=1e-5) and row["confidence"] == p.max()
        assert row["class"] == ("bars", "blobs", "checks")[int(p.argmax())]
        assert row["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)


def test_the_three_formats_hold_the_same_values(shapes, files, tmp_path):
    for suffix in ("csv", "jsonl", "parquet"):
        assert main(["predict", "shapes", str(files), "--out", str(tmp_path / f"out.{suffix}"), "--all"]) == 0
    wanted = jsonl(tmp_path / "out.jsonl")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == wanted
    with open(tmp_path / "out.csv", encoding="utf-8-sig", newline="") as file:
        found = list(csv.DictReader(file))
    assert found == [{name: "" if value is None else str(value) for name, value in row.items()} for row in wanted]


def test_probabilities_are_written_on_request_only(shapes, files, tmp_path):
    assert main(["predict", "shapes", str(files / "part 0" / "00.png"), "--out", str(tmp_path / "out.jsonl")]) == 0
    assert not [name for name in jsonl(tmp_path / "out.jsonl")[0] if name.startswith("p_")]


def test_an_interrupted_run_continues_and_gives_the_same_table(shapes, files, tmp_path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    run(shapes, files, whole)

    def stop(progress: Progress) -> None:
        if progress.done >= 8:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        run(shapes, files, parts, stop)
    assert not parts.exists()
    partial = tmp_path / ".parts.jsonl.part"
    with open(partial, "a") as file:
        file.write('{"file": "cut off in the mid')  # as after kill -9
    done = run(shapes, files, parts)
    assert done["continued"] == 8 and done["files"] == N_FILES
    assert parts.read_bytes() == whole.read_bytes() and not partial.exists()


def run(drawn: Drawn, files: Path, out: Path, report=lambda progress: None, **more) -> dict:
    options = PredictOptions(paths=(str(files),), target=str(out), **more)
    return predict_files(drawn.store, drawn.project_id, options, report)


def test_finished_files_are_not_read_again(shapes, files, tmp_path, monkeypatch):
    def stop(progress: Progress) -> None:
        if progress.done >= 12:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        run(shapes, files, tmp_path / "out.csv", stop)
    read = []
    original = predicting._Run._read
    monkeypatch.setattr(predicting._Run, "_read", lambda self, one: (read.append(one.name), original(self, one))[1])
    run(shapes, files, tmp_path / "out.csv")
    assert sorted(read) == sorted(map(str, files.rglob("*.png")))[12:]


def test_a_part_of_another_run_is_not_mixed_in(shapes, files, tmp_path):
    def stop(progress: Progress) -> None:
        if progress.done:
            raise Cancelled("stopped")

    out = tmp_path / "out.csv"
    with pytest.raises(Cancelled):
        run(shapes, files, out, stop)
    with pytest.raises(Conflict, match="another run"):
        run(shapes, files, out, all_probabilities=True)
    assert run(shapes, files, out, all_probabilities=True, overwrite=True)["continued"] == 0
    with pytest.raises(Conflict, match="already exists"):
        run(shapes, files, out)


def test_the_nearest_labeled_item_of_a_labeled_picture_is_that_picture(shapes, tmp_path):
    item = shapes.item_ids[5]
    path = tmp_path / "copy.png"
    path.write_bytes(picture(5 % 3, 5))
    run(shapes, path, tmp_path / "out.jsonl")
    row = jsonl(tmp_path / "out.jsonl")[0]
    assert (row["nearest_item_id"], row["nearest_item"]) == (item, "5.png")
    assert row["nearest_class"] == ("bars", "blobs", "checks")[shapes.truth[item]]
    assert row["nearest_distance"] == pytest.approx(0, abs=1e-4)


def test_the_nearest_item_is_that_of_a_complete_search(monkeypatch):
    monkeypatch.setattr(predicting, "NEIGHBOR_ROWS", 7)
    rng = np.random.default_rng(0)
    labeled, asked = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(15, 6)).astype(np.float32)
    names = [f"{k}" for k in range(40)]
    found = NearestLabeled(np.arange(40) + 100, names, names, labeled).of(asked)
    distances = np.linalg.norm(asked[:, None] - labeled[None], axis=2)
    assert [row["nearest_item_id"] - 100 for row in found] == distances.argmin(1).tolist()
    np.testing.assert_allclose([row["nearest_distance"] for row in found], distances.min(1), atol=1e-5)


def test_a_missing_path_and_an_unknown_format_are_refused(shapes, files, tmp_path, capsys):
    with pytest.raises(NotFound, match="no file or folder"):
        run(shapes, files / "nowhere", tmp_path / "out.csv")
    assert main(["predict", "shapes", str(files), "--out", str(tmp_path / "out.xlsx")]) == 1
    assert "ends in .csv, .jsonl, .parquet" in capsys.readouterr().err


def test_a_name_that_a_spreadsheet_would_evaluate_is_escaped(shapes, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("=cmd.png").write_bytes(picture(0, 1))
    assert main(["predict", "shapes", "=cmd.png", "--out", "out.csv"]) == 0
    assert "'=cmd.png" in Path("out.csv").read_text(encoding="utf-8-sig")
