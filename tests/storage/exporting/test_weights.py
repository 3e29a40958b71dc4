"""A summary as an export: some items with their weights, in every format, and the import of it."""

from __future__ import annotations

import contextlib
import json

import pytest
from pyarrow import parquet

from core.errors import Conflict
from storage.database.store import Store
from storage.exporting.rows import ExportOptions
from storage.exporting.run import FORMATS, export_project
from storage.exporting.span_tables import SPAN_FORMATS
from storage.exporting.weights import ExportWeights
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, locator, run_import
from storage.importing.tables.readers import read_table
from storage.labeling.pool import Pool
from storage.projects.projects import create_project
from tests.storage.made_media import picture, write_files

pytestmark = pytest.mark.usefixtures("examined_here")


@pytest.fixture
def store(sqlite_store) -> Store:
    return sqlite_store


@pytest.fixture
def summary(store, tmp_path) -> tuple[int, ExportWeights]:
    """Two of six labeled pictures, one of each class."""
    files = {f"{name}/{i}.png": picture(seed=i + 10 * (name == "dog")) for name in ("cat", "dog") for i in range(3)}
    project = create_project(store, "animals", "image").id
    run_import(store, project, open_source(write_files(tmp_path / "in", files)), ImportOptions(classes="add"))
    items = Pool(store, project).items()
    chosen = {items[0].sha256: 2.5, items[4].sha256: 0.125}
    labels = {items[0].sha256: "cat", items[4].sha256: "dog"}
    return project, ExportWeights(weights=chosen, labels=labels, about={"size": 2, "objective": "said here"})


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_chosen_items_with_their_weights_and_says_how(name, store, summary, tmp_path):
    project, weights = summary
    done = export_project(store, project, tmp_path / "out", ExportOptions(format=name), weights=weights)
    assert done.rows == 2 and done.labels == {"cat": 1, "dog": 1}
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["summary"] == {"size": 2, "objective": "said here"}
    assert found_weights(tmp_path / "out", name) == pytest.approx(dict(weights.weights))


def found_weights(folder, name: str) -> dict[str, float]:
    if name == "parquet":
        rows = parquet.read_table(folder / "labels.parquet").to_pylist()
    elif name == "label-studio":
        rows = [task["meta"]["winnow"] for task in json.loads((folder / "tasks.json").read_text())]
    elif name == "folders":
        rows = parquet.read_table(folder / "train" / "metadata.parquet").to_pylist()
    elif name == "hugging-face":
        rows = parquet.read_table(folder / "data" / "train-00000-of-00001.parquet").to_pylist()
    else:
        suffix = "csv" if name in SPAN_FORMATS else name
        rows = [row.values for row in read_table(folder / f"labels.{suffix}")]
    return {row["sha256"]: float(row["weight"]) for row in rows}


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_summary_is_the_same_file_twice_and_can_be_imported(name, store, summary, tmp_path):
    project, weights = summary
    options = ExportOptions(format=name, media=True)
    for target in ("a.zip", "b.zip"):
        export_project(store, project, tmp_path / target, options, weights=weights)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    other = create_project(store, f"back from {name}", "image").id
    with contextlib.closing(open_source(tmp_path / "a.zip", locate=locator(store))) as source:
        run_import(store, other, source, ImportOptions(classes="add"))
    assert {item.sha256 for item in Pool(store, other).items()} == set(weights.weights)
    assert Pool(store, other).counts().labeled == 2


def test_an_export_without_weights_has_no_such_column(store, summary, tmp_path):
    export_project(store, summary[0], tmp_path / "out", ExportOptions(format="csv"))
    assert "weight" not in (tmp_path / "out" / "labels.csv").read_text().splitlines()[0].split(",")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["summary"] is None


def test_a_label_that_changed_meanwhile_ends_the_export_and_leaves_nothing(store, summary, tmp_path):
    project, weights = summary
    other_labels = ExportWeights(weights=weights.weights, labels=dict.fromkeys(weights.labels, "horse"))
    with pytest.raises(Conflict, match="was 'horse' when the summary was made and is 'cat' now"):
        export_project(store, project, tmp_path / "out", weights=other_labels)
    assert not (tmp_path / "out").exists()
