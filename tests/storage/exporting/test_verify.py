"""`verify`: an unchanged export passes, and every change to a file, a row or a media file is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.errors import InvalidInput
from storage.exporting.models.folder import write_model_folder
from storage.exporting.rows import ExportOptions
from storage.exporting.run import FORMATS, export_project
from storage.exporting.target import described
from storage.exporting.verify import verify_folder
from tests.round_pools import Drawn, draw_project


@pytest.fixture
def drawn(sqlite_store) -> Drawn:
    made = draw_project(sqlite_store, 9, n_held_out=2)
    made.label(made.item_ids[2:8])
    return made


def exported(drawn: Drawn, folder: Path, format_: str = "csv") -> Path:
    export_project(
        drawn.store,
        drawn.project_id,
        folder,
        ExportOptions(format=format_, media=True, held_out=True),  # type: ignore[arg-type]
    )
    return folder


@pytest.mark.parametrize("format_", FORMATS)
def test_an_unchanged_export_passes(drawn, tmp_path, format_):
    found = verify_folder(exported(drawn, tmp_path / "export", format_))
    n_rows = 0 if format_ == "hugging-face" else 8  # its tables, one per split, are checked as files alone
    assert (found.kind, found.problems, found.n_rows) == ("export", [], n_rows)


@pytest.mark.parametrize("format_", ["csv", "jsonl", "label-studio"])
def test_a_changed_label_is_named_even_where_the_list_of_files_was_adapted(drawn, tmp_path, format_):
    folder = exported(drawn, tmp_path / "export", format_)
    manifest = json.loads((folder / "manifest.json").read_text())
    table = folder / manifest["tables"][0]
    table.write_bytes(table.read_bytes().replace(b"bars", b"blobs", 2))
    found = verify_folder(folder)
    assert any(problem.startswith(f"{table.name} has changed") for problem in found.problems)
    manifest["files"][table.name] = described(table)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert any("row digest differs" in problem for problem in verify_folder(folder).problems)


def test_a_removed_row_is_counted(drawn, tmp_path):
    folder = exported(drawn, tmp_path / "export", "jsonl")
    table = folder / "labels.jsonl"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    assert "The table has 7 rows; manifest.json says 8." in verify_folder(folder).problems


def test_changed_missing_and_added_files_are_named(drawn, tmp_path):
    folder = exported(drawn, tmp_path / "export")
    first, second = sorted((folder / "media").iterdir())[:2]
    first.write_bytes(first.read_bytes() + b" ")
    second.unlink()
    (folder / "extra.txt").write_text("x")
    problems = verify_folder(folder).problems
    assert f"media/{first.name} has changed: its bytes do not have the hash that it is named after." in problems
    assert any(f"the file media/{second.name} is missing" in problem for problem in problems)
    assert "extra.txt is not listed in manifest.json: it was added later." in problems
    assert len(problems) == 3


def test_a_model_folder_is_checked_and_names_its_round(tmp_path):
    about = {
        "round": {"number": 3, "name": "best"}, "seed": 5, "settings": {"seed": 5}, "encoder": None,
        "network": {"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    }  # fmt: skip
    folder = tmp_path / "model"
    write_model_folder(folder, {"model.safetensors": b"", "model.onnx": b"graph"}, about, overwrite=False)
    found = verify_folder(folder)
    assert (found.kind, found.problems, found.n_files) == ("model", [], 2)
    assert found.source == {"round": 3, "name": "best", "seed": 5, "settings": {"seed": 5}, "encoder": None}
    (folder / "model.onnx").write_bytes(b"other")
    (folder / "model.safetensors").unlink()
    problems = verify_folder(folder).problems
    assert problems[0].startswith("model.onnx has changed: 5 bytes") and problems[1] == "model.safetensors is missing."


def test_the_weights_must_be_those_of_the_round(tmp_path):
    about = {"round": {"number": 1, "name": ""}, "network": {"sha256": "0" * 64}}
    write_model_folder(tmp_path / "model", {"model.safetensors": b""}, about, overwrite=False)
    assert "but the round stored 000000000000" in verify_folder(tmp_path / "model").problems[0]


def test_a_list_that_names_files_outside_the_folder_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text("x")
    write_model_folder(tmp_path / "model", {"model.safetensors": b""}, {"network": {}}, overwrite=False)
    path = tmp_path / "model" / "model.json"
    about = json.loads(path.read_text())
    about["files"]["../secret"] = described(tmp_path / "secret")
    path.write_text(json.dumps(about))
    assert any("../secret, which is outside" in problem for problem in verify_folder(tmp_path / "model").problems)


@pytest.mark.parametrize("content", [None, "{}", "no json", '["winnow-export"]'])
def test_other_folders_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InvalidInput):
        verify_folder(tmp_path)


def test_an_export_before_the_first_round_names_none(drawn, tmp_path):
    folder = exported(drawn, tmp_path / "before")
    assert json.loads((folder / "manifest.json").read_text())["round"] is None
    assert verify_folder(folder).source["round"] is None
