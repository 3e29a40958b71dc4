"""The effect of a pick, known once it is labeled and the next round has run.

Pure functions of the arrays of two rounds: whether the pseudo-label was wrong, and how the pseudo-labels around the
pick changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.acquisition.geometry import squared_distances
from core.acquisition.pool_view import on_device
from core.types import UNLABELED


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The effect of one pick. Fields about the label are None while it is unlabeled."""

    row: int
    label: int | None
    guess: int  # the pseudo-label it was chosen with
    guess_was_wrong: bool | None
    label_probability: float | None  # the earlier model's probability of the label
    n_neighbors: int
    n_changed: int  # neighbors whose most probable class changed
    n_changed_to_label: int | None  # of these, how many moved to the pick's own label
    mean_shift: float  # mean over neighbors of half the L1 distance between old and new probabilities, 0 to 1
    confidence_gain: float  # mean over neighbors of the new minus the old confidence


def neighborhood(
    points: NDArray[np.floating], rows: NDArray[np.int64], n_neighbors: int, among: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(m, k) the nearest rows to each of `rows` in points (n, e) among those in the mask `among`, without itself."""
    pool = np.flatnonzero(among)
    distances = squared_distances(on_device(points[rows]), on_device(points[pool])).cpu().numpy()
    distances[pool[None, :] == rows[:, None]] = np.inf
    k = min(n_neighbors, len(pool) - int(among[rows].any()))
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : max(k, 0)]
    return np.asarray(pool[nearest], np.int64)


def pick_effects(
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    rows: NDArray[np.int64],
    labels: NDArray[np.int64],
    neighbors: NDArray[np.int64],
) -> tuple[Hindsight, ...]:
    """The effect of each pick.

    before, after (n, C): probabilities of the round that chose the picks and of the next one, with the same rows; rows
    (m,): the picks; labels (m,): their labels, UNLABELED where there is none; neighbors (m, k): rows around each pick.
    """
    return tuple(
        _one(before, after, int(row), int(label), around)
        for row, label, around in zip(rows, labels, neighbors, strict=True)
    )


def _one(
    before: NDArray[np.floating], after: NDArray[np.floating], row: int, label: int, around: NDArray[np.int64]
) -> Hindsight:
    old, new = before[around], after[around]
    guess = int(before[row].argmax())
    changed = old.argmax(1) != new.argmax(1)
    known = label != UNLABELED
    return Hindsight(
        row=row,
        label=label if known else None,
        guess=guess,
        guess_was_wrong=guess != label if known else None,
        label_probability=float(before[row, label]) if known else None,
        n_neighbors=len(around),
        n_changed=int(changed.sum()),
        n_changed_to_label=int((changed & (new.argmax(1) == label)).sum()) if known else None,
        mean_shift=float(0.5 * np.abs(new - old).sum(1).mean()) if len(around) else 0.0,
        confidence_gain=float((new.max(1) - old.max(1)).mean()) if len(around) else 0.0,
    )
