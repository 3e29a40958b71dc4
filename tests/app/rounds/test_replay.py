"""A replay starts from the pool of its original, regardless of later changes to the project."""

from __future__ import annotations

import numpy as np
import pytest

from app.rounds import requests as round_requests
from app.rounds import steps
from app.rounds.stored_round import SNAPSHOT, StoredRound
from core.types import PoolSnapshot, ignore
from storage.database.store import Store
from storage.labeling.held_out import move_to_pool, move_to_test
from storage.projects.deletion import request_deletion, run_deletion
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog, RoundRow
from tests.app.real_rounds import import_clips, quick_settings, run_round_here


def pool_of(store: Store, row: RoundRow) -> PoolSnapshot:
    """The pool at the start of the round."""
    of = StoredRound(store, row, {}, ignore)
    result = steps.perform(SNAPSHOT, of)
    return StoredRound(store, row, {SNAPSHOT: result.to_dict()}, ignore).start.snapshot


@pytest.mark.slow
def test_a_replay_has_the_test_items_of_its_original(sqlite_store, tmp_path, monkeypatch):
    monkeypatch.setenv("WINNOW_HOME", str(sqlite_store.home))
    import_clips(tmp_path / "clips")
    project = get_project(sqlite_store, "digits")
    row = run_round_here(sqlite_store, project.id, quick_settings())
    before = StoredRound(sqlite_store, row, {}, ignore).start.snapshot
    trained, tests = before.item_ids[before.labeled], before.item_ids[before.held_out]
    assert len(trained) == 18 and len(tests) == 6
    move_to_test(sqlite_store, project.id, trained[:5].tolist())
    move_to_pool(sqlite_store, project.id, tests[:2].tolist())

    replay = round_requests.request_replay(sqlite_store, project.id, row.id)
    found = pool_of(sqlite_store, replay)
    for name in ("item_ids", "labels", "held_out", "held_out_labels", "eligible"):
        assert np.array_equal(getattr(found, name), getattr(before, name)), name
    assert found.hashes == before.hashes and found.class_names == before.class_names
    RoundLog(sqlite_store, project.id).cancel(replay.id)

    gone = int(trained[0])
    run_deletion(sqlite_store, request_deletion(sqlite_store, project.id, project.name, [gone]).id, ignore)
    found = pool_of(sqlite_store, round_requests.request_replay(sqlite_store, project.id, row.id))
    stays = before.item_ids != gone
    assert np.array_equal(found.item_ids, before.item_ids[stays])
    assert np.array_equal(found.held_out, before.held_out[stays]) and len(found.hashes) == 23
