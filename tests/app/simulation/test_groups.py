"""Groups in simulations: divided ones are reported before anything is computed, and a draw by group is suggested."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.main import main
from app.simulation import local_runner
from core.errors import InvalidInput
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.projects.projects import create_project
from tests.storage.made_media import wav

WARNING = (
    "1 group is both in the pool and among the test items (anna): the test accuracy may be too high for new groups."
)


@pytest.fixture(autouse=True)
def nothing_is_computed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise InvalidInput("Stopped before the first task.")

    monkeypatch.setattr(local_runner._ProcessPool, "run", stop)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))


def clips(folder: Path, rows: list[str]) -> Path:
    """A manifest; rows are the cells after the path: label, group, split."""
    folder.mkdir()
    for number in range(len(rows)):
        (folder / f"{number}.wav").write_bytes(wav(number))
    lines = [f"{number}.wav,{row}" for number, row in enumerate(rows)]
    (folder / "manifest.csv").write_text("path,label,group,split\n" + "\n".join(lines) + "\n")
    return folder / "manifest.csv"


def simulated(*options: str) -> int:
    return main(["simulate", "--strategy=margin", "--preset=smoke", *options])


DIVIDED = ["yes,anna,train", "no,anna,test", "no,ben,train", "yes,ben,train", "yes,eva,test"]


def test_groups_on_both_sides_of_a_data_set_are_reported(tmp_path, capsys):
    assert simulated(str(clips(tmp_path / "in", DIVIDED)), f"--out={tmp_path / 'out'}") == 1
    said = capsys.readouterr().err
    assert WARNING in said and "Stopped before the first task." in said
    whole = clips(tmp_path / "whole", [row.replace("no,anna,test", "no,anna,train") for row in DIVIDED])
    assert simulated(str(whole), f"--out={tmp_path / 'other'}") == 1
    said = capsys.readouterr().err
    assert "group" not in said and "Stopped before the first task." in said


def test_groups_on_both_sides_of_a_project_are_reported(tmp_path, capsys):
    with Store.open(home=tmp_path / "home") as store:
        project = create_project(store, "words", "audio")
        source = open_source(clips(tmp_path / "in", DIVIDED))
        run_import(store, project.id, source, ImportOptions(labels="hidden", classes="add"))
    assert simulated("--project=words", f"--out={tmp_path / 'out'}") == 1
    assert WARNING in capsys.readouterr().err


def test_data_without_test_items_get_the_advice_to_draw_them_by_group(tmp_path, capsys):
    rows = [row.rpartition(",")[0] + "," for row in DIVIDED]
    assert simulated(str(clips(tmp_path / "in", rows)), f"--out={tmp_path / 'out'}") == 1
    assert "draw them by group: python -m app import … --labels hidden --test-share 0.2" in capsys.readouterr().err
