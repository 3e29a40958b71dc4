"""The time of the last activity in a project, and hints that are shown once."""

from __future__ import annotations

from sqlalchemy import update

from core.config import RoundConfig
from storage.database.schema import Item
from storage.labeling.pool import Pool
from storage.projects.activity import last_activity
from storage.projects.hints import has_seen, mark_seen
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog
from tests.storage.pools import make_pool


def test_the_last_activity_is_the_newest_of_import_label_and_round(store):
    made = make_pool(store, 4)
    with store.write() as connection:
        connection.execute(update(Item).values(imported_at=get_project(store, made.project_id).created_at))
    imported = last_activity(store, made.project_id)
    assert imported == get_project(store, made.project_id).created_at
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    made.pool.label(made.items[1], made.classes[0], annotator=made.bob)
    labeled = last_activity(store, made.project_id)
    assert labeled == Pool(store, made.project_id).recent(made.bob, 1)[0].at > imported
    requested = RoundLog(store, made.project_id).request(RoundConfig()).requested_at
    assert last_activity(store, made.project_id) == requested > labeled


def test_a_hint_is_seen_once_and_by_one_person(store):
    made = make_pool(store, 1)
    assert not has_seen(store, made.ann, "tour")
    for _ in range(2):
        mark_seen(store, made.ann, "tour")
    assert has_seen(store, made.ann, "tour") and not has_seen(store, made.bob, "tour")
    assert not has_seen(store, made.ann, "other")
