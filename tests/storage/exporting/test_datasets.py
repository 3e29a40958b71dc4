"""Class folders load with Hugging Face datasets, offline, in a process of their own (it patches what it imports)."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from storage.exporting.rows import ExportOptions
from storage.exporting.run import LOADED_COLUMNS, export_project
from storage.importing.open import open_source
from storage.importing.run import run_import
from storage.labeling.pool import Pool
from storage.projects.projects import create_project
from tests.storage.made_media import picture, wav, write_files

pytestmark = pytest.mark.usefixtures("examined_here")

# Preparing an audio folder imports torchcodec's encoder and uses it only for arrays; files stay files. The encoder
# needs FFmpeg's libraries, which few machines have, so one that refuses to work stands in for it.
LOAD = """
import hashlib, json, sys, types

import datasets

class AudioEncoder:
    def __init__(self, *_, **__):
        raise AssertionError("files are not encoded again")

kind, folder, cache = sys.argv[1:]
if kind == "audio":
    sys.modules["torchcodec"] = package = types.ModuleType("torchcodec")
    sys.modules["torchcodec.encoders"] = package.encoders = types.ModuleType("torchcodec.encoders")
    package.encoders.AudioEncoder = AudioEncoder
undecoded = datasets.Audio(decode=False) if kind == "audio" else datasets.Image(decode=False)
found = {}
for split, rows in datasets.load_dataset(f"{kind}folder", data_dir=folder, cache_dir=cache).items():
    found[split] = []
    for row in rows.cast_column(kind, undecoded):
        media = row.pop(kind)
        data = media["bytes"] if media["bytes"] is not None else open(media["path"], "rb").read()
        found[split].append(row | {"found": hashlib.sha256(data).hexdigest()})
print(json.dumps(found))
"""


def loaded(kind: str, folder: Path, scratch: Path) -> dict[str, list[dict]]:
    """Rows by split as `datasets.load_dataset` gives them, `found` being the hash of the bytes it gives."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(scratch / "hf"), "USE_TORCH": "0"}
    environment = os.environ | offline | {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*"}
    command = [sys.executable, "-c", LOAD, kind, str(folder), str(scratch / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["audio", "image"])
def test_class_folders_load_with_hugging_face_datasets(sqlite_store, tmp_path, kind):
    """Both splits, labels and bytes as the store has them; a file that is gone is left out of what is loaded."""
    make, suffix = (wav, "wav") if kind == "audio" else (lambda k: picture(seed=k), "png")
    files = {
        f"train/{label}/{k}.{suffix}": make(10 * k + n) for k in range(3) for n, label in enumerate(("cat", "a b"))
    }
    files |= {f"test/cat/{k}.{suffix}": make(100 + k) for k in range(2)}
    write_files(tmp_path / "in", files)
    project = create_project(sqlite_store, "p", kind).id
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    gone = next(item for item in Pool(sqlite_store, project).items() if item.name == f"train/cat/1.{suffix}")
    sqlite_store.media.path(gone.sha256).unlink()
    done = export_project(sqlite_store, project, tmp_path / "out", ExportOptions(format="folders", held_out=True))
    assert (done.rows, done.media_files, done.media_missing) == (8, 7, 1)
    found = loaded(kind, tmp_path / "out", tmp_path)
    expected = {
        split: Counter(
            (name.split("/")[1], hashlib.sha256(data).hexdigest())
            for name, data in files.items()
            if name.startswith(split) and name != gone.name
        )
        for split in ("train", "test")
    }
    assert {split: Counter((row["label"], row["found"]) for row in rows) for split, rows in found.items()} == expected
    for row in (row for rows in found.values() for row in rows):
        assert row["found"] == row["sha256"] and row["n_bytes"] == len(files[row["name"]])


def test_every_column_of_the_loaded_table_is_filled_in_every_row(sqlite_store, tmp_path):
    """Loaders guess types from what is there: a column that is empty in one split has another type than in the other.
    The whole provenance is in labels.csv beside it, which is what comes back on import."""
    write_files(tmp_path / "in", {"train/-dog/a.wav": wav(1), "train/cat/b.wav": wav(2), "test/cat/c.wav": wav(3)})
    project = create_project(sqlite_store, "p", "audio").id
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    export_project(sqlite_store, project, tmp_path / "out", ExportOptions(format="folders", held_out=True))
    for split, n_rows in (("train", 2), ("test", 1)):
        with open(tmp_path / "out" / split / "metadata.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == n_rows and tuple(rows[0]) == LOADED_COLUMNS
        assert all(all(row.values()) for row in rows)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["tables"] == ["labels.csv"]
