"""Second looks: items whose label may be wrong replace new items of a batch if their value is higher.

A label is considered if it is more likely wrong than right (`core.labels.trust`). The values of a second look and of a
new label are on one scale, the expected change of the loss on the whole pool (`core.labels.influence`). The second look
of the highest value replaces the new pick of the lowest value if its own value is higher, and so on, up to MOST_SHARE
of the batch. No label is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.labels.influence import pool_influence
from core.labels.trust import SUSPECTED
from core.types import UNLABELED, PickReason, Selection, SelectionRequest

MOST_SHARE = 0.5  # of a batch
MOST_ROWS = 4_000  # of the outer loss


def with_second_looks(
    selection: Selection,
    request: SelectionRequest,
    labels: NDArray[np.int64],
    weights: NDArray[np.floating],
    belief: NDArray[np.floating],
) -> tuple[Selection, NDArray[np.float32] | None]:
    """The selection with second looks at its end, and the influence (n,) of suspected labels, NaN on other rows; None
    if no label is suspected. `labels`, `weights` and `belief` are those of the request's rows."""
    suspects = np.flatnonzero((labels != UNLABELED) & (weights < SUSPECTED))
    most = int(MOST_SHARE * len(selection.item_ids))
    if not len(suspects) or not request.has_model:
        return selection, None
    order = np.argsort(request.item_ids, kind="stable")
    picks = order[np.searchsorted(request.item_ids, selection.item_ids, sorter=order)]
    rows = _rows(labels, picks)
    found = pool_influence(_features(request)[rows], labels[rows], request.probabilities[rows], weights[rows])
    new = found.new_label_values(np.searchsorted(rows, picks), request.probabilities[picks])
    values = found.second_look_values(np.searchsorted(rows, suspects), labels[suspects], belief[suspects])
    influence = np.full(len(labels), np.nan, np.float32)
    influence[suspects] = found.of_labels(np.searchsorted(rows, suspects), labels[suspects])
    best, kept = replacements(values, new, most)
    if not len(best):
        return selection, influence
    looks = [
        PickReason(
            order=len(kept) + number,
            score=float(values[at]),
            second_look=True,
            trust=float(weights[suspects[at]]),
            influence=float(influence[suspects[at]]),
            guess=int(belief[suspects[at]].argmax()),
        )
        for number, at in enumerate(best, 1)
    ]
    return _with_looks(selection, kept, request.item_ids[suspects[best]], looks), influence


def _with_looks(
    selection: Selection, kept: NDArray[np.int64], item_ids: NDArray[np.int64], looks: Sequence[PickReason]
) -> Selection:
    """The selection with only the picks at `kept`, followed by second looks at the items `item_ids`."""
    reasons: tuple[PickReason, ...] = ()
    if selection.reasons:
        stay = [replace(selection.reasons[at], order=number) for number, at in enumerate(kept, 1)]
        reasons = (*stay, *looks)
    scores = np.array([look.score for look in looks], np.float64)
    return replace(
        selection,
        item_ids=np.concatenate([selection.item_ids[kept], item_ids]),
        scores=np.concatenate([selection.scores[kept], scores]).astype(np.float32),
        reasons=reasons,
        notes=(*selection.notes, second_look_note(len(looks), len(selection.item_ids))),
    )


def replacements(
    looks: NDArray[np.float64], new: NDArray[np.float64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the second looks by value, highest first, and of the remaining new picks, in their order. The best
    look replaces the pick of the lowest value as long as its own value is higher."""
    best, lowest = np.argsort(-looks, kind="stable"), np.argsort(new, kind="stable")
    n_looks = 0
    while n_looks < min(most, len(best)) and looks[best[n_looks]] > new[lowest[n_looks]]:
        n_looks += 1
    return best[:n_looks], np.sort(lowest[n_looks:])


def second_look_note(n_looks: int, n_picks: int) -> str:
    if n_looks == 1:
        what, more = "is a second look at a label that may be wrong. It is", "a new item"
    else:
        what, more = "are second looks at labels that may be wrong. They are", "the same number of new items"
    return f"{n_looks} of {n_picks} picks {what} expected to lower the loss more than {more}."


def _rows(labels: NDArray[np.int64], picks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labeled rows, picks, and other rows at even spacing up to MOST_ROWS, ascending."""
    own = np.union1d(np.flatnonzero(labels != UNLABELED), picks)
    others = np.setdiff1d(np.arange(len(labels)), own)
    n_others = min(len(others), max(MOST_ROWS - len(own), 0))
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)] if n_others else others[:0]
    return np.union1d(own, spaced)


def _features(request: SelectionRequest) -> NDArray[np.float64]:
    """(n, e) embeddings of length 1."""
    z = np.asarray(request.embeddings if request.embeddings.shape[1] else request.features, np.float64)
    return np.asarray(z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12))
