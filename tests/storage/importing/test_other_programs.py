"""Data sets in the layouts of other programs: FiftyOne, COCO, ImageNet and Hugging Face datasets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from core.errors import InvalidInput, WinnowError
from storage.projects.classes import add_class, list_classes, rename_class
from storage.projects.projects import create_project
from tests.storage.importing.test_layouts import as_text, png, seen_in, state, take
from tests.storage.made_media import wav, write_files, zip_of

pytestmark = pytest.mark.usefixtures("examined_here")

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "USE_TORCH": "0",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


@pytest.fixture
def images(sqlite_store) -> int:
    return create_project(sqlite_store, "pictures", "image").id


def labels_of(store, project: int) -> dict[str, str | None]:
    return {name: label for name, (label, _, _) in state(store, project).items()}


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (["cat", "dog"], {"a": 0, "b": 1, "c": None}),
        (None, {"a": "cat", "b": "dog", "c": None}),
        (["cat", "dog"], {"a": {"label": 0, "confidence": 0.9}, "b": {"label": 1}, "c": None}),
    ],
)
def test_fiftyone_data_and_labels_json(sqlite_store, images, tmp_path, classes, labels):
    """FiftyOneImageClassificationDataset: `labels` are positions in `classes`, names, or objects; null is unlabeled."""
    document = json.dumps({"classes": classes, "labels": labels}).encode()
    files = {f"data/{name}.png": png(n) for n, name in enumerate("abc")} | {"labels.json": document}
    root = write_files(tmp_path / "in", files)
    seen = seen_in(root)
    assert seen.found.tables == ["labels.json"] and not seen.found.questions
    assert seen.labels == {"cat": 1, "dog": 1} and (seen.n_unlabeled, seen.found.media_root) == (1, "data")
    assert take(sqlite_store, images, root).labels == 2
    assert labels_of(sqlite_store, images) == {"a": "cat", "b": "dog", "c": None}


def test_a_position_that_is_no_class_of_fiftyone_is_refused(sqlite_store, images, tmp_path):
    document = json.dumps({"classes": ["cat"], "labels": {"a": 1}}).encode()
    root = write_files(tmp_path / "in", {"data/a.png": png(0), "labels.json": document})
    with pytest.raises(InvalidInput, match="The label is 1; there are 1 classes"):
        take(sqlite_store, images, root)
    assert state(sqlite_store, images) == {}


def test_the_unlabeled_folder_of_a_fiftyone_tree_is_no_class(sqlite_store, images, tmp_path):
    """ImageClassificationDirectoryTree."""
    files = {f"{folder}/0.png": png(n) for n, folder in enumerate(("_unlabeled", "cat", "dog"))}
    root = write_files(tmp_path / "in", files)
    seen = seen_in(root)
    assert seen.new_classes == ["cat", "dog"] and seen.n_unlabeled == 1
    assert "1 file in a folder for unlabeled files will have no label." in seen.found.warnings
    report = take(sqlite_store, images, root)
    assert (report.imported, report.labels) == (3, 2)
    assert labels_of(sqlite_store, images)["_unlabeled/0.png"] is None


def coco(images_: dict[int, str], categories: dict[int, list[int]]) -> bytes:
    """`categories` has those of the annotations of each image."""
    annotations = [
        {"id": 100 * image + place, "image_id": image, "category_id": category}
        for image, given in categories.items()
        for place, category in enumerate(given)
    ]
    document = {
        "images": [{"id": number, "file_name": name, "width": 8, "height": 8} for number, name in images_.items()],
        "categories": [{"id": 17, "name": "cat"}, {"id": 18, "name": "dog"}],
        "annotations": annotations,
    }
    return json.dumps(document).encode()


def test_coco_categories_of_whole_images(sqlite_store, images, tmp_path):
    """`annotations/instances_*.json` beside a folder for each split; several boxes of one category are one label."""
    files = {
        "annotations/instances_train2017.json": coco({1: "a.png", 2: "b.png", 3: "c.png"}, {1: [17, 17], 2: [18]}),
        "annotations/instances_val2017.json": coco({9: "v.png"}, {9: [18]}),
    }
    files |= {f"train2017/{name}.png": png(n) for n, name in enumerate("abc")} | {"val2017/v.png": png(9)}
    root = write_files(tmp_path / "in", files)
    seen = seen_in(root)
    assert seen.labels == {"cat": 1, "dog": 2} and dict(seen.splits) == {"train": 3, "val": 1}
    assert (seen.n_validation, seen.n_unlabeled, seen.found.questions) == (1, 1, [])
    report = take(sqlite_store, images, root)
    assert (report.imported, report.labels, report.held_out) == (4, 2, 1)
    assert labels_of(sqlite_store, images) == {"a.png": "cat", "b.png": "dog", "c.png": None, "v.png": "dog"}


def test_a_coco_image_with_two_categories_is_refused(sqlite_store, images, tmp_path):
    files = {"data/a.png": png(0), "data/b.png": png(1), "labels.json": coco({1: "a.png", 2: "b.png"}, {1: [17, 18]})}
    root = write_files(tmp_path / "in", files)
    with pytest.raises(InvalidInput, match=r"The image has 2 categories \('cat', 'dog'\)"):
        take(sqlite_store, images, root)
    assert take(sqlite_store, images, root, skip_problems=True).imported == 1


SYNSETS = {
    "LOC_synset_mapping.txt": b"n01440764 tench, Tinca tinca\nn02012849 crane\nn03126707 crane, lifting device\n",
    "imagenet_class_index.json": json.dumps(
        {"0": ["n01440764", "tench"], "1": ["n02012849", "crane"], "2": ["n03126707", "crane, lifting device"]}
    ).encode(),
}


@pytest.mark.parametrize("table", list(SYNSETS))
@pytest.mark.parametrize("packed", [False, True])
def test_imagenet_folders_get_their_class_names(sqlite_store, images, tmp_path, table, packed):
    ids = ("n01440764", "n02012849", "n03126707")
    files = {f"{split}/{synset}/{n}.png": png(10 * k + n) for k, split in enumerate(("train", "val"))
             for n, synset in enumerate(ids)} | {table: SYNSETS[table]}  # fmt: skip
    source = zip_of(tmp_path / "x.zip", files) if packed else write_files(tmp_path / "in", files)
    seen = seen_in(source)
    assert seen.found.label_names["n01440764"] == "tench" and not seen.found.questions
    report = take(sqlite_store, images, source)
    assert report.new_classes == ["tench", "crane", "crane, lifting device"]
    assert (report.labels, report.held_out) == (3, 3)


WRITE = """
import json, sys, types
import datasets

