"""Descriptions of pictures by patches against loops over single patches, and the targets that follow from them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from core.config import MediaConfig
from core.errors import InvalidInput
from core.learning.patches import targets as targets_module
from core.learning.patches.descriptions import CONTRAST, describe_pool, fit_patches, k_means
from core.learning.patches.targets import described_rows, has_patch_targets, head_probabilities, patch_targets, to_prior
from core.learning.prediction import predict
from core.learning.training import train
from core.runtime import Runtime
from core.types import UNLABELED
from tests.core.learning.pools import N_CLASSES, SMALL, picture_pool, some_labels

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = Runtime.create(0, "cpu")
KINDS = 12


def described(inputs, n_kinds: int = KINDS):
    return dataclasses.replace(inputs, config=dataclasses.replace(inputs.config, patches=n_kinds))


def slow_sums(picture: np.ndarray, patches) -> np.ndarray:
    """(4 kinds,) of one picture (H, W) in [0, 1], patch by patch: means over the quarters, kind by kind."""
    mean, whitening, centers = (
        t.numpy().astype(np.float64) for t in (patches.mean, patches.whitening, patches.centers)
    )
    size = (len(picture) - 6) // 2 + 1
    maps = np.empty((len(centers), size, size))
    for row in range(size):
        for column in range(size):
            p = picture[2 * row : 2 * row + 6, 2 * column : 2 * column + 6].ravel()
            c = (p - p.mean()) / np.sqrt(p.var() + CONTRAST)
            d = np.linalg.norm((c - mean) @ whitening - centers, axis=1)
            maps[:, row, column] = np.maximum(0, d.mean() - d)
    half = size // 2
    quarters = [
        maps[:, y, x].mean((1, 2)) for y in (slice(half), slice(half, None)) for x in (slice(half), slice(half, None))
    ]
    return np.stack(quarters, 1).ravel()


def test_a_description_is_that_of_a_loop_over_patches():
    inputs, _ = picture_pool(40)
    rows = np.arange(40)
    patches = fit_patches(inputs, rows, KINDS, CPU)
    pictures = inputs.sources.take(rows)[..., 0] / 255.0
    expected = np.sqrt([slow_sums(one, patches) + slow_sums(one[:, ::-1], patches) for one in pictures])
    found = patches.describe(torch.from_numpy(pictures).float()[:, None]).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)
    standardized = describe_pool(inputs, rows, KINDS, CPU).x
    np.testing.assert_allclose(standardized, (expected - expected.mean(0)) / expected.std(0).clip(1e-3), atol=0.05)


def test_patches_are_whitened_and_a_mirror_image_has_the_same_description():
    inputs, _ = picture_pool(60)
    patches = fit_patches(inputs, np.arange(60), KINDS, CPU)
    assert patches.centers.shape == (KINDS, 36) and bool(torch.isfinite(patches.whitening).all())
    picture = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(patches.describe(picture), patches.describe(picture.flip(3)), atol=1e-4, rtol=1e-3)


def test_k_means_finds_separate_clusters_and_keeps_a_center_without_items():
    generator = torch.Generator().manual_seed(0)
    places = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    z = (places[:, None] + 0.1 * torch.randn(3, 30, 2, generator=generator)).reshape(-1, 2)
    start = torch.cat([z[[0, 30, 60]], torch.tensor([[90.0, 90.0]])])
    found = k_means(z, start)
    torch.testing.assert_close(found[:3], z.reshape(3, 30, 2).mean(1))
    assert found[3].tolist() == [90.0, 90.0]


def test_the_pictures_of_other_rows_change_no_description():
    inputs, _ = picture_pool(40)
    rows = np.arange(30)
    pictures = inputs.sources.take(np.arange(40)).copy()
    pictures[30:] = 255 - pictures[30:]

    class Changed:
        shape, dtype = inputs.sources.shape, inputs.sources.dtype

        def take(self, rows):
            return pictures[rows]

    other = dataclasses.replace(inputs, sources=Changed())
    first, second = (describe_pool(one, rows, KINDS, CPU) for one in (inputs, other))
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.of(inputs, rows, CPU), first.x)
    assert np.abs(first.of(other, np.arange(30, 40), CPU) - first.of(inputs, np.arange(30, 40), CPU)).max() > 0.1


def test_the_head_on_patches_learns_patterns_from_few_labels(monkeypatch):
    inputs, classes = picture_pool(80)
    labels, rows = some_labels(classes, 2), np.arange(80)
    found = head_probabilities(described(inputs, 40), labels, rows, N_CLASSES, CPU)
    assert (found.argmax(1) == classes).mean() > 0.9
    monkeypatch.setattr(targets_module, "MOST_FITTED", 40)
    monkeypatch.setattr(targets_module, "DESCRIBED_AT_ONCE", 7)
    fewer = head_probabilities(described(inputs, 40), labels, rows, N_CLASSES, CPU)
    assert (fewer.argmax(1) == classes).mean() > 0.9
    np.testing.assert_allclose(fewer.sum(1), 1, atol=1e-5)


def test_targets_are_the_geometric_mean_of_both_predictions():
    inputs, classes = picture_pool(60)
    inputs = described(inputs)
    readable = np.arange(60) < 52
    inputs, labels = dataclasses.replace(inputs, readable=readable), some_labels(classes, 3)
    trust = np.ones(60, np.float32)
    trust[1] = 0.3
    model = train(inputs, labels, N_CLASSES, dataclasses.replace(SMALL, predict_views=2), runtime=CPU)
    found = patch_targets(model, inputs, labels, runtime=CPU, trust=trust)
    rows = np.flatnonzero(readable)
    n = predict(model, inputs, rows, runtime=CPU, n_views=2).probabilities
    h = head_probabilities(inputs, labels, rows, N_CLASSES, CPU, trust)
    even = np.full(N_CLASSES, 1 / N_CLASSES)
    q = np.sqrt(to_prior(n, even)) * to_prior(h, even)
    q /= q.sum(1, keepdims=True)
    open_rows = rows[labels[rows] == UNLABELED]
    np.testing.assert_allclose(found.probabilities[open_rows], q[labels[rows] == UNLABELED], atol=1e-6)
    labeled = np.flatnonzero(labels != UNLABELED)
    np.testing.assert_array_equal(found.probabilities[labeled], np.eye(N_CLASSES)[labels[labeled]])
    expected = np.where(readable, 1.0, 0.0)
    expected[1] = np.float32(0.3)
    np.testing.assert_array_equal(found.weights, expected)


def test_to_prior_moves_the_shares_and_keeps_the_odds_between_items():
    p = np.array([[0.7, 0.3], [0.6, 0.4], [0.8, 0.2]])
    found = to_prior(p, np.array([0.5, 0.5]))
    assert found.argmax(1).tolist() == [1, 1, 0]  # below and above the mean
    odds = found[:, 0] / found[:, 1] / ((p[:, 0] + 1e-3) / (p[:, 1] + 1e-3))
    np.testing.assert_allclose(odds, odds[0])
    np.testing.assert_allclose(to_prior(np.full((3, 2), 0.5), np.array([0.9, 0.1])), [[0.9, 0.1]] * 3)


def test_of_many_rows_all_labeled_ones_and_spaced_others_are_described():
    labels = np.full(1_000, UNLABELED)
    labels[[3, 500, 999]] = 1
    rows = np.arange(0, 1_000)
    chosen = described_rows(rows, labels, 100)
    assert len(chosen) == 100 and {3, 500, 999} <= set(chosen.tolist())
    assert np.diff(chosen).max() < 15 and chosen.tolist() == sorted(chosen.tolist())
    np.testing.assert_array_equal(described_rows(rows, labels, 1_000), rows)


def test_only_pictures_with_the_setting_have_targets_by_patches():
    inputs, _ = picture_pool(8)
    assert not has_patch_targets(inputs)
    assert has_patch_targets(described(inputs))
    assert not has_patch_targets(dataclasses.replace(described(inputs), kind="audio"))
    for wrong in (-1, 7, 2_001):
        with pytest.raises(InvalidInput, match="kinds of patches"):
            MediaConfig(patches=wrong)
