"""The grid's tiles: items that wait for a label, with predictions, sorted by confidence.

An item whose label the model has seen has no prediction. In a blind project (`ProjectSettings.is_blind`), tiles carry
no predictions, and neither order nor filter depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, newest_predictions
from app.views.tile_order import NONE, Direction, Page, TileOrder, tile_order
from app.web.routes.media import media_path, sound_path
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.labeling.state_arrays import ItemStates, item_states
from storage.media.types import media_kind
from storage.projects import classes
from storage.projects.class_rows import ClassRow
from storage.projects.projects import get_project

NO_CLASS = -2  # the position of a class that nothing is predicted as


@dataclass(frozen=True, slots=True, kw_only=True)
class TileQuery:
    class_id: int | None = None  # only items predicted as this class
    order: Direction = "sure"
    offset: int = 0
    limit: int = 60
    items: tuple[int, ...] | None = None  # only these items, for example an area of the map


def tiles(store: Store, project_id: int, query: TileQuery) -> dict[str, Any]:
    """One page of tiles and the total number. Before the first round, the order is that of the queue."""
    blind = get_project(store, project_id).settings.is_blind
    known = classes.list_classes(store, project_id, include_inactive=True)
    pool = Pool(store, project_id)
    found = None if blind else newest_predictions(store, project_id)
    active = [row for row in known if row.active]
    page = _page(pool, found, known, query)
    rows = {row.id: row for row in pool.items_by_id(page.item_ids.tolist())}
    made = []
    for item_id, position, confidence in zip(page.item_ids, page.predicted, page.confidence, strict=True):
        item = rows.get(int(item_id))
        if item is None:
            continue
        made.append(
            {
                "item_id": item.id,
                "name": item.name,
                "thumb": media_path(item, "thumb.png"),
                "audio": sound_path(item) if media_kind(item.media_type) == "audio" else None,
                "guess": active[position].name if position >= 0 else None,
                "class_id": active[position].id if position >= 0 else None,
                "confidence": round(float(confidence), 4) if position >= 0 else None,
            }
        )
    return {"tiles": made, "total": page.total, "guessed": found is not None}


def _page(pool: Pool, found: RoundPredictions | None, known: list[ClassRow], query: TileQuery) -> Page:
    """The waiting items of one page, with their predictions; no request reads or sorts all items again."""
    states = item_states(pool.store, pool.project_id)
    predicted = None
    if query.class_id is not None:
        active = [row.id for row in known if row.active]
        predicted = active.index(query.class_id) if query.class_id in active else NO_CLASS
    if query.items is not None:
        states = _only(states, query.items)
    if found is not None:
        order = (
            tile_order(pool.store, states, found, known, query.order)
            if query.items is None
            else TileOrder(states, found, found.best_classes(known), query.order)
        )
        return order.page(states, predicted, query.offset, query.limit)
    if predicted is not None:
        return _queue_page(np.empty(0, np.int64), 0)
    if query.items is None:
        return _queue_page(pool.waiting_ids(query.limit, query.offset), states.tally.waiting)
    ids = pool.in_queue_order(states.item_ids[states.waiting].tolist())
    return _queue_page(ids[query.offset : query.offset + query.limit], len(ids))


def _queue_page(item_ids: NDArray[np.int64], total: int) -> Page:
    nothing = np.full(len(item_ids), NONE, np.int16)
    return Page(item_ids, nothing, np.zeros(len(item_ids), np.float32), total)


def _only(states: ItemStates, item_ids: tuple[int, ...]) -> ItemStates:
    """The states of these items alone."""
    at = states.positions(np.unique(np.array(item_ids, np.int64)))
    return states.at(at[at >= 0])
