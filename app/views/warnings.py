"""Warnings about labels and predictions: short sentences, each with advice. This module does not import Streamlit.

Warnings about the model refer to the newest finished round, which the charts of Train show too, and name its number.
There is a warning for
- classes without a label in that round;
- classes with one or two labels while others have five times as many;
- classes with less than half of an even share of the predictions, and at most 5 %;
- labels that contradict a confident prediction of a model trained without them;
- annotators who disagree on items with several labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, predictions_of
from app.views.review_cases import conflicts
from app.views.text import count
from storage.database.store import Store
from storage.labeling import agreement
from storage.labeling.pool import ItemFilter, Pool
from storage.projects.class_rows import ClassRow
from storage.projects.classes import list_classes
from storage.rounds.log import RoundLog, RoundRow

FEW, MANY_TIMES = 2, 5
RARE_SHARE = 0.05
SUSPECT_SHARE, SUSPECT_AT_LEAST = 0.05, 3
SHOWN = 5


def label_warnings(store: Store, project_id: int) -> list[str]:
    """The warnings that currently apply to a project, in the order above."""
    every = list_classes(store, project_id, True)
    active = [row for row in every if row.active]
    pool = Pool(store, project_id)
    per_class = pool.counts().per_class
    now = [per_class.get(row.id, 0) for row in active]
    newest = charted_round(store, project_id)
    found = predictions_of(store, newest) if newest is not None else None
    sentences = [_few_labels("So far", active, now, now)]
    if newest is not None and found is not None and newest.metrics.get("has_model"):
        used = labels_used(found, every)
        sentences = [
            _no_labels(newest.number, active, used, now),
            _few_labels(f"Round {newest.number}", active, used, now),
            _rarely_predicted(newest.number, active, used, _predicted_shares(found, every)),
        ]
    sentences += [
        _contradicted(len(conflicts(store, project_id)), sum(now)),
        _differing(len(agreement.disagreements(store, project_id)), pool.count_items(ItemFilter(state="contested"))),
    ]
    return [sentence for sentence in sentences if sentence]


def charted_round(store: Store, project_id: int) -> RoundRow | None:
    """The round whose results Train shows: the newest finished round that is not a replay."""
    rows = RoundLog(store, project_id).list()
    return next((row for row in rows if row.status == "finished" and row.replay_of is None), None)


def labels_used(found: RoundPredictions, every: list[ClassRow]) -> list[int]:
    """The number of labels of each active class that the round was trained with. They are counted in its predictions,
    which contain the label of each labeled item."""
    active = [row.id for row in every if row.active]
    best = found.best_classes(every)
    if best is None or not len(found.seen):
        return [0] * len(active)
    return [int(n) for n in np.bincount(best.predicted[found.seen], minlength=len(active))]


def _no_labels(number: int, active: Sequence[ClassRow], used: Sequence[int], now: Sequence[int]) -> str:
    none = [_with_now(row.name, n) for row, had, n in zip(active, used, now, strict=True) if had == 0]
    if not none or not any(used):
        return ""
    return (
        f"Round {number} had no label for {_names(none)}. Do not trust its predictions for a class without labels. "
        "Label examples and start a round."
    )


def _few_labels(when: str, active: Sequence[ClassRow], labels: Sequence[int], now: Sequence[int]) -> str:
    most = max(labels, default=0)
    few = [
        _with_now(row.name, n if n != had else 0)
        for row, had, n in zip(active, labels, now, strict=True)
        if 0 < had <= FEW and most >= MANY_TIMES * had
    ]
    if not few:
        return ""
    return f"{when}: only one or two labels for {_names(few)}, up to {most:,} for other classes. Label more of them."


def _with_now(name: str, n_now: int) -> str:
    return f"{name} ({n_now:,} now)" if n_now else name


def _predicted_shares(found: RoundPredictions, every: list[ClassRow]) -> NDArray[np.float64] | None:
    """The share of items that are predicted as each active class."""
    best = found.best_classes(every)
    if best is None or not len(best.predicted):
        return None
    predicted = np.bincount(best.predicted, minlength=sum(row.active for row in every))
    return np.asarray(predicted / len(best.predicted), np.float64)


def _rarely_predicted(
    number: int, active: Sequence[ClassRow], used: Sequence[int], shares: NDArray[np.float64] | None
) -> str:
    """A warning about rarely predicted classes. Classes without labels are left out, as they have their own warning."""
    if shares is None or len(active) < 2:
        return ""
    limit = min(RARE_SHARE, 0.5 / len(active))
    rare = [row.name for row, n, share in zip(active, used, shares, strict=True) if n and share < limit]
    if not rare:
        return ""
    return (
        f"Round {number} predicts less than {100 * limit:.0f} % of the items as {_names(rare)}. Either such a class "
        "is rare, or the model has not learned it. Find examples in the grid and label a few."
    )


def _contradicted(n: int, n_labels: int) -> str:
    if n < max(SUSPECT_AT_LEAST, SUSPECT_SHARE * n_labels):
        return ""
    return f"{n:,} of {count(n_labels, 'label')} disagree with a prediction made without them. Check them in Review."


def _differing(n: int, n_twice: int) -> str:
    if n < max(SUSPECT_AT_LEAST, SUSPECT_SHARE * n_twice):
        return ""
    return f"Annotators disagree on {n:,} of {count(n_twice, 'item')} with several labels. Decide them in Review."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
