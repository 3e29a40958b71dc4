"""The predictions that cards, grid and map show: those of the newest round, updated by the labels given since then."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from app.live.results import LiveResult, read_result
from app.views.map_layers import MapLayers
from app.views.predictions import RoundPredictions, newest_predictions
from storage.database.store import Store
from storage.projects.class_rows import ClassRow
from storage.projects.projects import get_project

KEPT = 4
_kept: OrderedDict[tuple[str, int], tuple[LiveResult, RoundPredictions, RoundPredictions]] = OrderedDict()
_lock = Lock()


def live_result(store: Store, project_id: int, round_id: int | None = None) -> LiveResult | None:
    """The newest live fit, or None if live predictions are off. With `round_id`, only a fit of that round."""
    if not get_project(store, project_id).settings.live:
        return None
    found = read_result(store.home, project_id)
    return found if found is not None and round_id in (None, found.fit.round_id) else None


def current_predictions(store: Store, project_id: int) -> RoundPredictions | None:
    """The predictions of the newest finished round, updated by the newest live fit.

    Items whose label was used by the round or by the live head have no prediction, even if the label has just been
    undone.
    """
    newest = newest_predictions(store, project_id)
    live = live_result(store, project_id, newest.round.id) if newest is not None else None
    if newest is None or live is None:
        return newest
    key = (store.url, project_id)
    with _lock:
        kept = _kept.get(key)
        if kept is not None and kept[0] is live and kept[1] is newest:
            return kept[2]
    made = _changed(newest, live)
    with _lock:
        _kept[key] = (live, newest, made)
        _kept.move_to_end(key)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return made


def _changed(newest: RoundPredictions, live: LiveResult) -> RoundPredictions:
    rows = newest.rows(live.item_ids)
    if live.class_ids != newest.column_classes or (rows < 0).any():
        return newest
    probabilities, seen = np.array(newest.probabilities, np.float32), newest.seen.copy()
    probabilities[rows] = live.probabilities
    seen[rows] |= live.trained
    return RoundPredictions(
        newest.round, newest.item_ids, probabilities, newest.embeddings, newest.column_classes, newest.order, seen
    )


def live_state(store: Store, project_id: int) -> dict[str, Any] | None:
    """The effect of the last labels, for the labeling screens. None if the project has no live predictions."""
    newest = newest_predictions(store, project_id)
    if newest is None or newest.embeddings is None or not get_project(store, project_id).settings.live:
        return None
    live = live_result(store, project_id, newest.round.id)
    if live is None:
        return {"revision": 0, "n_new": 0, "n_changed": 0}
    return {"revision": live.fit.revision, "n_new": live.fit.n_new, "n_changed": live.fit.n_changed}


def live_layers(found: MapLayers, store: Store, known: list[ClassRow]) -> MapLayers:
    """Map layers with live colors. Only the newest round has them; other rounds show their own predictions."""
    project_id = found.round.project_id
    current = current_predictions(store, project_id)
    if current is None or current.round.id != found.round.id or live_result(store, project_id, found.round.id) is None:
        return found
    best = current.best_classes(known)
    if best is None or len(best.predicted) != len(found.item_ids):
        return found
    none = found.predicted.dtype.type(-1)
    return replace(
        found,
        predicted=np.where(current.seen, none, best.predicted),
        confidence=np.where(current.seen, np.float32(0), best.confidence),
    )
