"""Constraints on a batch that hold for every strategy: eligible rows, a region and its share, near-duplicates.

A constraint becomes a smaller set of eligible rows before a strategy runs. A batch chosen in parts (first in the
region, then anywhere) runs the strategy once per part; picks of earlier parts count as labeled with their
pseudo-labels, so that later parts take them into account.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.acquisition import duplicates
from core.acquisition.duplicates import NearDuplicates
from core.acquisition.pool_view import RowArray, is_cold
from core.config import SelectionConfig
from core.errors import InvalidInput
from core.runtime import seed_for
from core.types import SelectionRequest

Mask = NDArray[np.bool_]


def check(request: SelectionRequest) -> None:
    """Raise `InvalidInput` with the numbers if no strategy can fulfill the request."""
    open_rows = request.eligible & ~request.labeled
    n_open, n_labeled = int(open_rows.sum()), int(request.labeled.sum())
    if request.batch_size > n_open:
        closed = len(open_rows) - n_open - n_labeled
        raise InvalidInput(
            f"Asked for {request.batch_size} items but only {n_open} can be selected "
            f"({n_labeled} labeled, {closed} not eligible). Lower the batch size or import more."
        )
    if request.region is not None and request.region_share == 1.0:
        inside = int((open_rows & request.region).sum())
        if request.batch_size > inside:
            raise InvalidInput(
                f"Asked for {request.batch_size} items from a region where only {inside} can be selected. "
                "Lower the batch size, widen the region, or choose only a part of the batch there."
            )
    for name in ("probabilities", "embeddings", "features"):
        values = getattr(request, name)
        if not np.isfinite(values.sum(dtype=np.float64)):
            raise InvalidInput(f"The {name} contain values that are not finite numbers; nothing was selected.")


def parts(request: SelectionRequest) -> list[tuple[int, Mask]]:
    """(count, mask of rows (n,)) of each part of the batch, in order; the counts sum to the batch size."""
    open_rows = request.eligible & ~request.labeled
    m = request.batch_size
    if request.region is None:
        return [(m, open_rows)]
    inside = open_rows & request.region
    in_region = min(int(np.ceil(request.region_share * m - 1e-9)), int(inside.sum()))
    return [(k, rows) for k, rows in ((in_region, inside), (m - in_region, open_rows)) if k > 0]


def find_near_duplicates(request: SelectionRequest, config: SelectionConfig) -> NearDuplicates:
    """Near-duplicates by kernel features, which depend on the input and not on a model, or by the inputs themselves if
    kernel features were not computed."""
    if request.features.shape[1] == 0 and request.inputs is not None:
        x = request.inputs()
    else:
        x = request.features if request.features.shape[1] else request.embeddings
    return duplicates.find_near_duplicates(x, config.near_duplicate, seed_for(request.seed, "near-duplicates"))


def distinct_first(
    request: SelectionRequest, twins: NearDuplicates, allowed: Mask, chosen: RowArray, m: int
) -> list[tuple[int, Mask]]:
    """(count, mask of rows (n,)) in the order in which m of the `allowed` rows are chosen.

    Rows that are near-duplicates neither of each other nor of labeled or `chosen` rows come first. If there are fewer
    than m of them, the rest comes from all allowed rows. Neighboring windows of one recording are not chosen together
    while others remain.
    """
    taken = np.union1d(np.flatnonzero(request.labeled), chosen)
    steps: list[tuple[int, Mask]] = []
    masks = [twins.distinct(allowed, taken), allowed]
    if request.windows is not None:
        separate = apart(request, allowed, chosen)
        masks = [twins.distinct(separate, taken), separate, *masks]
    for rows in masks:
        # rows of earlier steps are chosen by then, so a step counts only its additional rows
        k = min(m, int(rows.sum())) - sum(count for count, _ in steps)
        if k > 0:
            steps.append((k, rows))
    return steps


def apart(request: SelectionRequest, allowed: Mask, chosen: RowArray) -> Mask:
    """(n,) a subset of the `allowed` rows in which no two are neighboring windows of one recording, and none is a
    neighbor of a `chosen` row. Neighbors overlap, or are less than half of the shorter window apart. Among neighbors,
    the one whose prediction has the larger entropy is kept."""
    assert request.windows is not None
    recording, start, end = request.windows.T
    entropy = -(request.probabilities * np.log(np.maximum(request.probabilities, 1e-12))).sum(1)
    kept = allowed & (recording < 0)
    order = np.lexsort((start, recording))
    order = order[recording[order] >= 0]
    for rows in np.split(order, np.flatnonzero(np.diff(recording[order])) + 1):
        if not allowed[rows].any():
            continue
        places = _Places(start[rows], end[rows])
        for place in np.flatnonzero(np.isin(rows, chosen)).tolist():
            places.block(place)
        for place in np.argsort(-entropy[rows], kind="stable").tolist():
            if allowed[rows[place]] and not places.blocked[place]:
                kept[rows[place]] = True
                places.block(place)
    return np.asarray(kept)


class _Places:
    """The windows of one recording in the order of their starts, and which of them are neighbors of selected ones."""

    def __init__(self, start: NDArray[np.float64], end: NDArray[np.float64]) -> None:
        self._start, self._end = start, end
        self._length = end - start
        self._longest = self._length.max()
        self.blocked = np.zeros(len(start), bool)

    def block(self, place: int) -> None:
        """Mark the neighbors of the window at `place`."""
        start, end, length = self._start[place], self._end[place], self._length[place]
        first, last = np.searchsorted(self._start, [start - self._longest - length, end + length])
        gap = np.maximum(self._start[first:last] - end, start - self._end[first:last])
        self.blocked[first:last] |= gap < 0.5 * np.minimum(length, self._length[first:last])


def part_request(request: SelectionRequest, m: int, allowed: Mask, chosen: RowArray) -> SelectionRequest:
    """The request of one part: m of the `allowed` rows, with earlier picks `chosen` counted as labeled."""
    labeled = request.labeled.copy()
    labeled[chosen] = True
    return replace(
        request,
        labeled=labeled,
        eligible=allowed & ~labeled,
        batch_size=m,
        region=None,
        region_share=1.0,
        has_model=not is_cold(request),
    )
