"""Neighboring windows of one recording are not picked together while others remain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.acquisition import constraints
from core.acquisition.catalog import ENTRIES
from core.acquisition.registry import select
from core.config import SelectionConfig


def windows_of(n: int, seconds: float, hop: float, recordings: int = 1) -> np.ndarray:
    """(n, 3) rows of windows, one recording after the other."""
    each = n // recordings
    number, place = np.divmod(np.arange(n), each)
    return np.stack([number, place * hop, place * hop + seconds], axis=1).astype(float)


def are_neighbors(windows: np.ndarray, first: int, second: int) -> bool:
    a, b = windows[first], windows[second]
    gap = max(b[1] - a[2], a[1] - b[2])
    return a[0] == b[0] and a[0] >= 0 and gap < 0.5 * min(a[2] - a[1], b[2] - b[1])


@pytest.mark.parametrize("hop", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("strategy", sorted(entry.name for entry in ENTRIES))
def test_no_strategy_picks_neighbors(request_of, strategy, hop):
    request = replace(request_of(), windows=windows_of(120, 1.0, hop))
    chosen = select(request, SelectionConfig(strategy=strategy, n_views=3))
    rows = [int(np.flatnonzero(request.item_ids == item)[0]) for item in chosen.item_ids]
    assert len(rows) == request.batch_size
    pairs = [(a, b) for a in rows for b in rows if a < b]
    assert not any(are_neighbors(request.windows, a, b) for a, b in pairs)


def test_neighbors_are_picked_when_nothing_else_remains(request_of):
    request = request_of()
    request = replace(request, windows=windows_of(120, 1.0, 1.0), batch_size=int(request.eligible.sum()))
    chosen = select(request, SelectionConfig(strategy="uniform"))
    assert sorted(chosen.item_ids) == sorted(request.item_ids[request.eligible & ~request.labeled])


def test_of_neighbors_the_less_certain_one_stays_and_other_recordings_do_not_count(request_of):
    request = request_of()
    n_classes = request.n_classes
    certain = np.full((120, n_classes), 0.01 / (n_classes - 1), np.float32)
    certain[:, 0] = 0.99
    certain[31] = 1 / n_classes
    request = replace(request, probabilities=certain, windows=windows_of(120, 1.0, 1.0, recordings=4))
    kept = constraints.apart(request, np.ones(120, bool), np.empty(0, np.int64))
    assert kept[31] and not kept[30] and not kept[32]
    assert not any(are_neighbors(request.windows, a, a + 1) for a in np.flatnonzero(kept[:-1] & kept[1:]))
    blocked = constraints.apart(request, np.ones(120, bool), np.array([31]))
    assert not blocked[[30, 31, 32]].any()


def test_long_windows_block_the_short_ones_that_they_cover(request_of):
    request = request_of()
    windows = windows_of(120, 1.0, 1.0)
    windows[60] = 0, 0.0, 40.0  # covers the first forty
    kept = constraints.apart(replace(request, windows=windows), np.ones(120, bool), np.array([60]))
    assert not kept[:40].any() and kept[41:].any()


def test_clips_that_are_no_windows_are_not_affected(request_of):
    request = replace(request_of(), windows=np.full((120, 3), -1.0))
    allowed = request.eligible & ~request.labeled
    assert np.array_equal(constraints.apart(request, allowed, np.empty(0, np.int64)), allowed)


def test_hours_of_silence_give_picks_that_lie_apart(request_of):
    """All inputs are equal, so near-duplicates cannot be avoided, but neighbors are."""
    request = request_of()
    same = np.zeros_like(request.features)
    request = replace(
        request, features=same, embeddings=np.zeros_like(request.embeddings), windows=windows_of(120, 1, 1)
    )
    chosen = select(request, SelectionConfig(strategy="uniform"))
    rows = [int(np.flatnonzero(request.item_ids == item)[0]) for item in chosen.item_ids]
    assert not any(are_neighbors(request.windows, a, b) for a in rows for b in rows if a < b)
