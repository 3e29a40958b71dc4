"""The table of annotators in Review: counts, the labels of today in the visitor's zone, and the last action."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from app.views.cards.annotator_table import COLUMNS, annotator_lines
from storage.projects.annotators import annotator_statistics
from tests.storage.pools import event, make_pool

EAST = timezone(timedelta(hours=9))


def test_labels_of_today_are_those_of_the_visitors_day(sqlite_store):
    made = make_pool(sqlite_store)
    evening, morning = datetime(2024, 5, 1, 23, 30, tzinfo=EAST), datetime(2024, 5, 2, 8, 30, tzinfo=EAST)
    for item, at, seconds in zip(made.items, [evening, morning, morning], [1.0, 2.0, 3.0], strict=False):
        made.pool.label(item, made.classes[0], annotator=made.ann, at=at, seconds=seconds)
    made.pool.apply(
        [event(made.items[5], "skip", at=morning), event(made.items[6], "flag", at=morning)], annotator=made.ann
    )
    made.pool.label(made.items[7], made.classes[0], annotator=made.bob, at=evening)
    made.pool.undo(annotator=made.bob)
    found = annotator_statistics(sqlite_store, made.project_id, EAST)
    ann, bob = annotator_lines(found, datetime(2024, 5, 2, 20, 0, tzinfo=EAST))
    assert ann[:-1] == ["Ann", "3", "2", "1", "1", "0", "2.0 s"] and ann[-1].endswith("days ago")
    assert bob == ["Bob", "0", "0", "0", "0", "1", "", ""] and len(COLUMNS) == len(bob)
