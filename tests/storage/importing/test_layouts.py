"""Common folder layouts: which parts become label, split and class, previewed before anything is written."""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from pathlib import Path

import pytest
from sqlalchemy import select

from core.errors import InvalidInput
from storage.database.schema import Item
from storage.database.store import Store
from storage.exporting.rows import ExportOptions
from storage.exporting.run import FORMATS, export_project
from storage.importing.open import open_source
from storage.importing.preview import ClassRules, Preview, preview
from storage.importing.reading import ReadingOptions
from storage.importing.reports import ImportReport
from storage.importing.run import ImportOptions, run_import
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.storage.made_media import picture, write_files, zip_of

pytestmark = pytest.mark.usefixtures("examined_here")


def png(number: int) -> bytes:
    return picture(seed=number)


@pytest.fixture
def images(sqlite_store: Store) -> int:
    return create_project(sqlite_store, "pictures", "image").id


def seen_in(path: Path, kind: str = "image", **reading) -> Preview:
    source = open_source(path, reading=ReadingOptions(**reading))
    try:
        return preview(source, ClassRules({}, "ask"), kind=kind)
    finally:
        source.close()


def take(store: Store, project: int, path: Path, reading: dict | None = None, **options) -> ImportReport:
    source = open_source(path, reading=ReadingOptions(**(reading or {})))
    try:
        return run_import(store, project, source, ImportOptions(**options))
    finally:
        source.close()


def state(store: Store, project: int) -> dict[str, tuple[str | None, str, bool]]:
    """name -> (label or hidden label, split name, held out)"""
    names = {row.id: row.name for row in list_classes(store, project)} | {None: None}
    with store.read() as connection:
        query = select(Item.id, Item.name, Item.truth_class_id, Item.held_out, Item.split_name)
        rows = connection.execute(query.where(Item.project_id == project)).all()
    given = {item.id: item.class_id for item in Pool(store, project).items()}
    return {row.name: (names[given.get(row.id) or row.truth_class_id], row.split_name, row.held_out) for row in rows}


def as_text(rows: list[list[str]]) -> bytes:
    with io.StringIO() as file:
        csv.writer(file).writerows(rows)
        return file.getvalue().encode()


SPLITS = [
    (("train", "val", "test"), {"val", "test"}),
    (("train", "val"), {"val"}),
    (("train", "validation"), {"validation"}),
    (("Training", "Valid"), {"Valid"}),
    (("train", "dev", "test"), {"dev", "test"}),
]


@pytest.mark.parametrize(("splits", "held_out"), SPLITS)
@pytest.mark.parametrize("place", ["folder", "folder in a folder", "zip", "zip with a top folder"])
def test_split_folders_hold_out_everything_but_the_training_split(
    sqlite_store, images, tmp_path, splits, held_out, place
):
    top = "animals/" if "in a" in place or "top" in place else ""
    files = {
        f"{top}{split}/{label}/{n}.png": png(10 * a + 2 * b + n)
        for a, split in enumerate(splits)
        for b, label in enumerate(("cat", "dog"))
        for n in range(2)
    }
    source = write_files(tmp_path / "in", files) if "folder" in place.split()[0] else zip_of(tmp_path / "x.zip", files)
    seen = seen_in(source)
    assert seen.found.questions == [] and seen.found.labels_from == "class folders"
    assert dict(seen.splits) == dict.fromkeys(splits, 4) and seen.n_held_out == 4 * len(held_out)
    assert seen.n_validation == sum(4 for split in splits if split.lower() in ("val", "valid", "validation", "dev"))
    report = take(sqlite_store, images, source)
    assert report.splits == dict.fromkeys(splits, 4) and report.held_out == 4 * len(held_out)
    assert report.labels == 4 * (len(splits) - len(held_out))
    for name, found in state(sqlite_store, images).items():
        split, label = name.removeprefix(top).split("/")[:2]
        assert found == (label, split, split in held_out)
    assert f"{4 * len(held_out):,} used as test items" in report.sentence()


def test_folders_that_hold_only_folders_are_not_warned_about(tmp_path):
    files = {f"data/{split}/{name}/0.png": png(n) for n, (split, name) in enumerate(
        (split, name) for split in ("train", "val", "test") for name in ("cat", "dog"))}  # fmt: skip
    found = seen_in(write_files(tmp_path / "in", files)).found
    assert (found.warnings, found.questions) == ([], [])
    write_files(tmp_path / "in", {"data/train/cat/inner/1.png": png(9)})
    [warning] = seen_in(tmp_path / "in").found.warnings
    assert warning.startswith("1 files directly in 'data/train/cat' get its name")


