"""The table of a round's picks shows the whole reason of each, and its effect."""

from __future__ import annotations

import numpy as np

from app.views.cards.pick_table import TITLES, pick_table
from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.exporting.reasons import PICK_COLUMNS
from storage.rounds.log import RoundLog
from tests.storage.pools import make_pool


def test_the_table_shows_every_reason_and_hindsight_that_is_stored():
    assert set(PICK_COLUMNS) - set(TITLES) == {"pick_nearest_sha256", "hindsight_round"}  # for machines


def test_a_pick_says_whether_its_prediction_was_wrong_as_soon_as_it_is_labeled(sqlite_store):
    made = make_pool(sqlite_store, 4)
    made.pool.label(made.items[3], made.classes[0], annotator=made.ann)
    log = RoundLog(sqlite_store, made.project_id)
    row = log.request(RoundConfig())
    log.start(row.id)
    reasons = tuple(
        PickReason(order=k + 1, score=1.0 - k, guess=1, confidence=0.5, nearest_labeled=made.items[3], gradient_rank=1)
        for k in range(3)
    )
    ids = np.array(made.items[:3], np.int64)
    picks = Selection(item_ids=ids, scores=np.array([1, 0, -1], np.float32), strategy="bico", reasons=reasons)
    log.finish(row.id, arrays={"item_ids": ids}, selection=picks, metrics={})
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    made.pool.label(made.items[1], made.classes[2], annotator=made.ann)
    log.set_hindsight(row.id, 2, {"n_changed": 3, "n_neighbors": 20})
    lines = pick_table(sqlite_store, made.project_id, row.id)
    names = [made.pool.item(item).name for item in made.items]
    assert [line["item"] for line in lines] == names[:3]
    assert [line["prediction was wrong"] for line in lines] == [False, True, None]
    assert [line["changed nearby"] for line in lines] == [None, 3, None]
    assert all(line["nearest labeled"] == names[3] and line["gradient rank"] == 1 for line in lines)
    assert "loss before" not in lines[0]  # a column that no pick has
