"""The grid's tiles: items that wait for a label, with predictions, sorted by confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sqlalchemy import select

from app.views.predictions import RoundPredictions, newest_predictions
from app.web.routes.media import media_path
from storage.database.schema import ItemState
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.media.types import media_kind
from storage.projects import classes
from storage.projects.classes import ClassRow
from storage.projects.projects import get_project


@dataclass(frozen=True, slots=True, kw_only=True)
class TileQuery:
    class_id: int | None = None  # only items predicted as this class
    order: Literal["sure", "unsure"] = "sure"
    offset: int = 0
    limit: int = 60
    items: tuple[int, ...] | None = None  # only these, such as an area of the map


def tiles(store: Store, project_id: int, query: TileQuery) -> dict[str, Any]:
    """One page of tiles and how many there are. Before the first round the order is the queue's."""
    get_project(store, project_id)
    known = classes.list_classes(store, project_id, include_inactive=True)
    waiting = _waiting(store, project_id, query.items)
    opinion = newest_predictions(store, project_id)
    ids, guesses, confidences = _sorted(waiting, opinion, known, query)
    page = slice(query.offset, query.offset + query.limit)
    names = [row.name for row in known if row.active]
    rows = {row.id: row for row in Pool(store, project_id).items_by_id([int(i) for i in ids[page]])}
    made = []
    for item_id, guess, confidence in zip(ids[page], guesses[page], confidences[page], strict=True):
        item = rows.get(int(item_id))
        if item is None:
            continue
        made.append(
            {
                "item_id": item.id,
                "name": item.name,
                "thumb": media_path(item, "thumb.png"),
                "audio": media_path(item, "file") if media_kind(item.media_type) == "audio" else None,
                "guess": names[guess] if guess >= 0 else None,
                "class_id": [row.id for row in known if row.active][guess] if guess >= 0 else None,
                "confidence": round(float(confidence), 4) if guess >= 0 else None,
            }
        )
    return {"tiles": made, "total": len(ids), "guessed": opinion is not None}


def _waiting(store: Store, project_id: int, only: tuple[int, ...] | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ids of waiting items in queue order; `only` narrows to a set."""
    query = (
        select(ItemState.item_id)
        .where(ItemState.project_id == project_id, ItemState.waiting)
        .order_by(ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)
    )
    with store.read() as connection:
        ids = np.fromiter(connection.execute(query).scalars(), np.int64)
    return ids if only is None else ids[np.isin(ids, np.array(only, np.int64))]


def _sorted(
    ids: np.ndarray[Any, np.dtype[np.int64]], opinion: RoundPredictions | None, known: list[ClassRow], query: TileQuery
) -> tuple[Any, Any, Any]:
    """(ids, guessed class position or −1, confidence), filtered and ordered as asked."""
    guess, confidence = np.full(len(ids), -1), np.zeros(len(ids), np.float32)
    active = [row.id for row in known if row.active]
    if opinion is not None and active and len(ids):
        rows = opinion.rows(ids)
        shares = opinion.shares(known)[rows]
        guess = np.where(rows >= 0, shares.argmax(1), -1)
        confidence = np.where(rows >= 0, shares.max(1), 0)
    if query.class_id is not None:
        wanted = active.index(query.class_id) if query.class_id in active else -2
        keep = guess == wanted
        ids, guess, confidence = ids[keep], guess[keep], confidence[keep]
    if opinion is not None:
        order = np.argsort(confidence if query.order == "unsure" else -confidence, kind="stable")
        ids, guess, confidence = ids[order], guess[order], confidence[order]
    return ids, guess, confidence