kind, rows, folder = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3]
if kind == "audio":  # its encoder is imported for any audio, and used only for arrays
    sys.modules["torchcodec"] = package = types.ModuleType("torchcodec")
    sys.modules["torchcodec.encoders"] = package.encoders = types.ModuleType("torchcodec.encoders")
    package.encoders.AudioEncoder = None
media = datasets.Image(decode=False) if kind == "image" else datasets.Audio(decode=False)
features = datasets.Features({kind: media, "label": datasets.ClassLabel(names=["zebra", "ant"])})
for split, items in rows.items():
    columns = {kind: [{"bytes": bytes.fromhex(data), "path": path} for data, path, _ in items],
               "label": [label for _, _, label in items]}
    made = datasets.Dataset.from_dict(columns, features=features)
    made.to_parquet(f"{folder}/{split}-00000-of-00001.parquet")
"""


@pytest.fixture(scope="module", params=["image", "audio"])
def written_by_datasets(request, tmp_path_factory) -> tuple[str, Path]:
    """The media type, and a folder with the Parquet files that the library wrote."""
    kind, tmp_path = request.param, tmp_path_factory.mktemp("datasets")
    make = png if kind == "image" else wav
    rows = {
        "train": [[make(0).hex(), "one", 0], [make(1).hex(), None, 1], [make(2).hex(), "three", -1]],
        "validation": [[make(3).hex(), "four", 1]],
    }
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    folder = tmp_path / "made"
    folder.mkdir()
    command = [sys.executable, "-c", WRITE, kind, str(tmp_path / "rows.json"), str(folder)]
    done = subprocess.run(
        command, env=os.environ | OFFLINE | {"HF_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return kind, folder


@pytest.mark.slow
@pytest.mark.parametrize("below", ["", "data"])
def test_parquet_with_bytes_and_class_names_as_hugging_face_datasets_writes_it(
    sqlite_store, tmp_path, written_by_datasets, below
):
    """The names come from the ClassLabel feature, not from the numbers; -1 is no label."""
    kind, written = written_by_datasets
    shutil.copytree(written, tmp_path / "in" / below)
    seen = seen_in(tmp_path / "in", kind=kind)
    assert seen.labels == {"zebra": 1, "ant": 2} and dict(seen.splits) == {"train": 3, "validation": 1}
    assert (seen.n_problems, seen.n_unlabeled) == (0, 1)
    assert not any("\\x" in cell for row in seen.found.first_rows for cell in row.values())
    project = create_project(sqlite_store, "hub", kind).id
    report = take(sqlite_store, project, tmp_path / "in")
    assert (report.imported, report.labels, report.held_out) == (4, 2, 1)
    found = state(sqlite_store, project)
    unnamed = next(name for name in found if name.endswith("row 2"))
    assert found == {
        "one": ("zebra", "train", False), unnamed: ("ant", "train", False), "three": (None, "train", False),
        "four": ("ant", "validation", True),
    }  # fmt: skip


def test_a_column_called_choice_is_the_label(sqlite_store, images, tmp_path):
    """The CSV of Label Studio when the control tag is called `choice`."""
    rows = [["image", "id", "choice", "annotator"], ["0.png", "1", "cat", "7"], ["1.png", "2", "dog", "7"]]
    root = write_files(tmp_path / "in", {f"{n}.png": png(n) for n in range(2)} | {"export.csv": as_text(rows)})
    seen = seen_in(root)
    assert seen.found.columns == {"path": "image", "label": "choice"} and seen.new_classes == ["cat", "dog"]
    take(sqlite_store, images, root)
    assert labels_of(sqlite_store, images) == {"0.png": "cat", "1.png": "dog"}


def test_accents_encoded_in_two_ways_are_one_name_when_classes_are_edited(sqlite_store):
    composed, decomposed = (unicodedata.normalize(form, "Bär") for form in ("NFC", "NFD"))
    project = create_project(sqlite_store, "p", "image", [composed, "Fuchs"]).id
    for change in (
        lambda: add_class(sqlite_store, project, decomposed),
        lambda: rename_class(sqlite_store, project, list_classes(sqlite_store, project)[1].id, decomposed),
        lambda: create_project(sqlite_store, "q", "image", [composed, decomposed]),
    ):
        with pytest.raises(WinnowError):
            change()
    assert [row.name for row in list_classes(sqlite_store, project)] == [composed, "Fuchs"]
    rename_class(sqlite_store, project, list_classes(sqlite_store, project)[0].id, decomposed)  # its own other form
    assert [row.name for row in list_classes(sqlite_store, project)] == [decomposed, "Fuchs"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("splits", [("train", "test"), ("",)])
def test_metadata_in_the_top_folder_of_an_archive(sqlite_store, images, tmp_path, suffix, splits):
    import pyarrow
    from pyarrow import parquet

    rows = [{"file_name": "0.png", "label": "cat"}, {"file_name": "1.png", "label": "dog"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    table = (tmp_path / "x.parquet").read_bytes() if suffix == "parquet" else "\n".join(map(json.dumps, rows)).encode()
    files = {}
    for k, split in enumerate(splits):
        below = f"pets/{split}/" if split else "pets/"
        files |= {f"{below}{n}.png": png(10 * k + n) for n in range(2)} | {f"{below}metadata.{suffix}": table}
    source = zip_of(tmp_path / "x.zip", files)
    seen = seen_in(source)
    assert seen.labels == {"cat": len(splits), "dog": len(splits)} and not seen.found.questions
    report = take(sqlite_store, images, source)
    assert (report.imported, report.labels, report.held_out) == (2 * len(splits), 2, 2 * (len(splits) - 1))
