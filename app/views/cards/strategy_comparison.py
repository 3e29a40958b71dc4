"""A comparison of the picks of several strategies in a round: overlap, predicted classes, distances and positions.

Distances are those of last-layer embeddings of the round's model, divided by the median distance of two random items.
They are computed on at most SAMPLED items, drawn with a fixed seed, so the cost is bounded for large pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, predictions_of
from app.views.strategy_names import strategy_title
from core.errors import NotFound
from storage.database.store import Store
from storage.projects.class_rows import ClassRow
from storage.projects.classes import list_classes
from storage.rounds.log import RoundLog, RoundRow

SAMPLED = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPicks:
    """The batch of one strategy."""

    name: str
    title: str
    item_ids: tuple[int, ...]  # in order of selection
    shared: frozenset[int]  # ids that the round itself picked, too
    predicted: Mapping[str, int]  # class -> number of picks that are predicted as this class
    to_nearest: float | None  # mean distance of an item to the nearest pick; 1 is the distance of two random items
    apart: float | None  # mean distance between two picks
    positions: NDArray[np.float32]  # (k, 2) on the map


@dataclass(frozen=True, slots=True, kw_only=True)
class PicksComparison:
    """The picks of all compared strategies, with a sample of the pool as background."""

    strategies: tuple[StrategyPicks, ...]  # the strategy of the round is the first
    background: NDArray[np.float32]  # (m, 2) positions of a sample of the pool
    n_classes: int
    n_sampled: int


@dataclass(frozen=True, slots=True)
class _Round:
    """The data of a round on which the picks of all strategies are compared."""

    found: RoundPredictions
    every: list[ClassRow]
    own: tuple[int, ...]  # the picks of the round itself
    sample: NDArray[np.int64]
    points: NDArray[np.float32] | None


def compare_picks(store: Store, row: RoundRow, picks: Mapping[str, Sequence[int]]) -> PicksComparison | None:
    """Compare the picks of the round and of other strategies. None if the round stored no predictions."""
    found = predictions_of(store, row)
    if found is None:
        return None
    log = RoundLog(store, row.project_id)
    about = _Round(
        found=found,
        every=list_classes(store, row.project_id, include_inactive=True),
        own=tuple(pick.item_id for pick in log.picks(row.id)),
        sample=np.sort(np.random.default_rng(0).permutation(len(found.item_ids))[:SAMPLED]),
        points=_map_points(log, row),
    )
    nothing = np.empty((0, 2), np.float32)
    return PicksComparison(
        strategies=tuple(_strategy(name, ids, about) for name, ids in {row.strategy: about.own, **picks}.items()),
        background=about.points[about.sample] if about.points is not None else nothing,
        n_classes=sum(one.active for one in about.every),
        n_sampled=len(about.sample),
    )


def _strategy(name: str, item_ids: Sequence[int], about: _Round) -> StrategyPicks:
    rows = about.found.rows(np.asarray(item_ids, np.int64)) if len(item_ids) else np.empty(0, np.int64)
    rows = rows[rows >= 0]
    to_nearest, apart = _distances(about.found.embeddings, rows, about.sample)
    return StrategyPicks(
        name=name,
        title=strategy_title(name),
        item_ids=tuple(item_ids),
        shared=frozenset(about.own) & frozenset(item_ids),
        predicted=_predicted(about.found, rows, about.every),
        to_nearest=to_nearest,
        apart=apart,
        positions=about.points[rows] if about.points is not None else np.empty((0, 2), np.float32),
    )


def _predicted(found: RoundPredictions, rows: NDArray[np.int64], every: list[ClassRow]) -> dict[str, int]:
    best = found.best_classes(every) if found.round.metrics.get("has_model") else None
    if best is None:
        return {}
    names = [one.name for one in every if one.active]
    return dict(Counter(names[int(one)] for one in best.predicted[rows]).most_common())


def _distances(
    embeddings: NDArray[np.float32] | None, rows: NDArray[np.int64], sample: NDArray[np.int64]
) -> tuple[float | None, float | None]:
    """(mean distance of the sample to its nearest pick, mean distance between two picks), divided by the typical
    distance."""
    if embeddings is None or not len(rows) or len(sample) < 2:
        return None, None
    items, picks = (np.asarray(embeddings[some], np.float64) for some in (sample, rows))
    half = len(items) // 2
    order = np.random.default_rng(1).permutation(len(items))
    typical = float(np.median(np.linalg.norm(items[order[:half]] - items[order[half : 2 * half]], axis=1)))
    if typical <= 0.0:
        return None, None
    nearest = np.sqrt(_squares(items, picks).min(1)).mean() / typical
    pairs = np.sqrt(_squares(picks, picks))[np.triu_indices(len(picks), 1)]
    return float(nearest), float(pairs.mean() / typical) if len(pairs) else None


def _squares(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """(len(a), len(b)) squared distances."""
    found = np.square(a).sum(1)[:, None] + np.square(b).sum(1)[None] - 2 * a @ b.T
    return np.asarray(np.maximum(found, 0.0))


def _map_points(log: RoundLog, row: RoundRow) -> NDArray[np.float32] | None:
    try:
        return np.asarray(log.arrays(row.id, "map"), np.float32)
    except NotFound:
        return None
