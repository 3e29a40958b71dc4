"""The content of the map of one round, as arrays: positions, predictions, labels and picks of its items.

Positions, predictions and picks belong to the round and never change; labels are the current ones. The arrays contain
all items of the round. `drawn` contains the rows that are drawn: all rows up to `MOST_POINTS`; with more rows, the
picks and a sample of labeled and other items, so that the cost of a map is bounded. Selected areas are resolved against
all items, not only against the drawn ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from app.rounds import requests as round_requests
from app.views.figures.map_extent import MapExtent, map_extent
from app.views.item_names import ItemNames
from app.views.predictions import RoundPredictions, predictions_of
from core.errors import NotFound
from storage.database.store import Store
from storage.labeling.item_rows import first_pick_rounds, item_names
from storage.labeling.labeled_items import items_to_hide
from storage.labeling.state_arrays import NO_ID, item_states
from storage.projects import classes
from storage.projects.annotators import AnnotatorRow, list_annotators
from storage.projects.class_rows import ClassRow, color_of
from storage.rounds.log import RoundLog, RoundRow

MOST_POINTS = 50_000  # items of a map on which every item is a point
SAMPLED_POINTS = 10_000  # points of a larger map, drawn over the density of all items
KEPT_MAPS = 8  # rounds whose points stay in memory
KEPT_NAMES = 4  # rounds whose names stay in memory
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayers:
    """The content of a map. Arrays have one entry per item, in the order of the round."""

    round: RoundRow
    class_names: tuple[str, ...]  # names of the active classes
    class_ids: tuple[int, ...]
    class_colors: tuple[str, ...]  # colors of the active classes
    item_ids: NDArray[np.int64]
    names: Mapping[int, str]  # drawn row -> displayed name (`app.views.item_names`)
    points: NDArray[np.float32]  # (n, 2)
    extent: MapExtent  # range of all points
    predicted: NDArray[np.int16]  # position in class_names, NONE without a model or if the model has seen its label
    confidence: NDArray[np.float32]
    label: NDArray[np.int16]  # position in class_names, NONE without a label
    label_round: NDArray[
        np.int32
    ]  # number of the first round that picked it, 0: labeled but never picked, NONE: no label
    annotator: NDArray[np.int16]  # position in annotator_names
    annotator_names: tuple[str, ...]  # annotators who gave a label that counts
    held_out: NDArray[np.bool_]  # test items and items deleted since the round: neither is labeled or selected
    picks: NDArray[np.int64]  # rows, in order of selection
    other_picks: Mapping[str, NDArray[np.int64]]  # other strategy -> rows that it would have picked, in order
    drawn: NDArray[np.int64]  # rows that are drawn

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    def row_of(self, item_id: int) -> int | None:
        found = np.flatnonzero(self.item_ids == item_id)
        return int(found[0]) if len(found) else None


def map_layers(store: Store, project_id: int, round_id: int) -> MapLayers | None:
    """The layers of a finished round. None if it stored no map."""
    log = RoundLog(store, project_id)
    row = log.get(round_id)
    found = predictions_of(store, row)
    placed = _points(log, round_id)
    if found is None or placed is None or len(placed[0]) != len(found.item_ids):
        return None
    points, extent = placed
    known = classes.list_classes(store, project_id, include_inactive=True)
    active = [one for one in known if one.active]
    best = found.best_classes(known) if row.metrics.get("has_model") else None
    n = len(points)
    states = item_states(store, project_id)
    item_ids = found.values_in(states, "item_ids", NO_ID)
    label = _label_positions(found.values_in(states, "class_id", NO_ID), known)
    annotators = found.values_in(states, "annotator_id", NO_ID)
    people = _label_givers(store, annotators)
    drawn, picks, others = _marked_rows(log, found, label, item_ids)
    return MapLayers(
        round=row,
        class_names=tuple(one.name for one in active),
        class_ids=tuple(one.id for one in active),
        class_colors=tuple(one.color or color_of(one.position) for one in active),
        item_ids=found.item_ids,
        names=_shown_names(store, found, known, np.concatenate([drawn, picks, *others.values()])),
        points=points,
        extent=extent,
        predicted=np.where(found.seen, np.int16(NONE), best.predicted) if best else np.full(n, NONE, np.int16),
        confidence=np.where(found.seen, np.float32(0), best.confidence) if best else np.zeros(n, np.float32),
        label=label,
        label_round=_label_rounds(store, found, label),
        annotator=_positions(annotators, [one.id for one in people]),
        annotator_names=tuple(one.name for one in people),
        held_out=found.values_in(states, "held_out", True),
        picks=picks,
        other_picks=others,
        drawn=drawn,
    )


def _marked_rows(
    log: RoundLog, found: RoundPredictions, label: NDArray[np.int16], item_ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The drawn rows, the picks, and the picks of other strategies, without items that were deleted since the round.

    `item_ids` (n,) has NO_ID for deleted items.
    """
    picks = _rows([pick.item_id for pick in log.picks(found.round.id)], found)
    comparison = round_requests.comparison(log.store, found.round.id)
    others = {name: _rows(ids, found) for name, ids in (comparison.picks.items() if comparison else ())}
    drawn = drawn_rows(label, picks, len(label))
    if item_ids.all():
        return drawn, picks, others
    others = {name: rows[item_ids[rows] != NO_ID] for name, rows in others.items()}
    return drawn[item_ids[drawn] != NO_ID], picks[item_ids[picks] != NO_ID], others


