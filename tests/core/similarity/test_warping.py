"""Warped distances between clips against librosa's, and the nearest clips."""

from __future__ import annotations

from itertools import pairwise

import librosa
import numpy as np
import pytest

from core.rows import ArrayRows
from core.similarity import warping


def sweep(start: float, end: float, at: float, length: float, frames: int = 32) -> np.ndarray:
    """(32, frames, 1) a log-mel picture: a ridge that glides from bin `start` to `end`, over a floor."""
    t = (np.arange(frames) / frames - at) / length
    bins = np.arange(32)[:, None]
    ridge = np.exp(-np.square((bins - (start + (end - start) * t)) / 2.5)) * ((t >= 0) & (t <= 1))
    return (4 * ridge - 4)[..., None].astype(np.float32)


def sweeps(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ten glides of each of four kinds, at other times and speeds."""
    rng = np.random.default_rng(seed)
    kinds = [(4, 26), (26, 4), (10, 12), (24, 20)]
    made = [
        sweep(start + rng.normal() / 2, end + rng.normal() / 2, rng.uniform(0.05, 0.25), rng.uniform(0.4, 0.7))
        for start, end in kinds
        for _ in range(10)
    ]
    return np.stack(made), np.repeat(np.arange(4), 10)


@pytest.mark.slow  # in a fresh environment librosa compiles its own
def test_the_warped_distance_is_that_of_librosa():
    c = np.random.default_rng(0).normal(size=(6, 20, 5)).astype(np.float32)
    candidates = np.array([[1, 2, 3, 4, 5], [0, 2, 3, 4, 5]])
    for band in (3, 19):
        found = np.empty(candidates.shape, np.float32)
        warping.warp(c, candidates, found, 0, band)
        for i, row in enumerate(candidates):
            for j, other in enumerate(row):
                cost = np.linalg.norm(c[i][:, None] - c[other][None], axis=2)
                cost[np.abs(np.subtract.outer(np.arange(20), np.arange(20))) > band] = np.inf
                by_librosa = librosa.sequence.dtw(C=cost)[0][-1, -1]
                assert found[i, j] == pytest.approx(by_librosa, rel=1e-5)


def test_cepstra_do_not_depend_on_loudness_or_a_constant_offset():
    pictures, _ = sweeps()
    colored = pictures + 0.7 + np.linspace(0, 1, 32)[None, :, None, None].astype(np.float32)
    heard, plain = (warping.cepstra(ArrayRows(given), np.arange(40)) for given in (colored, pictures))
    np.testing.assert_allclose(heard, plain, atol=1e-4)
    np.testing.assert_allclose(plain.std((0, 1)), np.linspace(1.0, 0.5, 13), rtol=1e-3)


def test_moduli_do_not_depend_on_when_a_sound_starts():
    c = np.random.default_rng(1).normal(size=(2, 16, 3)).astype(np.float32)
    np.testing.assert_allclose(warping.moduli(np.roll(c, 5, axis=1)), warping.moduli(c), atol=1e-4)


def test_the_nearest_clips_are_the_same_sound_at_another_time_and_speed(monkeypatch):
    pictures, kinds = sweeps()
    for n_candidates in (200, 15):  # more than there are clips, and fewer
        monkeypatch.setattr(warping, "CANDIDATES", n_candidates)
        neighbors, distances, _ = warping.nearest_clips(ArrayRows(pictures), np.arange(40), 5)
        assert neighbors.shape == distances.shape == (40, 5)
        assert (kinds[neighbors] == kinds[:, None]).mean() > 0.95
        assert (neighbors != np.arange(40)[:, None]).all()
        assert (np.diff(distances, axis=1) >= 0).all()


def test_only_the_given_rows_are_compared():
    pictures, kinds = sweeps()
    rows = np.flatnonzero(kinds != 2)
    neighbors, _, _ = warping.nearest_clips(ArrayRows(pictures), rows, 5)
    assert neighbors.max() < len(rows)
    assert (kinds[rows][neighbors] == kinds[rows][:, None]).mean() > 0.95


def test_equal_clips_and_few_clips_find_each_other():
    pictures = np.repeat(sweep(4, 26, 0.1, 0.5)[None], 7, axis=0)
    neighbors, distances, _ = warping.nearest_clips(ArrayRows(pictures), np.arange(7), 10)
    assert neighbors.shape == (7, 6)
    assert all(len(set(row) - {i}) == 6 for i, row in enumerate(neighbors))
    np.testing.assert_allclose(distances, 0, atol=1e-5)
    pair, _, _ = warping.nearest_clips(ArrayRows(pictures), np.arange(2), 10)
    assert pair.tolist() == [[1], [0]]


def test_the_typical_distance_is_the_median_over_pairs(monkeypatch):
    pictures, _ = sweeps()
    _, distances, typical = warping.nearest_clips(ArrayRows(pictures), np.arange(40), 5)
    c = warping.cepstra(ArrayRows(pictures), np.arange(40))
    others = np.stack([np.delete(np.arange(40), i) for i in range(40)])
    exact = np.empty(others.shape, np.float32)
    warping.warp(c, others, exact, 0, 8)
    assert typical == pytest.approx(np.median(exact), rel=0.1)
    assert np.median(distances[:, 0]) < 0.6 * typical  # another clip of the same kind
    monkeypatch.setattr(warping, "PAIRS", 200)  # fewer clips than there are
    assert warping.typical_distance(c, 8) == pytest.approx(np.median(exact), rel=0.3)


def test_progress_is_reported_and_can_cancel(monkeypatch):
    pictures, _ = sweeps()
    reported = []
    warping.nearest_clips(ArrayRows(pictures), np.arange(40), 5, reported.append)
    assert reported[-1].done == reported[-1].total == 40

    warped = []
    warp = warping.warp

    def counted(*arguments):
        warped.append(1)
        warp(*arguments)

    def stop(progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(warping, "warp", counted)
    monkeypatch.setattr(warping, "BLOCK", 1)
    with pytest.raises(KeyboardInterrupt):
        warping.nearest_clips(ArrayRows(np.tile(pictures, (20, 1, 1, 1))), np.arange(800), 5, stop)
    assert len(warped) < 400  # blocks that had not begun are left


def test_long_clips_are_warped_on_a_fixed_number_of_frames():
    """Means of neighboring frames: the oracle averages them one by one, for a number that 32 does not divide."""
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(3, 6, 79)).astype(np.float32)
    edges = [k * 79 // 32 for k in range(33)]
    expected = np.stack([pictures[..., a:b].mean(2) for a, b in pairwise(edges)], axis=2)
    np.testing.assert_allclose(warping.average_frames(pictures), expected, atol=1e-6)
    np.testing.assert_array_equal(warping.average_frames(pictures[..., :32]), pictures[..., :32])
    rows = ArrayRows(rng.normal(size=(4, 32, 313, 1)).astype(np.float32))
    assert warping.cepstra(rows, np.arange(4)).shape == (4, 32, 13)
