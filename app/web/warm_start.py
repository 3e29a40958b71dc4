"""Fills the caches for the first cards and the first grid of a large project in the background, at server start.

The first request for cards reads the states of all items and checks the arrays of the newest round. The first grid
sorts the items and reads their names. With a million items this takes four seconds of CPU time. The project that was
labeled last is read at start, others when they are opened.
"""

from __future__ import annotations

import logging
from threading import Thread

from app.views.predictions import newest_predictions
from app.views.similarity.neighbors import nearest_labeled
from app.views.tile_order import Sort
from app.web.routes.tiles import TileQuery, found_items
from storage.database.store import Store
from storage.labeling.labeled_items import last_labeled_project
from storage.labeling.state_arrays import item_states

log = logging.getLogger("winnow.pages")
GRID_ORDERS: tuple[Sort, ...] = ("sure", "unsure", "queue", "name")  # the orders that are computed at start


def start_reading(store: Store) -> Thread:
    """Run `read_last_labeled` in a daemon thread."""
    thread = Thread(target=_read, args=(store,), name="winnow-warm-start", daemon=True)
    thread.start()
    return thread


def read_last_labeled(store: Store) -> int | None:
    """Read the project that was labeled last into memory. Returns its id, or None if there are no labels."""
    project_id = last_labeled_project(store)
    if project_id is None:
        return None
    item_states(store, project_id)
    found = newest_predictions(store, project_id)
    if found is not None and len(found.item_ids):
        nearest_labeled(store, found, found.item_ids[:1].tolist())
    for order in GRID_ORDERS:
        found_items(store, project_id, TileQuery(order=order))
    if found is not None and len(found.item_ids):
        found_items(store, project_id, TileQuery(like=int(found.item_ids[0])))
    return project_id


def _read(store: Store) -> None:
    try:
        read_last_labeled(store)
    except Exception:  # the request that needs the data reads it again and reports the problem
        log.info("the caches were not filled at start", exc_info=True)
