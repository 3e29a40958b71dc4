"""Learning progress over the rounds of a project, as data for screens.

There are three measures, and a curve shows only one of them:
- Accuracy on test items is inductive: that of the network alone, on items that were not used in any way.
- The "earlier measure" of rounds of earlier versions had the test items in the similarity graph. It is shown only if no
  round has the inductive accuracy.
- Accuracy on the picks, which are the difficult items, is used only in projects without test items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.views.figures.charts import CurvePoint, wilson
from app.views.measuring import measure
from app.views.predictions import predictions_of
from app.views.strategy_names import strategy_title
from core.rounds.simulation_plan import INDUCTIVE
from storage.database.store import Store
from storage.labeling.labeled_items import counting_classes
from storage.projects import class_rows, classes
from storage.rounds.log import RoundLog, RoundRow

FEWEST_OWN = 10  # labeled test items that the project must have drawn before the curve is based on them


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyOnPicks:
    """The number of wrong predictions for the picks of one round, among the picks that have a label."""

    labeled: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningProgress:
    """The learning progress of a project over its finished rounds."""

    rounds: tuple[RoundRow, ...]  # finished rounds without replays, oldest first
    curve: tuple[CurvePoint, ...]
    measure: Literal["test items", "earlier measure", "picks"]  # the measure of the curve
    on_picks: dict[int, AccuracyOnPicks]  # round id -> accuracy on its picks
    changed_nearby: int | None  # predictions near the last round's picks that have changed since
    confusion: NDArray[np.int64] | None  # (C, C) counts; rows: known label, columns: prediction
    class_names: tuple[str, ...]
    with_propagation: float | None = None  # accuracy with label propagation at the last point, if measured
    n_earlier: int = 0  # rounds with the earlier measure, which are not in the curve

    @property
    def gain(self) -> float | None:
        """The difference of the last two points, in percentage points; None unless measured on test items."""
        if self.measure == "picks" or len(self.curve) < 2:
            return None
        return 100 * (self.curve[-1].share - self.curve[-2].share)


def learning_progress(store: Store, project_id: int) -> LearningProgress:
    """The learning progress of a project over its finished rounds, without replays."""
    log = RoundLog(store, project_id)
    rows = tuple(row for row in reversed(log.list()) if row.status == "finished" and row.replay_of is None)
    on_picks = {row.id: found for row in rows if (found := accuracy_on_picks(store, row)) is not None}
    test_points = [point for row in rows if is_inductive(row) and (point := _test_point(row)) is not None]
    earlier = [point for row in rows if not is_inductive(row) and (point := _test_point(row)) is not None]
    pick_points = [
        CurvePoint(
            round=row.number,
            labels=row.n_labeled,
            correct=on_picks[row.id].labeled - on_picks[row.id].wrong,
            n=on_picks[row.id].labeled,
            strategy=strategy_title(row.strategy),
        )
        for row in rows
        if row.id in on_picks
    ]
    newest = rows[-1] if rows else None
    test_points = _own_points(store, project_id) or test_points
    return LearningProgress(
        rounds=rows,
        curve=tuple(test_points or earlier or pick_points),
        measure="test items" if test_points else "earlier measure" if earlier else "picks",
        on_picks=on_picks,
        changed_nearby=_changed_nearby(log, rows),
        confusion=_confusion(newest),
        class_names=tuple(newest.metrics.get("class_names", ())) if newest else (),
        with_propagation=newest.metrics.get("accuracy_with_propagation") if newest else None,
        n_earlier=len(earlier) if test_points else 0,
    )


def _own_points(store: Store, project_id: int) -> list[CurvePoint]:
    """The curve on the test items that the project has drawn. All rounds are measured on the same items."""
    found = measure(store, project_id)
    if found is None or found.n_labeled < FEWEST_OWN:
        return []
    return [
        CurvePoint(
            round=row.number,
            labels=row.n_labeled,
            correct=row.accuracy.correct,
            n=row.accuracy.n,
            strategy=strategy_title(row.strategy),
        )
        for row in found.rounds
        if row.inductive
    ]


def accuracy_on_picks(store: Store, row: RoundRow) -> AccuracyOnPicks | None:
    """Compare the predictions for the round's picks with their current labels. None before the first label.

    Second looks do not count, because the model was trained with the labels of their items.
    """
    found = predictions_of(store, row)
    if found is None or not row.metrics.get("has_model"):
        return None
    counts_as = class_rows.counts_as(classes.list_classes(store, row.project_id, True))
    new = [pick for pick in RoundLog(store, row.project_id).picks(row.id) if not pick.reason.get("second_look")]
    picks = [pick.item_id for pick in new]
    labels = counting_classes(store, row.project_id, picks)
    wrong = 0
    for item_id, label in labels.items():
        at = found.row(item_id)
        if at is not None:
            predicted = found.column_classes[int(np.argmax(found.probabilities[at]))]
            wrong += counts_as.get(predicted, predicted) != label
    return AccuracyOnPicks(labeled=len(labels), wrong=wrong) if labels else None


def is_inductive(row: RoundRow) -> bool:
    """Whether the accuracy of the round is inductive. Rounds of earlier versions have another measure."""
    return row.metrics.get("accuracy_measure") == INDUCTIVE


def accuracy_words(row: RoundRow) -> str:
    """The accuracy on test items as text, marked if it is the earlier measure. Empty if there is none."""
    accuracy = row.metrics.get("accuracy")
    if accuracy is None:
        return ""
    return f"{100 * accuracy:.1f} %" + ("" if is_inductive(row) else " (earlier measure)")


def _test_point(row: RoundRow) -> CurvePoint | None:
    accuracy, n = row.metrics.get("accuracy"), int(row.metrics.get("n_held_out") or 0)
    if accuracy is None or n == 0:
        return None
    title = strategy_title(row.strategy)
    return CurvePoint(round=row.number, labels=row.n_labeled, correct=round(accuracy * n), n=n, strategy=title)


def _changed_nearby(log: RoundLog, rows: Sequence[RoundRow]) -> int | None:
    """The sum over the picks of the newest round whose hindsight is stored."""
    for row in reversed(rows[:-1]):
        changed = [pick.hindsight.get("n_changed") for pick in log.picks(row.id)]
        known = [number for number in changed if number is not None]
        if known:
            return int(sum(known))
    return None


def _confusion(row: RoundRow | None) -> NDArray[np.int64] | None:
    counts = row.metrics.get("confusion") if row is not None else None
    return np.asarray(counts, np.int64) if counts else None


def worst_confusion(counts: NDArray[np.int64], names: Sequence[str]) -> tuple[str, str, int] | None:
    """(known class, predicted class, count) of the most frequent confusion. None without confusions."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    if off.max(initial=0) == 0:
        return None
    true, predicted = np.unravel_index(int(off.argmax()), off.shape)
    return names[int(true)], names[int(predicted)], int(off[true, predicted])


