"""Exports of a chosen set of items: with and without labels, with flags and notes, the same in every table format."""

from __future__ import annotations

import csv
import json

import pyarrow.parquet
import pytest

from core.errors import InvalidInput
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.labeling.held_out import move_to_test
from tests.storage.pools import add_items, event, make_pool

SHOWN = ("name", "label", "source", "flagged", "note", "split")


@pytest.fixture
def made(store):
    """A labeled item with a flag and a note, a label with a separate note, an unlabeled item with two notes."""
    pool = make_pool(store, 4, labels_per_item=2)
    pool.items.extend(add_items(store, pool.project_id, ["test item"], truth_class_id=pool.classes[1]))
    move_to_test(store, pool.project_id, [pool.items[4]])
    items, (robin, _, owl) = pool.items, pool.classes
    first = [event(items[0], class_id=robin), event(items[0], "flag"), event(items[0], "note", note="noise")]
    second = [event(items[1], class_id=owl, note="at night"), event(items[2], "note", note="old")]
    third = [event(items[2], "note", note="two\nlines"), event(items[1], "note", note="not shown")]
    pool.pool.apply([*first, *second, *third], annotator=pool.ann)
    pool.pool.apply([event(items[2], "note", note="of Bob")], annotator=pool.bob)
    return pool


def exported(made, folder, **options) -> list[tuple]:
    """The rows of an export in each table format, which must be equal."""
    found = []
    for form in ("csv", "jsonl", "parquet"):
        target = folder / form
        report = export_project(made.store, made.project_id, target, ExportOptions(format=form, **options))
        if form == "csv":
            rows = list(csv.DictReader((target / "labels.csv").read_text("utf-8-sig").splitlines(keepends=True)))
            rows = [row | {"flagged": row["flagged"].lower() == "true"} for row in rows]
            rows = [{name: value if value != "" else None for name, value in row.items()} for row in rows]
        elif form == "jsonl":
            rows = [json.loads(line) for line in (target / "labels.jsonl").read_text("utf-8").splitlines()]
        else:
            rows = pyarrow.parquet.read_table(target / "labels.parquet").to_pylist()
        assert report.rows == len(rows)
        assert sum(report.labels.values()) == sum(row["label"] is not None for row in rows)
        found.append([tuple(row[name] for name in SHOWN) for row in rows])
    assert found[0] == found[1] == found[2]
    return found[0]


def test_labels_have_the_flag_and_the_notes_of_their_items(made, tmp_path):
    assert exported(made, tmp_path) == [
        ("birds 0.wav", "robin", "label", True, "noise", "train"),
        ("birds 1.wav", "owl", "label", False, "at night", "train"),
    ]


def test_exactly_the_chosen_items_are_exported_with_or_without_a_label(made, tmp_path):
    chosen = (made.items[4], made.items[2], made.items[0], 10**9)
    assert exported(made, tmp_path, items=chosen, unlabeled=True) == [
        ("birds 0.wav", "robin", "label", True, "noise", "train"),
        ("birds 2.wav", None, "none", False, "two\nlines\nof Bob", "train"),
        ("test item.wav", None, "none", False, None, "test"),
    ]
    manifest = json.loads((tmp_path / "csv" / "manifest.json").read_text("utf-8"))
    assert manifest["content"]["items"] == 4 and manifest["counts"]["rows"] == 3


def test_labels_of_test_items_are_exported_only_on_request(made, tmp_path):
    rows = exported(made, tmp_path, items=(made.items[4],), unlabeled=True, held_out=True)
    assert rows == [("test item.wav", "wren", "truth", False, None, "test")]
    assert exported(made, tmp_path / "labels only", items=(made.items[2], made.items[4])) == []


def test_formats_that_need_a_label_refuse_items_without_one():
    with pytest.raises(InvalidInput, match="csv, jsonl, parquet only"):
        ExportOptions(format="folders", unlabeled=True)
