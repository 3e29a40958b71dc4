"""Predictions of earlier rounds for items that were labeled later.

A round predicts every item of the pool. If an item is labeled afterwards, the prediction was made without its label. It
is that of the trained model, with label propagation if there is a graph, and needs no further training; out-of-fold
predictions for the check (`core.labels.trust`) come from simpler models.

    p_i   the prediction for item i by the newest earlier round in which it had no label
    m_i   log[(1 - SMOOTHING) p_i + SMOOTHING / C]: no prediction alone makes a label certainly wrong

There is no m_i for labels that all these rounds knew, for items that were added later, and for labels of a class that
had no label in that round: a model predicts a class that it does not know nowhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import UNLABELED

SMOOTHING = 0.003
MOST_ROUNDS = 20  # rounds that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRound:
    """What a finished round knew and predicted."""

    class_names: tuple[str, ...]
    item_ids: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64]  # (n,) the labels it was trained on; UNLABELED elsewhere
    load_probabilities: Callable[[], NDArray[np.floating] | None]  # (n, C); None: they have been removed


def earlier_log_probabilities(
    item_ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    rounds: Iterable[EarlierRound],
) -> NDArray[np.float64]:
    """m (n, C) for the labeled items; NaN where there is none. `rounds` are read from the newest on, until every label
    is newer than one of them, and at most MOST_ROUNDS."""
    found = np.full((len(labels), len(class_names)), np.nan)
    open_ = np.flatnonzero(labels != UNLABELED)
    for one in itertools.islice(rounds, MOST_ROUNDS):
        at = positions_of(one.item_ids, item_ids[open_])
        without = (at >= 0) & (np.asarray(one.labels)[at] == UNLABELED)
        predicted = one.load_probabilities() if without.any() else None
        if predicted is None:
            continue
        rows, own = open_[without], at[without]
        open_ = open_[~without]
        known = {one.class_names[label] for label in np.unique(one.labels[one.labels != UNLABELED])}
        fair = np.array([class_names[label] in known for label in labels[rows]], np.bool_)
        found[rows[fair]] = _smoothed(_in_present_order(predicted[own[fair]], one.class_names, class_names))
        if not len(open_):
            break
    return found


def positions_of(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the wanted ids; -1 where there is none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind="stable")
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, -1)


def _in_present_order(P: NDArray[np.floating], before: tuple[str, ...], now: tuple[str, ...]) -> NDArray[np.float64]:
    """Predictions for the classes `before` in the order of the present classes; 0 for classes that are new."""
    column = {name: k for k, name in enumerate(before)}
    found = np.zeros((len(P), len(now)))
    for k, name in enumerate(now):
        if name in column:
            found[:, k] = P[:, column[name]]
    return found


def _smoothed(P: NDArray[np.float64]) -> NDArray[np.float64]:
    total = P.sum(1, keepdims=True)
    equal = 1.0 / P.shape[1]
    shares = np.divide(P, total, out=np.full_like(P, equal), where=total > 0)
    return np.asarray(np.log((1.0 - SMOOTHING) * shares + SMOOTHING * equal))