def test_validation_items_go_into_the_pool_on_request(sqlite_store, images, tmp_path):
    files = {f"{split}/{label}/0.png": png(n) for n, (split, label) in enumerate(
        (split, label) for split in ("train", "val", "test") for label in ("cat", "dog"))}  # fmt: skip
    root = write_files(tmp_path / "in", files)
    report = take(sqlite_store, images, root, validation="pool")
    assert (report.held_out, report.labels, report.splits) == (2, 4, {"test": 2, "train": 4})


def test_splits_inside_class_folders_are_found(sqlite_store, images, tmp_path):
    files = {f"{label}/{split}/0.png": png(n) for n, (split, label) in enumerate(
        (split, label) for split in ("train", "test") for label in ("cat", "dog"))}  # fmt: skip
    report = take(sqlite_store, images, write_files(tmp_path / "in", files))
    assert (report.held_out, report.labels) == (2, 2)
    assert state(sqlite_store, images)["cat/test/0.png"] == ("cat", "test", True)


def test_a_class_called_train_beside_other_classes_stays_a_class(sqlite_store, images, tmp_path):
    root = write_files(tmp_path / "in", {f"{label}/0.png": png(n) for n, label in enumerate(("bus", "car", "train"))})
    assert take(sqlite_store, images, root).labels == 3
    assert {label for label, _, _ in state(sqlite_store, images).values()} == {"bus", "car", "train"}


def test_a_folder_called_test_beside_classes_is_asked_about(sqlite_store, images, tmp_path):
    root = write_files(tmp_path / "in", {f"{label}/0.png": png(n) for n, label in enumerate(("cat", "dog", "test"))})
    seen = seen_in(root)
    assert [one.option for one in seen.found.questions] == ["splits"]
    with pytest.raises(InvalidInput, match="'test' has the name of a split"):
        take(sqlite_store, images, root)
    assert state(sqlite_store, images) == {}
    assert take(sqlite_store, images, root, {"splits": "take"}).held_out == 1
    assert state(sqlite_store, images)["test/0.png"] == (None, "test", True)
    other = create_project(sqlite_store, "other", "image").id
    assert take(sqlite_store, other, root, {"splits": "ignore"}).labels == 3


@pytest.mark.parametrize("word", ["val", "valid", "Validation", "dev"])
def test_validation_rows_of_a_table_are_held_out(sqlite_store, images, tmp_path, word):
    rows = [["path", "label", "split"], ["0.png", "cat", "train"], ["1.png", "dog", word], ["2.png", "cat", "test"]]
    root = write_files(tmp_path / "in", {f"{n}.png": png(n) for n in range(3)} | {"manifest.csv": as_text(rows)})
    seen = seen_in(root)
    assert dict(seen.splits) == {"train": 1, word: 1, "test": 1} and (seen.n_test, seen.n_validation) == (1, 1)
    assert take(sqlite_store, images, root).held_out == 2
    assert state(sqlite_store, images)["1.png"] == ("dog", word, True)


def test_paths_that_look_like_splits_are_warned_about_when_nothing_is_held_out(sqlite_store, images, tmp_path):
    rows = [["path", "label"], ["train/0.png", "cat"], ["test/1.png", "dog"]]
    root = write_files(tmp_path / "in", {"train/0.png": png(0), "test/1.png": png(1), "manifest.csv": as_text(rows)})
    seen = seen_in(root)
    assert any("'test' (1), and no item becomes a test item" in warning for warning in seen.found.warnings)
    assert take(sqlite_store, images, root).warnings == seen.found.warnings


@pytest.mark.parametrize("format_", FORMATS)
def test_the_names_of_splits_are_exported_and_imported_exactly(sqlite_store, images, tmp_path, format_):
    files = {f"{split}/{label}/{n}.png": png(n) for n, (split, label) in enumerate(
        (split, label) for split in ("train", "val", "test") for label in ("cat", "dog"))}  # fmt: skip
    take(sqlite_store, images, write_files(tmp_path / "in", files))
    before = state(sqlite_store, images)
    options = ExportOptions(format=format_, held_out=True, media=True)
    export_project(sqlite_store, images, tmp_path / "out", options)
    back = create_project(sqlite_store, "back", "image").id
    report = take(sqlite_store, back, tmp_path / "out")
    assert report.splits == {"test": 2, "train": 2, "val": 2} and report.held_out == 4
    assert state(sqlite_store, back) == before


# A folder that is no class