def blinded(found: MapLayers, store: Store, annotator: int) -> MapLayers:
    """The layers for one annotator. In a blind project, labels and predictions of items that the annotator may still
    label are removed."""
    hidden = np.isin(found.item_ids, items_to_hide(store, found.round.project_id, annotator))
    return replace(
        found,
        predicted=np.where(hidden, np.int16(NONE), found.predicted),
        confidence=np.where(hidden, np.float32(0), found.confidence),
        label=np.where(hidden, np.int16(NONE), found.label),
        label_round=np.where(hidden, np.int32(NONE), found.label_round),
        annotator=np.where(hidden, np.int16(NONE), found.annotator),
    )


_maps: OrderedDict[tuple[str, int], tuple[NDArray[np.float32], MapExtent]] = OrderedDict()


def _points(log: RoundLog, round_id: int) -> tuple[NDArray[np.float32], MapExtent] | None:
    """The points of a round and their extent, cached because they never change. None if it stored no map."""
    key = (log.store.url, round_id)
    with _lock:
        if key in _maps:
            _maps.move_to_end(key)
            return _maps[key]
    try:
        points = np.asarray(log.arrays(round_id, "map"), np.float32)
    except NotFound:
        return None
    made = (points, map_extent(points))
    with _lock:
        _maps[key] = made
        while len(_maps) > KEPT_MAPS:
            _maps.popitem(last=False)
    return made


def _label_positions(class_ids: NDArray[np.int32], known: Sequence[ClassRow]) -> NDArray[np.int16]:
    """(n,) the position of each label among the active classes. A merged class counts as its successor."""
    active = [one.id for one in known if one.active]
    label = np.full(len(class_ids), NONE, np.int16)
    labeled = np.flatnonzero(class_ids)
    given = class_ids[labeled]
    for one in known:
        if one.counts_as in active:
            label[labeled[given == one.id]] = active.index(one.counts_as)
    return label


def _positions(ids: NDArray[np.int32], known: Sequence[int]) -> NDArray[np.int16]:
    """(n,) the position of each id in `known`, or NONE."""
    found = np.full(len(ids), NONE, np.int16)
    given = np.flatnonzero(ids)
    for place, one in enumerate(known):
        found[given[ids[given] == one]] = place
    return found


def _label_givers(store: Store, annotator_ids: NDArray[np.int32]) -> list[AnnotatorRow]:
    """The annotators who gave a label that counts."""
    given = set(np.unique(annotator_ids[np.flatnonzero(annotator_ids)]).tolist())
    return [one for one in list_annotators(store) if one.id in given]


