"""The accuracy of a project on test items that it has drawn (`storage.labeling.test_sets`), as data for screens.

All rounds are measured on the same items: the test items that currently have a label. A round from before some of these
items were drawn used them as unlabeled items; it is marked and not used in the forecast. The predictions are those of
the network alone, as it is exported. Rounds of earlier versions stored only predictions averaged over views.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.views.figures.charts import wilson
from app.views.forecasts import Forecast, forecast
from app.views.predictions import predictions_of
from core.errors import NotFound
from storage.database.store import Store
from storage.labeling.test_sets import own_test_items
from storage.projects import class_rows, classes
from storage.projects.class_rows import ClassRow
from storage.rounds.log import RoundLog, RoundRow

FEWEST_PER_CLASS = 10  # labeled test items that a class must have before its accuracy is shown
MOST_TESTS = 20_000
Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of correct predictions with its 95 % Wilson interval. The interval accounts for groups if whole groups
    were drawn."""

    correct: int
    n: int
    effective: float | None = None  # `effective_size`; None: the items were drawn individually

    @property
    def value(self) -> float:
        return self.correct / self.n

    @property
    def interval(self) -> tuple[float, float]:
        size = self.n if self.effective is None else self.effective
        return wilson(self.value * size, size)

    @classmethod
    def of(cls, correct: NDArray[np.bool_], groups: NDArray[np.int64] | None) -> Share:
        size = None if groups is None else effective_size(correct, groups)
        return cls(correct=int(correct.sum()), n=len(correct), effective=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRound:
    """The accuracy of one round on the test items."""

    round_id: int
    number: int
    n_labeled: int
    strategy: str
    accuracy: Share
    inductive: bool  # all of these items were test items when the round was requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The accuracy of a project's rounds on test items that it has drawn, with the counts of these items."""

    n_drawn: int
    n_labeled: int
    n_waiting: int
    n_skipped: int
    rounds: tuple[MeasuredRound, ...]  # finished rounds with a model, oldest first
    per_class: tuple[tuple[str, Share], ...]  # accuracy of the newest round for classes with enough test items
    n_left_out: int  # rounds that lack predictions for some of the items
    correct: NDArray[np.bool_]  # (k, rounds) whether each labeled test item was predicted correctly in each round
    groups: NDArray[np.int64] | None = None  # (k,) group of each labeled test item, if whole groups were drawn
    divided: bool = False  # some groups have items in the pool and among the test items

    @property
    def n_groups(self) -> int:
        """The number of groups of the labeled test items, or 0 if items were drawn individually."""
        return 0 if self.groups is None else len(np.unique(self.groups))

    @property
    def newest(self) -> MeasuredRound | None:
        return self.rounds[-1] if self.rounds else None

    def forecast(self, target: float) -> Forecast | None:
        """The estimated number of labels for an accuracy of `target`. None with too few rounds or test items."""
        usable = [place for place, row in enumerate(self.rounds) if row.inductive]
        labels = np.array([self.rounds[place].n_labeled for place in usable], np.int64)
        return forecast(labels, self.correct[:, usable], target, groups=self.groups)


def effective_size(correct: NDArray[np.bool_], groups: NDArray[np.int64]) -> float:
    """The size of a simple random sample that is as precise as this sample of whole groups. The Wilson interval for
    this size has a coverage of 95 % (`python -m experiments.interval_coverage`).

    Predictions for items of one group are correlated. With n_g items in group g, c_g of them correct, p = sum c_g / n:

        variance   k / (k - 1) sum_g (c_g - p n_g)^2 / n^2        ratio estimate, for any dependence within groups
        k          n^2 / sum_g n_g^2                              groups of unequal size count as fewer
        size       p (1 - p) / variance (1.96 / t)^2, at most n   t: Student's 97.5 % quantile, k - 1 degrees

    If all predictions are right, or all are wrong, the size before the factor is k.
    """
    from scipy.special import stdtrit  # Student's quantile; a page without groups never loads scipy

    n = len(correct)
    if n == 0:
        return 0.0
    _, group = np.unique(groups, return_inverse=True)
    size, right = np.bincount(group).astype(np.float64), np.bincount(group, correct)
    k = max(2.0, n * n / float((size**2).sum()))
    p = float(right.sum()) / n
    found = k
    if 0 < p < 1:
        variance = k / (k - 1) * float(((right - p * size) ** 2).sum()) / n**2
        found = min(float(n), p * (1 - p) / variance) if variance > 0 else float(n)
    return max(1.0, found * (Z / float(stdtrit(k - 1, 0.975))) ** 2)


def half_width(n_items: int, expected: float = 0.5) -> float:
    """Half the width of the 95 % Wilson interval for `n_items` test items with the share `expected` of correct ones."""
    low, high = wilson(round(expected * n_items), n_items)
    return (high - low) / 2


def needed_items(half: float, expected: float = 0.5) -> int:
    """The smallest number of test items for which half the width of the 95 % Wilson interval is at most `half`, if the
    share of correct predictions is `expected`."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if half_width(middle, expected) <= half else (middle + 1, high)
    return low


def measure(store: Store, project_id: int) -> Measurement | None:
    """Measure all rounds of a project. None if the project has not drawn test items."""
    items = own_test_items(store, project_id)
    if not len(items.item_ids):
        return None
    known = classes.list_classes(store, project_id, include_inactive=True)
    at = np.flatnonzero(items.labeled)[:MOST_TESTS]
    labels = _effective(items.class_ids[at], known)
    rows = [row for row in reversed(RoundLog(store, project_id).list()) if row.status == "finished"]
    rows = [row for row in rows if row.replay_of is None and row.metrics.get("has_model")]
    groups = np.unique(np.array(items.groups), return_inverse=True)[1][at] if items.groups else None
    measured, columns = [], []
    for row in rows if len(at) else ():
        stored = _stored(store, row, items.item_ids[at])
        if stored is not None:
            columns.append(_effective(stored.class_ids, known) == labels)
            measured.append(_measured(row, Share.of(columns[-1], groups), stored.inductive))
    correct = np.stack(columns, 1) if columns else np.zeros((len(at), 0), np.bool_)
    return Measurement(
        n_drawn=len(items.item_ids),
        n_labeled=int(items.labeled.sum()),
        n_waiting=int(items.waiting.sum()),
        n_skipped=int(items.skipped.sum()),
        rounds=tuple(measured),
        per_class=_per_class(labels, columns[-1], known, groups) if columns else (),
        n_left_out=(len(rows) - len(measured)) if len(at) else 0,
        correct=correct,
        groups=groups,
        divided=items.divided,
    )


def as_dict(found: Measurement, forecast: Forecast | None) -> dict[str, Any]:
    """The measurement as JSON values, for the API and the command line."""
    return {
        "n_drawn": found.n_drawn,
        "n_labeled": found.n_labeled,
        "n_waiting": found.n_waiting,
        "n_skipped": found.n_skipped,
        "n_groups": found.n_groups,
        "rounds": [
            {
                "round_id": row.round_id,
                "number": row.number,
                "n_labeled": row.n_labeled,
                "inductive": row.inductive,
                **_share(row.accuracy),
            }
            for row in found.rounds
        ],
        "per_class": [{"name": name, **_share(share)} for name, share in found.per_class],
        "forecast": None if forecast is None else asdict(forecast),
    }


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"accuracy": share.value, "correct": share.correct, "n": share.n, "low": low, "high": high}


def _measured(row: RoundRow, accuracy: Share, inductive: bool) -> MeasuredRound:
    return MeasuredRound(
        round_id=row.id,
        number=row.number,
        n_labeled=row.n_labeled,
        strategy=row.strategy,
        accuracy=accuracy,
        inductive=inductive,
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """The class that a round predicts for each test item."""

    class_ids: NDArray[np.int64]
    inductive: bool


def _stored(store: Store, row: RoundRow, item_ids: NDArray[np.int64]) -> _Stored | None:
    """The predictions of a round for these items. None if one of them has no prediction."""
    found = predictions_of(store, row)
    if found is None:
        return None
    columns = np.array(found.column_classes, np.int64)
    log = RoundLog(store, row.project_id)
    with contextlib.suppress(NotFound):
        ids = np.asarray(log.arrays(row.id, "test_item_ids"))
        place = np.searchsorted(ids, item_ids).clip(max=len(ids) - 1)
        if (ids[place] == item_ids).all():
            return _Stored(columns[log.arrays(row.id, "test_predictions")[place].argmax(1)], inductive=True)
    rows = found.predicted_rows(item_ids)
    if (rows < 0).any():
        return None
    return _Stored(columns[found.probabilities[rows].argmax(1)], inductive=False)


def _effective(class_ids: NDArray[np.int64], known: Sequence[ClassRow]) -> NDArray[np.int64]:
    counts_as = class_rows.counts_as(list(known))
    return np.array([counts_as.get(one, one) for one in class_ids.tolist()], np.int64)


def _per_class(
    labels: NDArray[np.int64],
    correct: NDArray[np.bool_],
    known: Sequence[ClassRow],
    groups: NDArray[np.int64] | None,
) -> tuple[tuple[str, Share], ...]:
    found = []
    for row in known:
        mine = labels == row.id
        if row.active and int(mine.sum()) >= FEWEST_PER_CLASS:
            found.append((row.name, Share.of(correct[mine], None if groups is None else groups[mine])))
    return tuple(found)