def kaggle(folder: str) -> dict[str, bytes]:
    rows = [["Image_ID", "Label"], *([f"img{n}", ("cat", "dog")[n % 2]] for n in range(4))]
    return {f"{folder}/img{n}.png": png(n) for n in range(4)} | {"train.csv": as_text(rows)}


@pytest.mark.parametrize("folder", ["images", "train_images", "train"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_kaggle_table_beside_the_files_gives_the_labels(sqlite_store, images, tmp_path, folder, packed):
    """`train.csv` with ids without extension, and a folder with the files."""
    files = kaggle(folder) | {"sample_submission.csv": as_text([["Image_ID", "Label"], ["img0", "dog"]])}
    source = zip_of(tmp_path / "x.zip", files) if packed else write_files(tmp_path / "in", files)
    seen = seen_in(source)
    assert seen.found.tables == ["train.csv"] and seen.found.columns == {"path": "Image_ID", "label": "Label"}
    assert seen.found.media_root == folder and seen.found.first_rows[0] == {"Image_ID": "img0", "Label": "cat"}
    assert seen.labels == {"cat": 2, "dog": 2} and not seen.found.questions
    assert take(sqlite_store, images, source).labels == 4
    assert {label for label, _, _ in state(sqlite_store, images).values()} == {"cat", "dog"}


def test_files_that_no_row_names_are_counted(tmp_path):
    files = kaggle("images") | {"images/extra.png": png(9)}
    seen = seen_in(write_files(tmp_path / "in", files))
    assert "1 file is in no row of train.csv and not imported." in seen.found.warnings


def test_a_table_without_a_known_path_column_is_asked_about(sqlite_store, images, tmp_path):
    """The preview shows its columns, so that one of them can be chosen."""
    rows = [["specimen", "kind of animal"], ["img0", "cat"], ["img1", "dog"]]
    files = {f"photos/img{n}.png": png(n) for n in range(2)} | {"list.csv": as_text(rows)}
    root = write_files(tmp_path / "in", files)
    seen = seen_in(root, table="list.csv")
    assert [one.option for one in seen.found.questions] == ["path_column"]
    assert seen.found.column_names == ["specimen", "kind of animal"] and seen.found.choices == ["list.csv"]
    with pytest.raises(InvalidInput, match=r"list.csv has no column named path; .* Answer with --path-column"):
        take(sqlite_store, images, root, {"table": "list.csv"})
    chosen = {"table": "list.csv", "path_column": "specimen", "label_column": "Kind of animal", "media_root": "photos"}
    assert take(sqlite_store, images, root, chosen).labels == 2
    assert {label for label, _, _ in state(sqlite_store, images).values()} == {"cat", "dog"}


def test_several_tables_are_asked_about(sqlite_store, images, tmp_path):
    files = kaggle("images")
    files["other.csv"] = files["train.csv"].replace(b"dog", b"wolf")
    root = write_files(tmp_path / "in", files)
    with pytest.raises(InvalidInput, match="Several tables"):
        take(sqlite_store, images, root)
    assert take(sqlite_store, images, root, {"table": "other.csv"}).new_classes == ["cat", "wolf"]


@pytest.mark.parametrize("folder", ["images", "data", "audio", "Images"])
def test_the_preview_asks_about_a_lone_container_folder(sqlite_store, images, tmp_path, folder):
    root = write_files(tmp_path / "in", {f"{folder}/{n}.png": png(n) for n in range(3)})
    seen = seen_in(root)
    assert [one.option for one in seen.found.questions] == ["folders"] and seen.labels == {}
    with pytest.raises(InvalidInput, match=f"{folder!r}, usually not the name of a class"):
        take(sqlite_store, images, root)
    assert list_classes(sqlite_store, images) == [] and state(sqlite_store, images) == {}
    report = take(sqlite_store, images, root, {"folders": "ignore"})
    assert (report.imported, report.labels) == (3, 0)
    other = create_project(sqlite_store, "other", "image").id
    assert take(sqlite_store, other, root, {"folders": "classes"}).labels == 3


def test_the_preview_asks_about_a_single_class_folder_unless_the_project_has_that_class(sqlite_store, images, tmp_path):
    root = write_files(tmp_path / "in", {"holiday/0.png": png(0), "holiday/1.png": png(1)})
    with pytest.raises(InvalidInput, match="one folder, 'holiday'"):
        take(sqlite_store, images, root)
    assert take(sqlite_store, images, root, labels="ignore").imported == 2
    known = create_project(sqlite_store, "known", "image", ["holiday", "work"]).id
    assert take(sqlite_store, known, root).labels == 2


def test_containers_inside_class_folders_leave_the_class_folder_as_the_label(sqlite_store, images, tmp_path):
    files = {f"{label}/images/0.png": png(n) for n, label in enumerate(("cat", "dog"))}
    assert take(sqlite_store, images, write_files(tmp_path / "in", files)).labels == 2
    assert state(sqlite_store, images)["cat/images/0.png"][0] == "cat"


def test_notes_beside_class_folders_make_no_class(sqlite_store, images, tmp_path):
    """In earlier versions, a README in the top folder of an archive created a class with the name of that folder."""
    files = {"animals/README.md": b"About these files.", "animals/cat/0.png": png(0), "animals/dog/0.png": png(1)}
    report = take(sqlite_store, images, zip_of(tmp_path / "x.zip", files))
    assert report.new_classes == ["cat", "dog"] and report.imported == 2


def test_the_layout_of_hugging_face_with_a_table_in_each_split(sqlite_store, images, tmp_path):
    for number, packed in enumerate(("folder", "zip", "zip with a top folder")):
        top = "pets/" if "top" in packed else ""
        files = {}
        for place, split in enumerate(("train", "test")):
            rows = [["file_name", "label"], ["0.png", "cat"], ["sub/1.png", "dog"]]
            files |= {f"{top}{split}/metadata.csv": as_text(rows)}
            files |= {f"{top}{split}/{name}": png(10 * number + 2 * place + n) for n, (name, _) in enumerate(rows[1:])}
        source = (
            write_files(tmp_path / "in", files) if packed == "folder" else zip_of(tmp_path / f"{number}.zip", files)
        )
        seen = seen_in(source)
        assert seen.found.tables == [f"{top}test/metadata.csv", f"{top}train/metadata.csv"]
        assert seen.labels == {"cat": 2, "dog": 2} and dict(seen.splits) == {"test": 2, "train": 2}
        project = create_project(sqlite_store, packed, "image").id
        report = take(sqlite_store, project, source)
        assert (report.imported, report.labels, report.held_out) == (4, 2, 2)
        assert {label for label, _, _ in state(sqlite_store, project).values()} == {"cat", "dog"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_metadata_in_other_formats_is_read_in_split_folders(sqlite_store, images, tmp_path, suffix):
    import pyarrow
    from pyarrow import parquet

    rows = [{"file_name": "0.png", "label": "cat"}, {"file_name": "1.png", "label": "dog"}]
    files = {f"{split}/{n}.png": png(10 * k + n) for k, split in enumerate(("train", "validation")) for n in range(2)}
    root = write_files(tmp_path / "in", files)
    for split in ("train", "validation"):
        if suffix == "jsonl":
            (root / split / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
        else:
            parquet.write_table(pyarrow.Table.from_pylist(rows), root / split / "metadata.parquet")
    report = take(sqlite_store, images, root)
    assert (report.imported, report.labels, report.held_out) == (4, 2, 2)


def test_accents_encoded_in_two_ways_are_one_class_shown_as_first_given(sqlite_store, images, tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Bär") for form in ("NFC", "NFD"))
    assert composed != decomposed
    rows = [["path", "label"], ["0.png", decomposed], ["1.png", composed], ["2.png", "Fuchs"]]
    root = write_files(tmp_path / "in", {f"{n}.png": png(n) for n in range(3)} | {"manifest.csv": as_text(rows)})
    seen = seen_in(root)
    assert seen.new_classes == [decomposed, "Fuchs"] and seen.class_of == {composed: decomposed}
    for rule in ("ask", "add", "match"):
        project = create_project(sqlite_store, rule, "image").id
        assert take(sqlite_store, project, root, classes=rule).labels == 3
        assert [row.name for row in list_classes(sqlite_store, project)] == [decomposed, "Fuchs"]
    known = create_project(sqlite_store, "known", "image", [composed, "Fuchs"]).id
    take(sqlite_store, known, root)
    assert [row.name for row in list_classes(sqlite_store, known)] == [composed, "Fuchs"]


def test_names_beside_numbers_are_the_classes(sqlite_store, images, tmp_path):
    rows = [["file", "label", "label_name"], ["0.png", "0", "cat"], ["1.png", "1", "dog"], ["2.png", "0", "cat"]]
    root = write_files(tmp_path / "in", {f"{n}.png": png(n) for n in range(3)} | {"labels.csv": as_text(rows)})
    seen = seen_in(root)
    assert seen.new_classes == ["cat", "dog"] and seen.found.columns["label"] == "label_name"
    assert any("0 = cat, 1 = dog" in warning for warning in seen.found.warnings)
    assert take(sqlite_store, images, root).new_classes == ["cat", "dog"]
