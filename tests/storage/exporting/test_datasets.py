"""Class folders and Parquet exports load with Hugging Face datasets, offline, in a separate process, because the
library patches modules that it imports."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from subprocess import PIPE

import pytest
from pyarrow import parquet

from storage.exporting.hugging_face import FOLDER_COLUMNS
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.importing.open import open_source
from storage.importing.run import run_import
from storage.labeling.pool import Pool
from storage.projects.projects import create_project
from tests.storage.made_media import picture, wav, write_files

pytestmark = pytest.mark.usefixtures("examined_here")

# Preparing an audio folder imports torchcodec's encoder and uses it only for arrays; files stay files. The encoder
# needs FFmpeg's libraries, which few machines have, so one that refuses to work stands in for it. One process loads all
# exports: importing the library takes longer than loading.
LOAD = """
import hashlib, json, sys, types

import datasets

class AudioEncoder:
    def __init__(self, *_, **__):
        raise AssertionError("files are not encoded again")

sys.modules["torchcodec"] = package = types.ModuleType("torchcodec")
sys.modules["torchcodec.encoders"] = package.encoders = types.ModuleType("torchcodec.encoders")
package.encoders.AudioEncoder = AudioEncoder

def load(kind, builder, folder, cache):
    undecoded = datasets.Audio(decode=False) if kind == "audio" else datasets.Image(decode=False)
    found = {}
    where = {"path": builder, "data_dir": folder} if builder else {"path": folder}
    made = datasets.load_dataset(**where, cache_dir=cache)
    for split, rows in made.items():
        found[split] = []
        label = rows.features["label"]
        assert isinstance(label, datasets.ClassLabel), rows.features
        found.setdefault("class names", label.names)
        assert found["class names"] == label.names
        for row in rows.cast_column(kind, undecoded):
            media = row.pop(kind)
            data = media["bytes"] if media["bytes"] is not None else open(media["path"], "rb").read()
            row["label"] = label.int2str(row["label"])
            found[split].append(row | {"found": hashlib.sha256(data).hexdigest()})
    return found

for line in sys.stdin:
    print("loaded", json.dumps(load(*json.loads(line))), flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Iterator[subprocess.Popen[str]]:
    """The process that has Hugging Face datasets."""
    scratch = tmp_path_factory.mktemp("library")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(scratch / "hf"), "USE_TORCH": "0"}
    environment = os.environ | offline | {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*"}
    with (
        open(scratch / "errors.txt", "w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", LOAD], env=environment, text=True, stdin=PIPE, stdout=PIPE, stderr=errors
        ) as process,
    ):
        yield process


def loaded(process: subprocess.Popen[str], *request: str) -> tuple[dict[str, list[dict]], list[str]]:
    """Rows by split as `datasets.load_dataset` gives them, `found` being the hash of the bytes, and the class names."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = next((line for line in process.stdout if line.startswith("loaded ")), "")
    assert line, f"the library ended with code {process.wait()}; its stderr is in the folder of the fixture"
    found = json.loads(line.removeprefix("loaded "))
    return found, found.pop("class names")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["audio", "image"])
@pytest.mark.parametrize("way", ["folders", "folders by builder", "hugging-face"])
def test_exports_load_with_hugging_face_datasets(sqlite_store, tmp_path, library, kind, way):
    """Splits, class names in the order of the project, labels and bytes equal those of the store; a missing file is not
    loaded."""
    make, suffix = (wav, "wav") if kind == "audio" else (lambda k: picture(seed=k), "png")
    names = ["zebra", "-a: 'b' #1", "unused"]
    tables = {"train": [], "test": [], "val": []}
    files = {}
    for split, label in [(split, name) for split in tables for name in names[:2]] * 3:
        files[f"{len(files)}.{suffix}"] = make(len(files))
        tables[split].append((list(files)[-1], label, split))
    rows = [("path", "label", "split"), *(row for listed in tables.values() for row in listed)]
    with io.StringIO(newline="") as text:
        csv.writer(text).writerows(rows)
        write_files(tmp_path / "in", files | {"manifest.csv": text.getvalue().encode()})
    project = create_project(sqlite_store, "Pets: a # test", kind, names).id
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    gone = next(item for item in Pool(sqlite_store, project).items() if item.name == f"1.{suffix}")
    sqlite_store.media.path(gone.sha256).unlink()
    options = ExportOptions(format=way.split()[0], held_out=True)
    done = export_project(sqlite_store, project, tmp_path / "out", options)
    assert (done.rows, done.media_files, done.media_missing) == (18, 17, 1)
    builder = f"{kind}folder" if "builder" in way else ""
    found, class_names = loaded(library, kind, builder, str(tmp_path / "out"), str(tmp_path / "cache"))
    assert class_names == names
    kept = {split: [row for row in listed if row[0] != gone.name] for split, listed in tables.items()}
    if "builder" in way:  # without the card the library gives its own name to the split `val`
        kept["validation"] = kept.pop("val")
    expected = {
        split: Counter((label, hashlib.sha256(files[name]).hexdigest()) for name, label, _ in listed)
        for split, listed in kept.items()
    }
    assert {split: Counter((row["label"], row["found"]) for row in rows) for split, rows in found.items()} == expected
    assert all(row["found"] == row["sha256"] for rows in found.values() for row in rows)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "push_to_hub" in card and "1 labeled items have no file" in card


def test_the_whole_provenance_of_class_folders_is_beside_what_is_loaded(sqlite_store, tmp_path):
    write_files(tmp_path / "in", {"train/-dog/a.wav": wav(1), "train/cat/b.wav": wav(2), "test/cat/c.wav": wav(3)})
    project = create_project(sqlite_store, "p", "audio").id
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    export_project(sqlite_store, project, tmp_path / "out", ExportOptions(format="folders", held_out=True))
    for split, n_rows in (("train", 2), ("test", 1)):
        table = parquet.read_table(tmp_path / "out" / split / "metadata.parquet")
        assert table.num_rows == n_rows and tuple(table.column_names) == FOLDER_COLUMNS
        assert all(column.null_count == 0 for column in table.columns)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["tables"] == ["labels.csv"]
