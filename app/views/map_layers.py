"""The content of the map of one round, as arrays: positions, predictions, labels and picks of its items.

Positions, predictions and picks belong to the round and never change; labels are the current ones. The arrays hold all
items of the round. `drawn` holds the rows that are drawn: all of them up to `MOST_POINTS`, else labeled items, picks
and a sample of the rest. Areas are resolved against all items, not only against those drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.rounds import requests as round_requests
from app.views.item_names import ItemNames
from app.views.predictions import predictions_of
from core.errors import NotFound
from storage.database.store import Store
from storage.labeling.item_rows import first_pick_rounds
from storage.labeling.labeled_items import ItemLabels, item_labels, items_to_hide
from storage.projects import classes
from storage.projects.annotators import list_annotators
from storage.projects.class_rows import color_of
from storage.rounds.log import RoundLog, RoundRow

MOST_POINTS = 50_000
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayers:
    """One entry per item, in the order of the round."""

    round: RoundRow
    class_names: tuple[str, ...]  # active now
    class_ids: tuple[int, ...]
    class_colors: tuple[str, ...]  # as the project has them
    item_ids: NDArray[np.int64]
    names: tuple[str, ...]  # as shown (`app.views.item_names`)
    points: NDArray[np.float32]  # (n, 2)
    predicted: NDArray[np.int64]  # position in class_names, NONE without a model or if the model has seen its label
    confidence: NDArray[np.float32]
    label: NDArray[np.int64]  # position in class_names, NONE where there is none
    label_round: NDArray[
        np.int64
    ]  # number of the first round that picked it, 0: labeled but never picked, NONE: no label
    annotator: NDArray[np.int64]  # position in annotator_names
    annotator_names: tuple[str, ...]  # those who gave a label that counts
    held_out: NDArray[np.bool_]
    picks: NDArray[np.int64]  # rows, in order
    other_picks: Mapping[str, NDArray[np.int64]]  # other strategy -> rows it would have picked, in order
    drawn: NDArray[np.int64]  # rows

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    def row_of(self, item_id: int) -> int | None:
        found = np.flatnonzero(self.item_ids == item_id)
        return int(found[0]) if len(found) else None


def map_layers(store: Store, project_id: int, round_id: int) -> MapLayers | None:
    """The layers of a finished round; None if it stored no map."""
    log = RoundLog(store, project_id)
    row = log.get(round_id)
    found = predictions_of(store, row)
    try:
        points = np.asarray(log.arrays(round_id, "map"), np.float32)
    except NotFound:
        return None
    if found is None or len(points) != len(found.item_ids):
        return None
    known = classes.list_classes(store, project_id, include_inactive=True)
    active = [one for one in known if one.active]
    probabilities = found.class_probabilities(known)
    has_model = bool(row.metrics.get("has_model")) and probabilities.shape[1] > 0
    n = len(points)
    predicts = ~found.seen & has_model
    labels = item_labels(store, project_id)
    at = _aligned(labels, found.item_ids)
    called = ItemNames(one.name for one in known)
    label = _positions(labels.class_ids[at], [one.id for one in active])
    people = [one for one in list_annotators(store) if one.id in set(labels.annotator_ids[at].tolist())]
    picked_in = first_pick_rounds(store, project_id)
    rounds = np.array([picked_in.get(item_id, 0) for item_id in found.item_ids.tolist()], np.int64)
    row_at = {int(item): place for place, item in enumerate(found.item_ids)}
    picks = _rows([pick.item_id for pick in log.picks(round_id)], row_at)
    comparison = round_requests.comparison(store, round_id)
    others = {name: _rows(ids, row_at) for name, ids in (comparison.picks.items() if comparison else ())}
    return MapLayers(
        round=row,
        class_names=tuple(one.name for one in active),
        class_ids=tuple(one.id for one in active),
        class_colors=tuple(one.color or color_of(one.position) for one in active),
        item_ids=found.item_ids,
        names=tuple(called.shown_name(int(labels.item_ids[place]), labels.names[place]) for place in at.tolist()),
        points=points,
        predicted=np.where(predicts, probabilities.argmax(1), NONE) if has_model else np.full(n, NONE, np.int64),
        confidence=np.where(predicts, probabilities.max(1), 0) if has_model else np.zeros(n, np.float32),
        label=label,
        label_round=np.where(label == NONE, NONE, rounds),
        annotator=_positions(labels.annotator_ids[at], [one.id for one in people]),
        annotator_names=tuple(one.name for one in people),
        held_out=labels.held_out[at],
        picks=picks,
        other_picks=others,
        drawn=drawn_rows(label, picks, n),
    )


def blinded(found: MapLayers, store: Store, annotator: int) -> MapLayers:
    """The layers for one annotator: in a blind project, no labels and no predictions of items still to label."""
    hidden = np.isin(found.item_ids, items_to_hide(store, found.round.project_id, annotator))

    def cover(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(hidden, NONE, values)

    return replace(
        found,
        predicted=cover(found.predicted),
        confidence=np.where(hidden, np.float32(0), found.confidence),
        label=cover(found.label),
        label_round=cover(found.label_round),
        annotator=cover(found.annotator),
    )


def _positions(ids: NDArray[np.int64], known: Sequence[int]) -> NDArray[np.int64]:
    """(n,) the position of each id in `known`, NONE where it is not there."""
    position = {one: place for place, one in enumerate(known)}
    return np.array([position.get(one, NONE) for one in ids.tolist()], np.int64)


def drawn_rows(label: NDArray[np.int64], picks: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """All rows up to `MOST_POINTS`; with more items, labeled rows, picks and a uniform sample of the others."""
    if n <= MOST_POINTS:
        return np.arange(n)
    keep = np.union1d(np.flatnonzero(label != NONE)[: MOST_POINTS // 2], picks)
    rest = np.setdiff1d(np.arange(n), keep, assume_unique=True)
    sample = np.random.default_rng(0).choice(rest, MOST_POINTS - len(keep), replace=False)
    return np.union1d(keep, sample)


def _aligned(labels: ItemLabels, item_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the position of each item in `labels`. Items are never deleted, so every item of a round is there."""
    return np.searchsorted(labels.item_ids, item_ids)


def _rows(item_ids: Sequence[int], row_at: Mapping[int, int]) -> NDArray[np.int64]:
    return np.array([row_at[int(item)] for item in item_ids if int(item) in row_at], np.int64)


def inside(points: NDArray[np.float32], x: Sequence[float], y: Sequence[float]) -> NDArray[np.bool_]:
    """(n,) whether each point is in the polygon, by the even-odd rule; points on the border may be in or out."""
    px, py = points[:, 0].astype(np.float64), points[:, 1].astype(np.float64)
    within = np.zeros(len(points), np.bool_)
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    for x1, y1, x2, y2 in zip(xs, ys, np.roll(xs, -1), np.roll(ys, -1), strict=True):
        crosses = (y1 > py) != (y2 > py)
        if crosses.any():
            at = x1 + (py[crosses] - y1) * (x2 - x1) / (y2 - y1)
            within[crosses] ^= px[crosses] < at
    return within
