"""Hints: the walk against a dense solve and by hand, what FixMatch makes of them, and that training repeats."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from core.config import TrainingConfig
from core.errors import InvalidInput
from core.learning import fixmatch, hints
from core.learning.training import predict, train
from core.runtime import Runtime
from core.types import UNLABELED
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels
from tests.core.learning.test_methods import FourPixels, linear, step

CPU = Runtime.create(0, "cpu")
HINTED = dataclasses.replace(SMALL, hint_neighbors=4)


def random_walk(m: int = 40, k: int = 4, seed: int = 0):
    points = np.random.default_rng(seed).normal(size=(m, 3))
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    neighbors = np.argsort(gaps, axis=1)[:, :k]
    return hints.steps(neighbors, np.take_along_axis(gaps, neighbors, 1).astype(np.float32))


def test_the_absorbed_shares_solve_the_linear_system():
    walk = random_walk()
    labels = np.full(40, UNLABELED)
    labels[[3, 11, 25]] = [0, 2, 1]
    W, given = walk.toarray(), labels != UNLABELED
    np.testing.assert_allclose(W.sum(1), 1.0, atol=1e-12)
    assert ((W > 0) == (W > 0).T).all()
    exact = np.linalg.solve(np.eye(37) - 0.97 * W[~given][:, ~given], 0.97 * W[~given][:, given] @ np.eye(3)[[0, 2, 1]])
    found = hints.absorbed(walk, labels, 3, 0.97)
    np.testing.assert_allclose(found[~given], exact, atol=4e-3)  # ENOUGH bounds the last change, not the rest of it
    np.testing.assert_array_equal(found[given], np.eye(3)[[0, 2, 1]])


def test_on_a_chain_of_three_the_shares_are_those_by_hand():
    walk = hints.steps(np.array([[1], [0], [1]]), np.ones((3, 1), np.float32))  # 0 - 1 - 2
    shares = hints.absorbed(walk, np.array([1, UNLABELED, UNLABELED]), 2, 0.5)
    middle = 0.5 * 0.5 / (1 - 0.5 * 0.5 * 0.5)  # half of the way to the label, or to the end and back
    np.testing.assert_allclose(shares[1:, 1], [middle, 0.5 * middle], atol=2e-4)
    np.testing.assert_array_equal(shares[:, 0], 0)


def test_items_beyond_every_label_have_an_even_hint_and_a_higher_power_says_more():
    inputs, classes = clip_pool()
    labels = some_labels(classes, 1)
    rows = np.arange(20)
    found = hints.hints_for(inputs, labels, rows, N_CLASSES, HINTED)
    assert found.shape == (24, N_CLASSES)
    np.testing.assert_allclose(found[20:], N_CLASSES**-2.0)
    open_to = rows[labels[rows] == UNLABELED]
    clear = found[open_to].max(1) > 1.5 * found[open_to].min(1)
    assert (found[open_to].argmax(1) == classes[open_to])[clear].all() and clear.sum() >= 8
    np.testing.assert_allclose(found[0], np.maximum(np.eye(N_CLASSES)[0], hints.LEAST))
    plain = hints.hints_for(inputs, labels, rows, N_CLASSES, dataclasses.replace(HINTED, hint_power=1.0))
    np.testing.assert_allclose(np.square(plain[open_to]), found[open_to], rtol=1e-4)


def test_pictures_other_methods_and_a_setting_of_none_have_no_hints():
    clips, classes = clip_pool()
    pictures, kinds = picture_pool()
    labels, rows = some_labels(classes, 1), np.arange(20)
    assert hints.hints_for(pictures, some_labels(kinds, 1), rows, N_CLASSES, HINTED) is None
    for change in ({"hint_neighbors": 0}, {"method": "mixmatch"}, {"method": "supervised"}):
        assert hints.hints_for(clips, labels, rows, N_CLASSES, dataclasses.replace(HINTED, **change)) is None
    assert hints.hints_for(clips, labels, rows[:1], N_CLASSES, HINTED) is None


def test_of_a_large_pool_the_labeled_items_and_evenly_spaced_others_take_part(monkeypatch):
    monkeypatch.setattr(hints, "MOST_ITEMS", 12)
    labels = np.full(100, UNLABELED)
    labels[[7, 50, 93]] = 0
    rows = hints.taking_part(np.arange(2, 100), labels)
    assert len(rows) == len(set(rows)) == 12 and {7, 50, 93} <= set(rows)
    assert (np.diff(rows) > 0).all() and rows[0] == 2 and rows[-1] == 99
    labels[:40] = 1
    assert len(hints.taking_part(np.arange(100), labels)) == 12
    inputs, classes = clip_pool()
    found = hints.hints_for(inputs, some_labels(classes, 1), np.arange(24), N_CLASSES, HINTED)
    assert (found == np.float32(N_CLASSES**-2.0)).all(1).sum() == 12


@pytest.mark.parametrize("change", [{"hint_neighbors": -1}, {"hint_reach": 1.0}, {"hint_power": -0.5}])
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(InvalidInput, match="hint"):
        TrainingConfig(**change)


def test_fixmatch_guesses_what_network_and_hint_say_together():
    config = TrainingConfig(align="off", threshold=0.6)
    told = torch.tensor([[0.001, 0.999], [0.5, 0.5]])
    losses = fixmatch.loss(dataclasses.replace(step(config), hints=told))
    own = linear(step(config).unlabeled.weak()).softmax(1)
    together = own * told / (own * told).sum(1, keepdim=True)
    strong = linear(2 * FourPixels.pictures[2:])
    counts = (together.amax(1) >= 0.6).float()
    expected = (counts * F.cross_entropy(strong, together.argmax(1), reduction="none")).mean()
    assert losses.unlabeled.item() == pytest.approx(expected.item(), rel=1e-5)
    assert losses.confidence.item() == pytest.approx(together.amax(1).mean().item(), rel=1e-5)
    assert own[0].argmax() == 0 and together[0].argmax() == 1  # the hint turns the first guess
    torch.testing.assert_close(together[1], own[1])  # an even hint says nothing


def test_training_with_hints_repeats_to_the_digit_and_differs_from_training_without():
    inputs, classes = clip_pool()
    labels = some_labels(classes, 1)
    config = dataclasses.replace(HINTED, steps=6, threshold=0.3)
    found = [
        predict(train(inputs, labels, N_CLASSES, own, runtime=CPU), inputs, np.arange(24), runtime=CPU).probabilities
        for own in (config, config, dataclasses.replace(config, hint_neighbors=0))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-6


def test_hints_that_cannot_be_given_are_told():
    pictures, kinds = picture_pool()
    config = dataclasses.replace(HINTED, steps=2)
    model = train(pictures, some_labels(kinds, 2), N_CLASSES, config, runtime=CPU)
    assert any("Hints were asked for" in note for note in model.notes)
    clips, classes = clip_pool()
    for own, told in ((config, False), (dataclasses.replace(config, method="mixmatch"), True)):
        notes = train(clips, some_labels(classes, 1), N_CLASSES, own, runtime=CPU).notes
        assert any("Hints were asked for" in note for note in notes) == told
