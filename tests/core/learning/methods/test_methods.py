"""The methods by hand: MixMatch's label guess and mixing; FixMatch's mask; alignment; the moving average."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from core.config import TrainingConfig
from core.errors import InvalidInput
from core.learning.averaging import decay_at, move_average
from core.learning.distributed import World
from core.learning.methods import distillation, fixmatch, mixmatch, supervised
from core.learning.methods.alignment import align, class_prior
from core.learning.methods.step import Batch, Step
from core.learning.sampling import Shuffled, in_shares
from core.learning.schedule import learning_rate_at

LINEAR = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.0], [1.0, 0.0]])  # (pixels, classes)


class FourPixels:
    """A feed of pictures (1, 2, 2) whose weak augmentation adds a draw and whose strong one doubles."""

    n_draws = 1
    pictures = torch.arange(16, dtype=torch.float32).reshape(4, 1, 2, 2) / 10

    def clean(self, rows):
        return self.pictures[torch.from_numpy(rows)]

    def weak(self, rows, draws):
        return self.clean(rows) + torch.from_numpy(draws)[:, :, None, None]

    standard = weak

    def strong(self, rows, draws):
        return 2 * self.clean(rows)


def linear(pictures: torch.Tensor) -> torch.Tensor:
    return pictures.flatten(1) @ LINEAR


def step(config: TrainingConfig, seed: int = 0, state=None, fraction: float = 0.5) -> Step:
    rng, world, feed = np.random.default_rng(seed), World(), FourPixels()
    return Step(
        network=linear, layers=torch.nn.Identity(), labeled=Batch(np.array([0, 1]), feed, rng, world),
        targets=torch.eye(2), unlabeled=Batch(np.array([2, 3]), feed, rng, world), config=config, fraction=fraction,
        prior=torch.full((2,), 0.5), state={} if state is None else state, rng=rng, world=world,
    )  # fmt: skip


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_mixmatch_on_two_images_is_what_the_paper_says_by_hand():
    config = TrainingConfig(method="mixmatch", lambda_u=10.0, ramp=1.0)
    losses = mixmatch.loss(step(config))
    rng = np.random.default_rng(0)  # the same draws, in the same order, in numpy
    W = LINEAR.numpy().astype(np.float64)
    x = FourPixels.pictures.numpy().reshape(4, 4).astype(np.float64)
    views = [x[2:] + rng.random((2, 1), dtype=np.float32) for _ in range(2)]
    q = np.mean([softmax(view @ W) for view in views], axis=0) ** 2
    q /= q.sum(1, keepdims=True)
    labeled = x[:2] + rng.random((2, 1), dtype=np.float32)
    everything, targets = np.concatenate([labeled, *views]), np.concatenate([np.eye(2), q, q])
    shuffled = rng.permutation(6)
    drawn = rng.beta(0.75, 0.75, 6).astype(np.float32)
    share = np.maximum(drawn, 1 - drawn)[:, None]
    mixed = share * everything + (1 - share) * everything[shuffled]
    mixed_targets = share * targets + (1 - share) * targets[shuffled]
    p = softmax(mixed @ W)
    assert losses.labeled.item() == pytest.approx(-np.mean(np.sum(mixed_targets[:2] * np.log(p[:2]), 1)), rel=1e-4)
    assert losses.unlabeled.item() == pytest.approx(np.sum((p[2:] - mixed_targets[2:]) ** 2) / (2 * 4), rel=1e-4)
    assert losses.weight == pytest.approx(5.0)  # lambda_u = 10, halfway up the ramp
    assert losses.total.item() == pytest.approx(losses.labeled.item() + 5 * losses.unlabeled.item(), rel=1e-5)


def test_distillation_on_two_images_is_the_weighted_cross_entropy_by_hand():
    config = TrainingConfig(lambda_u=10.0, ramp=1.0)
    q, w = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([0.8, 0.25])
    given = {"given_targets": torch.tensor(q).float(), "given_weights": torch.tensor(w).float()}
    losses = distillation.loss(dataclasses.replace(step(config), **given))
    rng = np.random.default_rng(0)
    rng.random((2, 1), dtype=np.float32)  # of the labeled pictures
    x = 2 * FourPixels.pictures.numpy().reshape(4, 4).astype(np.float64)  # strong views double the pictures
    x[2] = x[2] / 2 + rng.random((2, 1), dtype=np.float32)[0]  # the first half is weak: the draw is added
    logs = np.log(softmax(x @ LINEAR.numpy().astype(np.float64)))
    labeled, unlabeled = -(logs[0, 0] + logs[1, 1]) / 2, -(w * (q * logs[2:]).sum(1)).sum() / 2
    assert losses.labeled.item() == pytest.approx(labeled, rel=1e-5)
    assert losses.unlabeled.item() == pytest.approx(unlabeled, rel=1e-5)
    assert losses.total.item() == pytest.approx(labeled + unlabeled, rel=1e-5)  # without lambda_u and its ramp
    assert (losses.confidence.item(), losses.used.item()) == pytest.approx((0.8, 0.525))
    with pytest.raises(InvalidInput, match="needs given labels"):
        distillation.loss(step(config))


def test_a_temperature_of_one_leaves_the_prediction_unchanged_and_a_low_one_makes_it_confident():
    guess = torch.tensor([[0.6, 0.3, 0.1]])
    torch.testing.assert_close(mixmatch.sharpen(guess, 1.0), guess)
    torch.testing.assert_close(mixmatch.sharpen(guess, 0.5), torch.tensor([[0.36, 0.09, 0.01]]) / 0.46)
    assert mixmatch.sharpen(guess, 0.05)[0, 0] > 0.999


def test_a_share_of_one_leaves_the_inputs():
    first, second = torch.rand(3, 1, 2, 2), torch.rand(3, 1, 2, 2)
    torch.testing.assert_close(mixmatch.mix(first, second, torch.ones(3)), first)
    mixed = mixmatch.mix(first, second, torch.tensor([1.0, 0.5, 0.75]))
    torch.testing.assert_close(mixed[1], (first[1] + second[1]) / 2)


def test_interleaved_batches_hold_their_share_of_every_source_and_give_the_same_logits():
    order = mixmatch.interleaved_order(9, 3)
    assert order.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    joint = mixmatch.loss(step(TrainingConfig(method="mixmatch")))
    apart = mixmatch.loss(step(TrainingConfig(method="mixmatch", batch_norm="interleaved")))
    assert joint.total.item() == pytest.approx(apart.total.item(), rel=1e-5)  # no batch norm here: only the order


def test_fixmatch_uses_only_confident_pseudo_labels():
    base = TrainingConfig(align="off", adapt_threshold=False)
    probabilities = linear(step(base).unlabeled.weak()).softmax(1)
    strong = linear(2 * FourPixels.pictures[2:])
    for threshold in (0.0, 0.99999):
        losses = fixmatch.loss(step(dataclasses.replace(base, threshold=threshold)))
        confident = (probabilities.amax(1) >= threshold).float()
        expected = (confident * F.cross_entropy(strong, probabilities.argmax(1), reduction="none")).mean()
        assert losses.unlabeled.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-7)
        assert losses.used.item() == confident.mean().item()


def test_the_threshold_follows_the_mean_confidence_up_to_its_limit():
    state: dict[str, torch.Tensor] = {}
    here = step(TrainingConfig(threshold=0.6, adapt_threshold=True), state=state)
    assert fixmatch.threshold(here, torch.tensor([0.9, 0.7])).item() == pytest.approx(0.99 * 0.5 + 0.01 * 0.8)
    assert state["threshold"].item() == pytest.approx(0.503)
    for _ in range(500):
        limited = fixmatch.threshold(here, torch.tensor([1.0, 1.0]))
    assert state["threshold"].item() > 0.99 and limited.item() == pytest.approx(0.6)


def test_supervised_training_sees_clean_inputs_when_augmentation_is_off():
    losses = supervised.loss(step(TrainingConfig(method="supervised", augment=False)))
    expected = F.cross_entropy(linear(FourPixels.pictures[:2]), torch.eye(2))
    assert losses.total.item() == pytest.approx(expected.item())
    augmented = supervised.loss(step(TrainingConfig(method="supervised")))
    strong = F.cross_entropy(linear(2 * FourPixels.pictures[:2]), torch.eye(2))
    assert augmented.total.item() == pytest.approx(strong.item())


def test_alignment_moves_the_average_prediction_to_the_prior():
    prior, state = torch.tensor([0.7, 0.2, 0.1]), {}
    predictions = torch.softmax(torch.randn(4_000, 3, generator=torch.Generator().manual_seed(0)) * 0.3, 1)
    aligned = align(predictions, prior, state, World())
    torch.testing.assert_close(state["average"], predictions.mean(0))
    torch.testing.assert_close(aligned.sum(1), torch.ones(4_000))
    torch.testing.assert_close(aligned.mean(0), prior, atol=0.02, rtol=0)
    align(torch.eye(3), prior, state, World())
    torch.testing.assert_close(state["average"], 0.99 * predictions.mean(0) + 0.01 * torch.full((3,), 1 / 3))


def test_the_prior_is_uniform_until_the_labels_say_otherwise():
    balanced = np.array([0, 1, 2, 0, 1, 2, 1])
    np.testing.assert_allclose(class_prior(balanced, 3), 1 / 3)
    skewed = np.repeat([0, 1, 2], [40, 4, 2])
    np.testing.assert_allclose(class_prior(skewed, 3), np.array([41, 5, 3]) / 49, rtol=1e-6)
    np.testing.assert_allclose(class_prior(skewed, 3, "uniform"), 1 / 3)
    np.testing.assert_allclose(class_prior(np.array([0, 0]), 3), 1 / 3)


def test_the_prior_changes_where_the_chi_square_test_rejects_equal_classes():
    rejected = []
    for extra in range(40):
        counts = np.array([10 + extra, 10, 8, 11])
        found = class_prior(np.repeat(np.arange(4), counts), 4)
        rejected.append(bool(stats.chisquare(counts).pvalue < 0.01))
        np.testing.assert_allclose(found, (counts + 1) / (counts.sum() + 4) if rejected[-1] else 1 / 4, rtol=1e-6)
    assert 0 < sum(rejected) < len(rejected)


def test_the_moving_average_has_its_closed_form():
    average = [torch.zeros(2)]
    for value in (1.0, 2.0, 3.0):
        move_average(average, [torch.full((2,), value)], 0.9)
    expected = sum(0.1 * 0.9 ** (2 - k) * value for k, value in enumerate((1.0, 2.0, 3.0)))
    torch.testing.assert_close(average[0], torch.full((2,), expected))
    assert decay_at(0, 0.999) == 0.1 and decay_at(10_000, 0.999) == pytest.approx(0.999)


def test_the_learning_rate_warms_up_and_ends_at_zero():
    config = TrainingConfig(learning_rate=1.0, warmup_steps=9)
    rates = [learning_rate_at(step, 1_000, config) for step in range(1_001)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates[500] == pytest.approx(0.5, abs=1e-3) and rates[1_000] == pytest.approx(0, abs=1e-9)


def test_every_pass_has_every_row_once_and_any_step_can_be_requested_alone():
    rows = np.array([5, 7, 11, 13, 17])
    order = Shuffled(rows, seed=3)
    drawn = np.concatenate([order.batch(step, 2) for step in range(10)])
    for start in range(0, 20, 5):
        assert sorted(drawn[start : start + 5]) == rows.tolist()
    np.testing.assert_array_equal(Shuffled(rows, seed=3).batch(7, 2), drawn[14:16])


def test_labeled_batches_hold_classes_in_the_shares_of_the_prior():
    labels = np.array([0, 0, 0, 0, 1, 1, 3])
    heard = in_shares(labels, np.full(4, 0.25, np.float32))
    assert np.bincount(labels[heard], minlength=4).tolist() == [4, 4, 0, 4]
    assert set(heard) == set(range(7))  # every label is used
    np.testing.assert_array_equal(np.sort(in_shares(labels[:6], np.array([4, 2], np.float32) / 6)), np.arange(6))
