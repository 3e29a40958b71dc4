"""The grid's orders equal a new sort of all waiting items, after every label, for every page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from app.views import tile_order
from app.views.predictions import newest_predictions
from app.views.similarity import similar_items
from app.views.tile_order import BLOCK, Order, page
from app.web.routes.tiles import TileQuery, tiles
from core.config import RoundConfig
from core.types import Selection
from storage.labeling.browsing.item_browser import ItemQuery
from storage.labeling.item_rows import ItemFilter
from storage.projects.classes import list_classes, merge_classes
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, add_items, make_pool

N = 40
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


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
    if query.find.items is not None:
        rows = [row for row in rows if row[1] in query.find.items]
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
        for after in (0, 4):
            if after < len(meant):
                query = TileQuery(order=order, after=meant[after][0], limit=5, **fields)
                found = tiles(made.store, made.project_id, query)["tiles"]
                assert [tile["item_id"] for tile in found] == [one for one, _ in meant[after + 1 : after + 6]]


@pytest.mark.parametrize("with_round", [False, pytest.param(True, marks=pytest.mark.slow(2))])
def test_every_page_equals_a_plain_sort_after_labels_imports_and_merges(sqlite_store, with_round):
    made = make_pool(sqlite_store, N)
    made.pool.label(made.items[5], made.classes[0], annotator=made.ann)
    if with_round:
        finish(made)
    check(made)
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    check(made)
    check(made, find=ItemQuery(show="waiting", items=tuple(made.items[:9])))
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


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3])  # few are sorted, many are found along the order
@pytest.mark.parametrize("head", [0, 40])
def test_a_page_is_found_across_blocks(share, head):
    rng = np.random.default_rng(0)
    body = rng.permutation(3 * BLOCK + 5).astype(np.int32)
    first = body[rng.permutation(len(body))[:head]]
    order = Order.of(body).after(first) if head else Order.of(body)
    complete = [*first.tolist(), *(one for one in body.tolist() if one not in set(first.tolist()))]
    assert order.positions.tolist() == complete
    wanted = rng.random(len(body)) < share
    wanted[first[::2]] = True
    meant = [one for one in complete if wanted[one]]
    for offset, limit in ((0, 10), (160, 20), (len(meant) - 4, 9), (len(meant), 5), (0, 10**6)):
        assert page(order, wanted, limit, offset=offset).tolist() == meant[offset : offset + limit]
    for k in (0, 3, 19, len(meant) // 2, len(meant) - 1):
        assert page(order, wanted, 7, after=meant[k]).tolist() == meant[k + 1 : k + 8]
    for place in (5, 30, 2_000):  # the last tile may no longer match when the next page is requested
        wanted[complete[place]] = False
        following = [one for one in complete[place:] if wanted[one]]
        assert page(order, wanted, 3, after=complete[place]).tolist() == following[:3]


@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize("descending", [False, True])
def test_items_of_equal_value_are_in_the_order_of_positions_on_every_page(share, descending):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 5, 4_000)
    wanted = rng.random(4_000) < share
    complete = sorted(range(4_000), key=lambda one: (-values[one] if descending else values[one], one))
    order = Order(lambda: np.array(complete, np.int32), values, descending=descending)
    meant, found, after = [one for one in complete if wanted[one]], [], -1
    while len(part := page(order, wanted, 7, after=after)):
        found += part.tolist()
        after = found[-1]
    assert found == meant


def test_items_are_sorted_by_name_import_and_time_of_the_label(sqlite_store):
    made = make_pool(sqlite_store, 0)
    items = add_items(made.store, made.project_id, ["b", "C", "a", "b2"])
    for item in (items[3], items[0], items[2]):
        made.pool.label(item, made.classes[0], annotator=made.ann, at=AT + timedelta(seconds=items.index(item)))
    everything = ItemQuery(show="all")

    def sorted_by(order: str) -> list[int]:
        found = tiles(made.store, made.project_id, TileQuery(find=everything, order=order))
        return [items.index(tile["item_id"]) for tile in found["tiles"]]

    assert sorted_by("name") == [2, 0, 3, 1]
    assert (sorted_by("oldest"), sorted_by("newest")) == ([0, 1, 2, 3], [3, 2, 1, 0])
    assert sorted_by("labeled") == [3, 2, 0, 1]
    made.pool.put_first([items[1]])
    assert sorted_by("queue")[0] == 1
    items += add_items(made.store, made.project_id, ["aa"])
    assert sorted_by("name") == [2, 4, 0, 3, 1]


def test_an_order_that_is_not_available_for_a_large_pool_says_so(sqlite_store, monkeypatch):
    made = make_pool(sqlite_store, N)
    log, ids = RoundLog(made.store, made.project_id), np.array(made.items)
    row = log.request(RoundConfig())
    log.start(row.id)
    rng = np.random.default_rng(0)
    arrays = {"item_ids": ids, "probabilities": np.full((N, 3), 1 / 3, np.float32)}
    arrays["embeddings"] = rng.normal(size=(N, 4)).astype(np.float32)
    nothing = Selection(item_ids=np.empty(0, np.int64), scores=np.empty(0, np.float32), strategy="bico")
    log.finish(row.id, arrays=arrays, selection=nothing, metrics={"has_model": True})

    def asked(order: str) -> dict[str, Any]:
        return tiles(made.store, made.project_id, TileQuery(order=order))

    assert [asked(order)["note"] for order in ("outliers", "duplicates", "sure", "queue")] == [""] * 4
    for module in (similar_items, tile_order):
        monkeypatch.setattr(module, "MOST_IN_CELLS", N - 1)
    similar_items._neighborhoods.clear()
    for order in ("outliers", "duplicates"):
        found = asked(order)
        assert found["note"].startswith(f"Pools of more than {N - 1} items cannot be sorted this way. They are in")
        assert [one["item_id"] for one in found["tiles"]] == [one["item_id"] for one in asked("queue")["tiles"]]
    assert asked("queue")["note"] == ""
