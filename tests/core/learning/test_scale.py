"""Large pools: memory stays bounded, and no more is prepared than training uses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from core.config import TrainingConfig, preset
from core.errors import InvalidInput
from core.learning.training import bank_size, train
from core.media import feeds
from core.media.feeds import open_feed
from core.runtime import Runtime
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels

CPU = Runtime.create(0, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("make", [clip_pool, picture_pool])
def test_a_pool_too_large_to_keep_trains_from_its_map_to_the_same_weights(make, monkeypatch):
    inputs, classes = make()
    labels = some_labels(classes, 1)
    config = dataclasses.replace(SMALL, steps=3)
    kept = train(inputs, labels, N_CLASSES, config, runtime=CPU)
    monkeypatch.setattr(feeds, "RESIDENT_BYTES", 0)
    feed = open_feed(inputs, CPU.device, 2)
    assert feed._source.resident is None
    streamed = train(inputs, labels, N_CLASSES, config, runtime=CPU)
    assert all(
        torch.equal(a, b)
        for a, b in zip(kept.network.state_dict().values(), streamed.network.state_dict().values(), strict=True)
    )


def test_only_the_rows_of_a_step_are_read_from_a_large_pool(monkeypatch):
    inputs, _ = picture_pool(n=40)
    asked: list[int] = []
    take = inputs.sources.take
    monkeypatch.setattr(feeds, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(inputs.sources, "take", lambda rows: (asked.append(len(rows)), take(rows))[1])
    feed = open_feed(inputs, CPU.device, 0)
    feed.weak(np.array([3, 5]), np.zeros((2, feed.n_draws), np.float32))
    assert asked == [2]


def test_the_bank_shrinks_only_where_training_would_not_see_it():
    config = TrainingConfig(steps=2_500, unlabeled_batch=48, bank_views=16)
    assert [bank_size(config, n) for n in (100, 2_700, 15_000, 30_000, 100_000)] == [16, 16, 16, 8, 4]
    assert bank_size(dataclasses.replace(config, bank_views=0), 100_000) == 0


def test_presets_have_the_settings_of_their_names():
    paper, laptop, smoke = (preset(name).training for name in ("paper", "laptop", "smoke"))
    assert (paper.method, paper.network, paper.epochs, paper.steps) == ("mixmatch", "wrn-28-10", 30, 0)
    assert (paper.learning_rate, paper.weight_decay, paper.lambda_u, paper.warm_steps) == (1e-3, 1e-4, 10.0, 0)
    assert (paper.sharpening, paper.n_augmentations, paper.mix_alpha) == (0.5, 2, 0.75)
    assert laptop == TrainingConfig(predict_views=4, refine_steps=700) and smoke.steps <= 50
    assert paper.refine_steps == smoke.refine_steps == 0
    assert preset("auto", "cuda").training == paper and preset("auto", "cpu").training == laptop
    assert preset("paper").selection.n_views == 100
    with pytest.raises(InvalidInput, match="no preset"):
        preset("fast")
