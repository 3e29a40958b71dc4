"""The numbers beside the export button are those of the file."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from storage.database.schema import Item
from storage.exporting.counts import export_counts
from storage.exporting.rows import ExportOptions, ExportRows
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, merge_classes, retire_class
from storage.projects.projects import create_project
from tests.app import sample_store
from tests.app.finished_rounds import finish_round


@pytest.mark.parametrize("pseudo_above", [None, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("held_out", [False, True])
def test_counts_before_an_export_equal_the_rows_it_writes(sqlite_store, pseudo_above, held_out):
    """Labels, merged and retired classes, unreadable and held-out items: compared with the exported rows."""
    project = create_project(sqlite_store, "Counted", "image", ["a", "b", "c", "d"])
    ids = sample_store.add_items(sqlite_store, project, [(f"{k}.png", sample_store.picture(k, 24)) for k in range(12)])
    known, ana = list_classes(sqlite_store, project.id), annotator_named(sqlite_store, "Ana").id
    finish_round(sqlite_store, project, [0, 1], confidence=0.8 + 1e-6)
    pool = Pool(sqlite_store, project.id)
    for item in ids[:3]:
        assert pool.label(item, known[0].id, annotator=ana).accepted
    merge_classes(sqlite_store, project.id, known[1].id, known[0].id, by=ana)
    retire_class(sqlite_store, project.id, known[2].id, by=ana)
    with sqlite_store.write() as connection:
        connection.execute(update(Item).where(Item.id.in_(ids[3:5])).values(held_out=True, truth_class_id=known[0].id))
        connection.execute(update(Item).where(Item.id == ids[5]).values(condition="missing"))
    options = ExportOptions(pseudo_above=pseudo_above, held_out=held_out)
    with sqlite_store.read() as connection:
        rows = [item.values["source"] for item in ExportRows(sqlite_store, connection, project.id, options)]
    found = export_counts(sqlite_store, project.id, options)
    assert found.total == len(rows)
    assert (found.labels, found.pseudo_labels, found.test_items) == (3, rows.count("pseudo"), 2 if held_out else 0)
    assert found.pseudo_labels == (4 if pseudo_above in (0.5, 0.8) else 0)


def test_a_confidence_at_the_limit_is_counted_and_exported_the_same_way(sqlite_store):
    """0.7 is larger than its float32 value: the comparison in both places must use the same precision."""
    project = create_project(sqlite_store, "Limit", "image", ["a", "b"])
    sample_store.add_items(sqlite_store, project, [(f"{k}.png", sample_store.picture(k, 24)) for k in range(6)])
    finish_round(sqlite_store, project, [0], confidence=0.7)
    for above in (0.7, 0.699999988):
        options = ExportOptions(pseudo_above=above)
        with sqlite_store.read() as connection:
            rows = list(ExportRows(sqlite_store, connection, project.id, options))
        assert export_counts(sqlite_store, project.id, options).total == len(rows)


def test_without_a_finished_round_there_are_no_pseudo_labels_to_count(sqlite_store):
    project = create_project(sqlite_store, "New", "image", ["a", "b"])
    sample_store.add_items(sqlite_store, project, [("0.png", sample_store.picture(0, 24))])
    found = export_counts(sqlite_store, project.id, ExportOptions(pseudo_above=0.5, held_out=True))
    assert (found.labels, found.pseudo_labels, found.test_items, found.total) == (0, 0, 0, 0)
