"""The rule of the preset `auto`: the encoder, or training from scratch.

    evidence   progressive validation if it has at least MIN_LABELS labels; else cross-validation of heads if it has as
               many; else none (`core.rounds.approach.evidence`)
    first      the approach that was right more often; the encoder if both were equal or there is no evidence
    later      the approach of the last round, until the other is ahead by at least max(2, sqrt(labels that only one
               predicted correctly)): one standard deviation of that difference if both were equally good
    second     while the encoder is used, training from scratch is repeated for comparison when there are
               FIRST_LABELS labels and twice as many as when it was last trained; while training from scratch is used,
               the head on the encoder's features is fitted in every round

A round stores the settings that it decided on, and a replay uses these. The decision depends only on training labels
and on the stored predictions of earlier rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from core.rounds.approach.evidence import PastRound, Tally

MIN_LABELS = 8
FIRST_LABELS = 10
ENOUGH = 30  # with this many labels of progressive validation, cross-validation is not computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    uses_encoder: bool
    trains_both: bool
    note: str


def decide(n_labels: int, past: Sequence[PastRound], encoder: str, title: str, before: Tally, folds: Tally) -> Decision:
    """The decision, from the past rounds, progressive validation (`before`) and cross-validation (`folds`). `encoder`
    is the identity of the encoder and `title` its name."""
    same = [one for one in past if one.encoder == encoder]
    uses = chosen(same[-1].uses_encoder if same else None, before, folds)
    due = next_training(same)
    trains_both = not uses or n_labels >= due
    again = 2 * n_labels if trains_both else due
    return Decision(uses_encoder=uses, trains_both=trains_both, note=_note(uses, title, before, folds, again))


def chosen(last: bool | None, before: Tally, folds: Tally) -> bool:
    """Whether the encoder is used; `last` is whether the last round used it (None: no such round)."""
    evidence = next((one for one in (before, folds) if one.n >= MIN_LABELS), Tally())
    if last is None:
        return evidence.lead >= 0
    margin = max(2.0, sqrt(evidence.only_encoder + evidence.only_scratch))
    return evidence.lead > -margin if last else evidence.lead >= margin


def next_training(past: Sequence[PastRound]) -> int:
    """The number of labels at which a round that uses the encoder next trains from scratch too."""
    return max([FIRST_LABELS, *(2 * one.n_labels for one in past if one.classes is not None)])


def _note(uses: bool, title: str, before: Tally, folds: Tally, again: int) -> str:
    shown = f"encoder {title}" if uses else "training from scratch"
    parts = []
    if before.n:
        right, other = (before.encoder, before.scratch) if uses else (before.scratch, before.encoder)
        parts.append(f"{_share(right, before.n)} against {_share(other, before.n)} on {before.n:,} labels given "
                     "after the predictions")  # fmt: skip
    if folds.n:
        right, other = (folds.encoder, folds.scratch) if uses else (folds.scratch, folds.encoder)
        parts.append(f"{_share(right, folds.n)} against {_share(other, folds.n)} in cross-validation on {folds.n:,} "
                     "labels")  # fmt: skip
    why = "; ".join(parts) if parts else "there are too few labels to compare it"
    later = f" Training from scratch is compared again at {again:,} labels." if uses else ""
    return f"Automatic: {shown}: {why}.{later}"


def _share(right: int, n: int) -> str:
    return f"{100 * right / n:.0f} %"
