"""What the rounds of a project have shown so far, as plain values for the Train screen. No Streamlit in here.

Two different numbers, never mixed: accuracy on held-out items, and how often the guess was right on the items that a
strategy chose (which are the hard ones). The second is shown only where there is nothing held out, under its own name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from app.views.charts import CurvePoint, wilson
from app.views.predictions import predictions_of
from app.views.strategy_names import strategy_title
from storage.database.schema import ItemState
from storage.database.store import Store
from storage.projects import classes
from storage.rounds.log import RoundLog, RoundRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessing:
    """How the guesses on one batch did, once people had answered."""

    answered: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    rounds: tuple[RoundRow, ...]  # finished, oldest first, replays left out
    curve: tuple[CurvePoint, ...]
    judged_by: str  # "held-out" | "guesses"
    guessing: dict[int, Guessing]  # round id -> its batch
    changed_nearby: int | None  # pseudo-labels near the last answered batch that are others now
    confusion: NDArray[np.int64] | None  # rows: truth
    class_names: tuple[str, ...]

    @property
    def gain(self) -> float | None:
        """Change of the last point against the one before, in percentage points; held-out only."""
        if self.judged_by != "held-out" or len(self.curve) < 2:
            return None
        return 100 * (self.curve[-1].share - self.curve[-2].share)


def learned(store: Store, project_id: int) -> Learned:
    log = RoundLog(store, project_id)
    rows = tuple(row for row in reversed(log.list()) if row.status == "finished" and row.replay_of is None)
    guessing = {row.id: found for row in rows if (found := guessing_of(store, row)) is not None}
    held_out = [point for row in rows if (point := _held_out_point(row)) is not None]
    guessed = [
        CurvePoint(
            round=row.number,
            labels=row.n_labeled,
            correct=guessing[row.id].answered - guessing[row.id].wrong,
            n=guessing[row.id].answered,
            strategy=strategy_title(row.strategy),
        )
        for row in rows
        if row.id in guessing
    ]
    newest = rows[-1] if rows else None
    return Learned(
        rounds=rows,
        curve=tuple(held_out or guessed),
        judged_by="held-out" if held_out else "guesses",
        guessing=guessing,
        changed_nearby=_changed_nearby(log, rows),
        confusion=_confusion(newest),
        class_names=tuple(newest.metrics.get("class_names", ())) if newest else (),
    )


def guessing_of(store: Store, row: RoundRow) -> Guessing | None:
    """Of the round's picks that have a label now: how many guesses were wrong. None before the first answer."""
    opinion = predictions_of(store, row)
    if opinion is None or not row.metrics.get("has_model"):
        return None
    counts_as = {c.id: c.effective_id or c.id for c in classes.list_classes(store, row.project_id, True)}
    picks = [pick.item_id for pick in RoundLog(store, row.project_id).picks(row.id)]
    query = select(ItemState.item_id, ItemState.class_id).where(
        ItemState.item_id.in_(picks), ItemState.class_id.is_not(None)
    )
    with store.read() as connection:
        answers = {found.item_id: counts_as.get(found.class_id, found.class_id) for found in connection.execute(query)}
    wrong = 0
    for item_id, answer in answers.items():
        at = opinion.row(item_id)
        if at is not None:
            guess = opinion.column_classes[int(np.argmax(opinion.probabilities[at]))]
            wrong += counts_as.get(guess, guess) != answer
    return Guessing(answered=len(answers), wrong=wrong) if answers else None


def _held_out_point(row: RoundRow) -> CurvePoint | None:
    accuracy, n = row.metrics.get("accuracy"), int(row.metrics.get("n_held_out") or 0)
    if accuracy is None or n == 0:
        return None
    title = strategy_title(row.strategy)
    return CurvePoint(round=row.number, labels=row.n_labeled, correct=round(accuracy * n), n=n, strategy=title)


def _changed_nearby(log: RoundLog, rows: Sequence[RoundRow]) -> int | None:
    """Summed over the picks of the newest round that a later one has looked back on."""
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
    """(true class, guessed class, how often) of the most frequent mistake."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    if off.max(initial=0) == 0:
        return None
    true, guessed = np.unravel_index(int(off.argmax()), off.shape)
    return names[int(true)], names[int(guessed)], int(off[true, guessed])


def advice(found: Learned) -> str:
    """Whether more labels are likely to pay, by a stated rule: two batches in a row that moved the held-out accuracy by
    less than half the width of its interval no longer pay."""
    if found.judged_by != "held-out":
        return "There are no test items, so progress is not measured. Import items with split=test to measure it."
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
