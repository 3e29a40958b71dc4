"""The table written by columns equals the table written row by row."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

from storage.database.store import Store
from storage.exporting import rows as export_rows
from storage.exporting.columns import columns_of
from storage.exporting.formats import ParquetWriter
from storage.exporting.rows import ExportOptions, ExportRows
from storage.exporting.run import export_project
from storage.projects.classes import merge_classes
from tests.storage.export_shop import Shop, opened_shop, picked_round
from tests.storage.pools import add_items, make_pool


def by_rows(shop: Shop, options: ExportOptions, path: Path) -> tuple[list, int]:
    with shop.store.read() as connection:
        rows = ExportRows(shop.store, connection, shop.project, options)
        with ParquetWriter(path) as writer:
            for item in rows:
                writer.write(item.values | {"path": ""})
    return parquet.read_table(path).to_pylist(), rows.n_left_out


def by_columns(shop: Shop, options: ExportOptions, path: Path) -> tuple[list, int]:
    with shop.store.read() as connection:
        rows = ExportRows(shop.store, connection, shop.project, options)
        with ParquetWriter(path) as writer:
            for columns in columns_of(rows):
                writer.write_columns(columns)
    return parquet.read_table(path).to_pylist(), rows.n_left_out


@pytest.fixture(scope="module")
def full_shop(empty_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A project with every kind of row: picks, merged classes, a test item, an item without a label. Exports do not
    change it."""
    home = tmp_path_factory.mktemp("full_shop")
    shutil.copy(empty_sqlite, home / "winnow.sqlite")
    with Store.open(home=home) as store:
        shop = opened_shop(store, home)
        picked_round(shop, 3, guess=1, confidence=0.5, nearest_labeled=shop.items[0])
        shop.label(3, 0)
        merge_classes(shop.store, shop.project, shop.classes[0], shop.classes[1])
        truth = {"held_out": True, "truth_class_id": shop.classes[2], "media_type": "image/png"}
        add_items(shop.store, shop.project, ["test item"], **truth)
        add_items(shop.store, shop.project, ["nothing is known about this"], media_type="image/png")
        yield shop


@pytest.mark.parametrize("chunk", [1, 2, 5_000])
@pytest.mark.parametrize("contested", ["keep", "majority", "omit"])
@pytest.mark.parametrize("pseudo", [None, 0.0, 0.6])
def test_columns_and_rows_give_the_same_table(full_shop, tmp_path, monkeypatch, chunk, contested, pseudo):
    shop = full_shop
    monkeypatch.setattr(export_rows, "CHUNK", chunk)
    options = ExportOptions(format="parquet", pseudo_above=pseudo, held_out=True, contested=contested)
    meant = by_rows(shop, options, tmp_path / "rows.parquet")
    assert by_columns(shop, options, tmp_path / "columns.parquet") == meant
    done = export_project(shop.store, shop.project, tmp_path / "out", options)
    assert parquet.read_table(tmp_path / "out" / "labels.parquet").to_pylist() == meant[0]
    assert done.rows == len(meant[0]) and done.contested_left_out == meant[1]
    assert done.contested == sum(row["contested"] for row in meant[0])
    assert done.labels == {name: [row["label"] for row in meant[0]].count(name) for name in done.labels}


def test_labels_of_another_project_between_the_items_are_left_out(sqlite_store, tmp_path):
    """Items of two projects whose imports alternated, each with labels of two annotators."""
    one, two = (
        make_pool(sqlite_store, 2, "one", labels_per_item=2),
        make_pool(sqlite_store, 2, "two", labels_per_item=2),
    )
    late = add_items(sqlite_store, one.project_id, ["late"])
    for made, item in ((one, one.items[0]), (two, two.items[0]), (one, late[0])):
        made.pool.label(item, made.classes[0], annotator=made.ann)
        made.pool.label(item, made.classes[1], annotator=made.bob)
    for format_ in ("parquet", "jsonl"):
        done = export_project(sqlite_store, one.project_id, tmp_path / format_, ExportOptions(format=format_))
        assert (done.rows, done.contested) == (2, 2)
