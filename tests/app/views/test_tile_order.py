"""The grid's order: equal to sorting all waiting items anew, after every label, for every page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.views.predictions import newest_predictions
from app.views.tile_order import BLOCK, _true_places
from app.web.routes.tiles import TileQuery, tiles
from core.config import RoundConfig
from core.types import Selection
from storage.labeling.item_rows import ItemFilter
from storage.projects.classes import list_classes, merge_classes
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, add_items, make_pool

N = 40


def finish(made: Made) -> None:
    """A round with probabilities of which some are equal, in sixteenths: their sums are exact."""
    log, snapshot = RoundLog(made.store, made.project_id), made.pool.snapshot()
    row = log.request(RoundConfig())
    log.start(row.id)
    rng, n = np.random.default_rng(0), len(snapshot.item_ids)
    probabilities = (rng.multinomial(16, rng.dirichlet(np.ones(3), n)) / 16).astype(np.float32)
    arrays = {"item_ids": snapshot.item_ids, "probabilities": probabilities}
    nothing = Selection(item_ids=np.empty(0, np.int64), scores=np.empty(0, np.float32), strategy="bico")
    log.finish(row.id, arrays=arrays, selection=nothing, metrics={"has_model": True})


def simply_sorted(made: Made, query: TileQuery) -> list[tuple[int, int | None]]:
    """(item, predicted class) of all matching tiles, by a plain loop over the waiting items."""
    found = newest_predictions(made.store, made.project_id)
    known = list_classes(made.store, made.project_id, include_inactive=True)
    rows = []
    for item in made.pool.items(ItemFilter(state="waiting"), order="queue", limit=None):
        best = found.most_probable(item.id, known, limit=1) if found is not None else []
        probability = float(best[0].probability) if best else 0.0
        rows.append((probability, item.id, best[0].class_id if best else None))
    if query.items is not None:
        rows = [row for row in rows if row[1] in query.items]
    if query.class_id is not None:
        rows = [row for row in rows if row[2] == query.class_id]
    if found is not None:
        rows.sort(key=lambda row: row[0] if query.order == "unsure" else -row[0])
    return [(item, class_id) for _, item, class_id in rows]


def check(made: Made, **fields: Any) -> None:
    for order in ("sure", "unsure"):
        meant = simply_sorted(made, TileQuery(order=order, **fields))
        for offset in (0, 3, 7, 1_000):
            found = tiles(made.store, made.project_id, TileQuery(order=order, offset=offset, limit=5, **fields))
            assert found["total"] == len(meant)
            assert [(tile["item_id"], tile["class_id"]) for tile in found["tiles"]] == meant[offset : offset + 5]


@pytest.mark.parametrize("with_round", [False, True])
def test_every_page_equals_a_plain_sort_after_labels_imports_and_merges(sqlite_store, with_round):
    made = make_pool(sqlite_store, N)
    made.pool.label(made.items[5], made.classes[0], annotator=made.ann)
    if with_round:
        finish(made)
    check(made)
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    check(made)
    check(made, items=tuple(made.items[:9]))
    made.pool.undo(annotator=made.ann)
    made.pool.undo(annotator=made.ann)  # an item whose label the model has seen waits again
    check(made)
    if with_round:
        check(made, class_id=made.classes[1])
        merge_classes(made.store, made.project_id, made.classes[0], made.classes[1])
        check(made, class_id=made.classes[1])
        check(made, class_id=made.classes[0])
    add_items(made.store, made.project_id, ["new", "newer"])
    check(made)


def test_a_page_is_found_across_blocks():
    wanted = np.random.default_rng(0).random(3 * BLOCK + 5) < 0.01
    meant = np.flatnonzero(wanted)
    for offset, limit in ((0, 10), (160, 20), (len(meant) - 4, 9), (len(meant), 5), (0, 10**6)):
        assert _true_places(wanted, offset, limit).tolist() == meant[offset : offset + limit].tolist()
