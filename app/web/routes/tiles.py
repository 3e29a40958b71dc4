"""The grid's tiles: items that wait for a label, with predictions, sorted by confidence.

An item whose label the model has seen has no prediction. In a blind project (`ProjectSettings.is_blind`), tiles carry
no predictions, and neither order nor filter depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, newest_predictions
from app.web.routes.media import media_path, sound_path
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.media.types import media_kind
from storage.projects import classes
from storage.projects.class_rows import ClassRow
from storage.projects.projects import get_project


@dataclass(frozen=True, slots=True, kw_only=True)
class TileQuery:
    class_id: int | None = None  # only items predicted as this class
    order: Literal["sure", "unsure"] = "sure"
    offset: int = 0
    limit: int = 60
    items: tuple[int, ...] | None = None  # only these items, for example an area of the map


def tiles(store: Store, project_id: int, query: TileQuery) -> dict[str, Any]:
    """One page of tiles and the total number. Before the first round, the order is that of the queue."""
    blind = get_project(store, project_id).settings.is_blind
    known = classes.list_classes(store, project_id, include_inactive=True)
    pool = Pool(store, project_id)
    found = None if blind else newest_predictions(store, project_id)
    ids, predicted, confidences = _sorted(_waiting(pool, query.items), found, known, query)
    page = slice(query.offset, query.offset + query.limit)
    active = [row for row in known if row.active]
    rows = {row.id: row for row in pool.items_by_id([int(i) for i in ids[page]])}
    made = []
    for item_id, position, confidence in zip(ids[page], predicted[page], confidences[page], strict=True):
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
    return {"tiles": made, "total": len(ids), "guessed": found is not None}


def _waiting(pool: Pool, only: tuple[int, ...] | None) -> NDArray[np.int64]:
    """Ids of the waiting items in the order of the queue; `only` restricts them."""
    ids = pool.waiting_ids()
    return ids if only is None else ids[np.isin(ids, np.array(only, np.int64))]


def _sorted(
    ids: NDArray[np.int64], found: RoundPredictions | None, known: list[ClassRow], query: TileQuery
) -> tuple[Any, Any, Any]:
    """(ids, position of the predicted class or −1, confidence), filtered and ordered by `query`."""
    predicted, confidence = np.full(len(ids), -1), np.zeros(len(ids), np.float32)
    active = [row.id for row in known if row.active]
    if found is not None and active and len(ids):
        rows = found.predicted_rows(ids)
        probabilities = found.class_probabilities(known)[rows]
        predicted = np.where(rows >= 0, probabilities.argmax(1), -1)
        confidence = np.where(rows >= 0, probabilities.max(1), 0)
    if query.class_id is not None:
        wanted = active.index(query.class_id) if query.class_id in active else -2
        keep = predicted == wanted
        ids, predicted, confidence = ids[keep], predicted[keep], confidence[keep]
    if found is not None:
        order = np.argsort(confidence if query.order == "unsure" else -confidence, kind="stable")
        ids, predicted, confidence = ids[order], predicted[order], confidence[order]
    return ids, predicted, confidence