def worst_confusions(counts: NDArray[np.int64], names: Sequence[str], most: int) -> list[tuple[str, str, int]]:
    """(known class, predicted class, count) of up to `most` confusions, most frequent first."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:most]
    pairs = [np.unravel_index(int(one), off.shape) for one in order]
    return [
        (names[int(true)], names[int(predicted)], int(off[true, predicted]))
        for true, predicted in pairs
        if off[true, predicted]
    ]


def advice(found: LearningProgress) -> str:
    """A sentence on whether to label more. The rule is to stop after two batches that each changed the test accuracy by
    less than half the width of its confidence interval."""
    if found.measure == "picks":
        return "There are no test items, so progress is not measured. Draw some below: Measure accuracy."
    if len(found.curve) < 3:
        return "Keep going: after three rounds, this shows whether more labels are worthwhile."
    last = found.curve[-1]
    low, high = wilson(last.correct, last.n)
    half = 100 * (high - low) / 2
    gains = [100 * (b.share - a.share) for a, b in zip(found.curve[-3:-1], found.curve[-2:], strict=True)]
    if all(abs(gain) < half for gain in gains) and last.share > 0.5:
        return (
            f"The last two batches changed test accuracy by {gains[0]:+.1f} and {gains[1]:+.1f} points, within its "
            f"uncertainty of ±{half:.1f}. More labels will probably not help; you can stop here."
        )
    return f"Keep going: the last two batches changed test accuracy by {gains[0]:+.1f} and {gains[1]:+.1f} points."
