"""Arrays of the newest round and the slim table, read with numpy, pyarrow and pandas."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest
from pyarrow import parquet
from sqlalchemy import update

from app.cli.main import main
from core.errors import NotFound
from storage.database.schema import Item
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, rename_class
from storage.projects.projects import create_project
from storage.rounds.log import RoundLog
from tests.app import sample_store
from tests.app.finished_rounds import finish_round


@pytest.fixture
def shop(sqlite_store):
    """12 pictures of which two are labeled and one is held out after the round."""
    project = create_project(sqlite_store, "Shop", "image", ["a", "b", "c"])
    ids = sample_store.add_items(sqlite_store, project, [(f"{k}.png", sample_store.picture(k, 24)) for k in range(12)])
    finish_round(sqlite_store, project, [0, 1])
    known, ana = list_classes(sqlite_store, project.id), annotator_named(sqlite_store, "Ana").id
    for item, row in zip(ids[:2], known[:2], strict=True):
        assert Pool(sqlite_store, project.id).label(item, row.id, annotator=ana).accepted
    rename_class(sqlite_store, project.id, known[2].id, "=c")
    with sqlite_store.write() as connection:
        held_out = {"held_out": True, "truth_class_id": known[2].id, "split_name": "val"}
        connection.execute(update(Item).where(Item.id == ids[4]).values(held_out))
    return project.id


def test_arrays_are_those_of_the_newest_round(sqlite_store, shop, tmp_path):
    export_project(sqlite_store, shop, tmp_path / "out", ExportOptions(arrays=True))
    log = RoundLog(sqlite_store, shop)
    [row] = log.list()
    items = {item.id: item for item in Pool(sqlite_store, shop).items()}
    with np.load(tmp_path / "out" / "arrays.npz") as found:
        arrays = dict(found)
    for name in ("item_ids", "probabilities", "embeddings"):
        np.testing.assert_array_equal(arrays[name], log.arrays(row.id, name))
    assert arrays["class_names"].tolist() == ["a", "b", "=c"]
    assert arrays["split"].tolist() == ["train"] * 4 + ["val"] + ["train"] * 7
    for item_id, sha256 in zip(arrays["item_ids"].tolist(), arrays["sha256"].tolist(), strict=True):
        assert item_id not in items or items[item_id].sha256 == sha256
    table = parquet.read_table(tmp_path / "out" / "arrays.parquet")
    assert json.loads(table.schema.metadata[b"class_names"]) == ["a", "b", "=c"]
    rows = table.to_pylist()
    assert [one["item_id"] for one in rows] == arrays["item_ids"].tolist()
    np.testing.assert_array_equal([one["embedding"] for one in rows], arrays["embeddings"])
    np.testing.assert_array_equal([one["probabilities"] for one in rows], arrays["probabilities"])
    assert [one["predicted"] for one in rows] == [["a", "b", "=c"][k % 3] for k in range(12)]
    about = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert about["arrays_of_round"] == 1 and {"arrays.npz", "arrays.parquet"} <= set(about["files"])


def test_two_exports_with_arrays_are_equal_files(sqlite_store, shop, tmp_path):
    for name in ("a.zip", "b.zip"):
        export_project(sqlite_store, shop, tmp_path / name, ExportOptions(arrays=True))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_without_a_finished_round_nothing_is_written(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "New", "image", ["a", "b"]).id
    with pytest.raises(NotFound, match="no round has finished"):
        export_project(sqlite_store, project, tmp_path / "out", ExportOptions(arrays=True))
    assert not list(tmp_path.glob("out*"))


def test_a_csv_export_has_a_slim_table_beside_the_full_one(sqlite_store, shop, tmp_path):
    export_project(sqlite_store, shop, tmp_path / "out", ExportOptions(held_out=True, media=True))
    slim = pandas.read_csv(tmp_path / "out" / "labels_slim.csv")
    assert list(slim.columns) == ["path", "label", "split"]
    assert list(zip(slim["label"], slim["split"], strict=True)) == [("a", "train"), ("b", "train"), ("'=c", "val")]
    assert all((tmp_path / "out" / path).is_file() for path in slim["path"])
    export_project(sqlite_store, shop, tmp_path / "names", ExportOptions())
    assert list(pandas.read_csv(tmp_path / "names" / "labels_slim.csv")["path"]) == ["0.png", "1.png"]


def test_the_command_line_writes_arrays_and_media_prefixes(sqlite_store, shop, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WINNOW_HOME", str(sqlite_store.home))
    assert main(["export", "Shop", str(tmp_path / "arrays"), "--arrays"]) == 0
    assert (tmp_path / "arrays" / "arrays.npz").is_file()
    asked = ["-f", "label-studio", "--media", "--media-prefix", "https://example.org/files/"]
    assert main(["export", "Shop", str(tmp_path / "tasks"), *asked]) == 0
    for task in json.loads((tmp_path / "tasks" / "tasks.json").read_text()):
        name = task["data"]["image"].removeprefix("https://example.org/files/")
        assert (tmp_path / "tasks" / name).is_file()
    assert main(["export", "Shop", str(tmp_path / "hub"), "-f", "hugging-face"]) == 0
    assert [path.name for path in (tmp_path / "hub" / "data").iterdir()] == ["train-00000-of-00001.parquet"]
