"""The sample projects: their content, that they load once, and that the clips can be reproduced."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from sqlalchemy import select

from core.types import UNLABELED
from storage.database.schema import Item
from storage.labeling.pool import Pool
from storage.projects.projects import archive_project, get_project, list_projects
from storage.projects.sample_projects import (
    HANDWRITTEN,
    SPOKEN,
    SPOKEN_FOLDER,
    HandwrittenDigits,
    digits_file,
    gray_png,
    load_sample_projects,
)

pytestmark = pytest.mark.slow


def test_both_projects_load_once_with_hidden_labels_and_test_items(sqlite_store):
    store = sqlite_store
    assert load_sample_projects(store) == [SPOKEN, HANDWRITTEN]
    expected = {SPOKEN: (720, 160), HANDWRITTEN: (1_797, 297)}
    for name, (total, held_out) in expected.items():
        project = get_project(store, name)
        snapshot = Pool(store, project.id).snapshot()
        assert (len(snapshot.item_ids), int(snapshot.held_out.sum())) == (total, held_out)
        assert snapshot.class_names == tuple("0123456789")
        assert not snapshot.labeled.any()
        assert (snapshot.held_out_labels[snapshot.held_out] != UNLABELED).all()
        with store.read() as connection:
            query = select(Item.truth_class_id, Item.condition).where(Item.project_id == project.id)
            rows = connection.execute(query).all()
        assert all(row.truth_class_id is not None and row.condition == "ok" for row in rows)
    assert load_sample_projects(store) == []
    archive_project(store, get_project(store, SPOKEN).id)
    assert load_sample_projects(store) == []
    assert [project.name for project in list_projects(store)] == [HANDWRITTEN]


def test_the_clips_are_many_small_and_split_by_voice():
    with open(SPOKEN_FOLDER / "manifest.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    pool, test = ({row["path"].split("/")[0] for row in rows if row["split"] == split} for split in ("train", "test"))
    assert len(rows) >= 600 and len(pool | test) >= 12
    assert not pool & test
    assert {row["label"] for row in rows} == set("0123456789")
    files = [path for path in SPOKEN_FOLDER.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    assert {path.name for path in SPOKEN_FOLDER.rglob("*.flac")} <= {Path(row["path"]).name for row in rows}


def test_the_script_gives_the_same_samples_again(tmp_path):
    pytest.importorskip("espeakng_loader")
    from sample_data.generate_spoken_digits import RATE, generate, write_manifest

    generate(tmp_path)
    write_manifest(tmp_path)
    assert (tmp_path / "manifest.csv").read_text() == (SPOKEN_FOLDER / "manifest.csv").read_text()
    for path in sorted(SPOKEN_FOLDER.rglob("*.flac"))[::7]:
        made, rate = soundfile.read(tmp_path / path.relative_to(SPOKEN_FOLDER), dtype="int16")
        kept, kept_rate = soundfile.read(path, dtype="int16")
        assert rate == kept_rate == RATE
        assert np.array_equal(made, kept), path


def test_the_images_are_those_of_scikit_learn_pixel_by_pixel():
    from sklearn.datasets import load_digits

    path = digits_file()
    assert path is not None
    source, digits = HandwrittenDigits(path), load_digits()
    entries = list(source.entries())
    assert [int(entry.label or -1) for entry in entries] == digits.target.tolist()
    for row in (0, 700, 1_796):
        with Image.open(io.BytesIO(source.png(row))) as picture:
            pixels = np.asarray(picture)[::4, ::4]
        assert np.array_equal(pixels, digits.images[row].astype(int) * 255 // 16)


def test_png_bytes_depend_on_the_pixels_alone():
    import hashlib

    pixels = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) % 256
    digest = hashlib.sha256(gray_png(pixels.astype(np.uint8))).hexdigest()
    assert digest == "96db537fff6d83e528905396998aeb7290286b9ade679f4dcc962cc48094733e"
