"""Heartbeats, requested comparisons, and media for machines without media."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from core.errors import Cancelled, InvalidInput, NotFound
from core.types import Progress
from storage.database.schema import Worker
from storage.database.store import Store, now
from storage.media import shared as shared_media
from storage.rounds import comparisons, workers
from tests.round_pools import draw_project


def test_the_panel_shows_the_workers_and_the_time_since_their_last_heartbeat(store):
    workers.register(store, "a", host="left", pid=11, device="cpu x2")
    workers.register(store, "b", host="right", pid=12, device="cuda:0")
    with store.write() as connection:
        connection.execute(update(Worker).where(Worker.id == "a").values(heartbeat_at=now() - timedelta(seconds=90)))
    rows = workers.list_workers(store, stale_seconds=20)
    assert [(w.id, w.host, w.device, w.living) for w in rows] == [
        ("b", "right", "cuda:0", True),
        ("a", "left", "cpu x2", False),
    ]
    assert (now() - rows[1].heartbeat_at).total_seconds() == pytest.approx(90, abs=5)
    assert workers.beat(store, "a", round_id=None, stage="train")
    revived = {w.id: w for w in workers.list_workers(store)}["a"]
    assert revived.living and revived.stage == "train"
    workers.remove(store, ["a", "b"])
    assert workers.list_workers(store) == []
    assert not workers.beat(store, "a", round_id=None, stage="")


def test_a_worker_without_a_heartbeat_for_a_day_is_removed(sqlite_store):
    workers.register(sqlite_store, "old", host="h", pid=1, device="cpu")
    with sqlite_store.write() as connection:
        connection.execute(update(Worker).values(heartbeat_at=now() - timedelta(days=2)))
    workers.register(sqlite_store, "new", host="h", pid=2, device="cpu")
    assert [w.id for w in workers.list_workers(sqlite_store)] == ["new"]


def shared_stores(tmp_path: Path) -> tuple[Store, Store]:
    """Two machines with one database and one artifact folder, but separate homes."""
    url = f"sqlite:///{tmp_path / 'winnow.sqlite'}"
    Store.open(url, tmp_path / "home").close()
    folder = str(tmp_path / "shared")
    return Store(url, tmp_path / "home", folder), Store(url, tmp_path / "elsewhere", folder)


def test_media_reaches_workers_that_share_only_database_and_artifacts(tmp_path):
    here, there = shared_stores(tmp_path)
    drawn = draw_project(here, n_items=3)
    project_id, item_ids, hashes = drawn.project_id, drawn.item_ids, drawn.hashes
    assert shared_media.holds_media(here) and not shared_media.holds_media(there)
    with pytest.raises(NotFound):
        shared_media.reader(there, project_id)(hashes[0])

    def impatient(progress: Progress) -> None:
        raise Cancelled(progress.note)

    with pytest.raises(Cancelled, match="waiting for the machine that holds the media"):
        shared_media.share(there, project_id, item_ids[-1], impatient)
    shared_media.share(here, project_id, item_ids[-1])
    shared_media.share(there, project_id, item_ids[-1], impatient)  # returns at once
    for sha256 in hashes:
        assert shared_media.reader(there, project_id)(sha256) == shared_media.reader(here, project_id)(sha256)
    here.close()
    there.close()


def test_nothing_is_copied_when_the_artifacts_are_beside_the_store(sqlite_store):
    drawn = draw_project(sqlite_store, n_items=2)
    project_id, item_ids, hashes = drawn.project_id, drawn.item_ids, drawn.hashes
    shared_media.share(sqlite_store, project_id, item_ids[-1])
    assert shared_media.shared_until(sqlite_store, project_id) == 0
    assert len(shared_media.reader(sqlite_store, project_id)(hashes[0])) > 0


def test_a_result_is_stored_only_for_the_request_it_was_computed_for(sqlite_store):
    first = comparisons.request(sqlite_store, 7, ["random"])
    assert comparisons.request(sqlite_store, 7, ["random"]) == first  # a second request joins the first
    second = comparisons.request(sqlite_store, 7, ["badge", "random"])
    assert not comparisons.store_result(sqlite_store, first)
    done = dataclasses.replace(second, status="finished", picks={"badge": [3, 1]}, overlap={"badge": 1})
    assert comparisons.store_result(sqlite_store, done)
    assert comparisons.get(sqlite_store, 7) == done
    assert comparisons.requested(sqlite_store) == []
    with pytest.raises(InvalidInput):
        comparisons.request(sqlite_store, 7, [])


def test_a_heartbeat_far_ahead_was_written_with_a_wrong_clock_and_counts_as_stale(sqlite_store):
    workers.register(sqlite_store, "a", host="left", pid=11, device="cpu")
    with sqlite_store.write() as connection:
        connection.execute(update(Worker).values(heartbeat_at=now() + timedelta(days=3650)))
    [row] = workers.list_workers(sqlite_store)
    assert not row.living
    assert workers.beat(sqlite_store, "a", round_id=None, stage="") and workers.living_workers(sqlite_store)