def _label_rounds(store: Store, found: RoundPredictions, label: NDArray[np.int16]) -> NDArray[np.int32]:
    """(n,) the first round that picked each labeled item, 0 if none has picked it, NONE without a label."""
    rounds = np.where(label == NONE, np.int32(NONE), np.int32(0))
    picked = first_pick_rounds(store, found.round.project_id)
    rows = found.rows(np.fromiter(picked, np.int64, len(picked)))
    numbers = np.fromiter(picked.values(), np.int32, len(picked))
    rows, numbers = rows[rows >= 0], numbers[rows >= 0]
    labeled = label[rows] != NONE
    rounds[rows[labeled]] = numbers[labeled]
    return rounds


_NamesKey = tuple[str, int, tuple[str, ...]]
_known_names: OrderedDict[_NamesKey, dict[int, str]] = OrderedDict()  # file names never change
_lock = Lock()


def _shown_names(
    store: Store, found: RoundPredictions, known: Sequence[ClassRow], rows: NDArray[np.int64]
) -> dict[int, str]:
    """row -> displayed name, for these rows. Names are cached, so only new ones are read."""
    key = (store.url, found.round.id, tuple(one.name for one in known))
    with _lock:
        names = _known_names.setdefault(key, {})
        _known_names.move_to_end(key)
        while len(_known_names) > KEPT_NAMES:
            _known_names.popitem(last=False)
    called, asked = ItemNames(key[2]), np.unique(rows).tolist()
    missing = {int(found.item_ids[row]): row for row in asked if row not in names}
    for item_id, name in item_names(store, found.round.project_id, list(missing)).items():
        names[missing[item_id]] = called.shown_name(item_id, name)
    return {row: names[row] for row in asked}


def drawn_rows(label: NDArray[np.integer], picks: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """The rows to draw: all rows up to `MOST_POINTS`; with more items, the picks and samples of the other rows.

    Labeled rows make up at most half of `SAMPLED_POINTS`, or more if there are few other rows. Both samples are
    prefixes of one random order of the rows, so that a new label changes few other points.
    """
    if n <= MOST_POINTS:
        return np.arange(n)
    order, drawn = _random_order(n), np.zeros(n, np.bool_)
    labeled = np.flatnonzero(label != NONE)
    most_labeled = max(SAMPLED_POINTS // 2, SAMPLED_POINTS - (n - len(labeled)))
    if len(labeled) > most_labeled:
        labeled = labeled[np.argpartition(_random_place(n)[labeled], most_labeled)[:most_labeled]]
    drawn[labeled] = True
    drawn[picks] = True
    first = order[: 2 * SAMPLED_POINTS]
    others = first[(label[first] == NONE) & ~drawn[first]]
    if len(others) < SAMPLED_POINTS:
        others = order[(label[order] == NONE) & ~drawn[order]]
    drawn[others[: max(0, SAMPLED_POINTS - int(np.count_nonzero(drawn)))]] = True
    return np.flatnonzero(drawn)


@lru_cache(maxsize=2)
def _random_order(n: int) -> NDArray[np.int32]:
    return np.random.default_rng(0).permutation(n).astype(np.int32)


@lru_cache(maxsize=2)
def _random_place(n: int) -> NDArray[np.int32]:
    """(n,) the position of each row in `_random_order`."""
    place = np.empty(n, np.int32)
    place[_random_order(n)] = np.arange(n, dtype=np.int32)
    return place


def _rows(item_ids: Sequence[int], found: RoundPredictions) -> NDArray[np.int64]:
    """The rows of these items. Items that are not part of the round are left out."""
    rows = found.rows(np.array(item_ids, np.int64))
    return rows[rows >= 0]


def inside(points: NDArray[np.float32], x: Sequence[float], y: Sequence[float]) -> NDArray[np.bool_]:
    """(n,) whether each point is inside the polygon, by the even-odd rule. Points on the border may count as either."""
    px, py = points[:, 0].astype(np.float64), points[:, 1].astype(np.float64)
    within = np.zeros(len(points), np.bool_)
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    for x1, y1, x2, y2 in zip(xs, ys, np.roll(xs, -1), np.roll(ys, -1), strict=True):
        crosses = (y1 > py) != (y2 > py)
        if crosses.any():
            at = x1 + (py[crosses] - y1) * (x2 - x1) / (y2 - y1)
            within[crosses] ^= px[crosses] < at
    return within
