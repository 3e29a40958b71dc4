"""Pretraining without labels: its loss by hand, its place in training, on every device."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from core.errors import Cancelled
from core.learning import learner as learner_module
from core.learning.methods import simclr
from core.learning.methods.simclr import TEMPERATURE, Pretraining, contrastive_loss
from core.learning.networks.registry import NetworkShape, fresh_network
from core.learning.training import train
from core.media.feeds import open_feed
from core.runtime import Runtime
from tests.core.fake_cuda import fake_cuda
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels

pytestmark = pytest.mark.slow

POOL, CLASSES = picture_pool()
CPU = Runtime(seed=0, device=torch.device("cpu"))
CONFIG = dataclasses.replace(SMALL, pretrain_steps=12, pretrain_batch=16)
SHAPE = NetworkShape(name="resnet-small", channels=1, n_classes=N_CLASSES)


def test_the_loss_is_the_papers_by_hand():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((6, 5))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    terms = []
    for i in range(6):
        j = (i + 3) % 6
        others = sum(math.exp(z[i] @ z[k] / 0.5) for k in range(6) if k != i)
        terms.append(-math.log(math.exp(z[i] @ z[j] / 0.5) / others))
    assert float(contrastive_loss(torch.from_numpy(z), 0.5)) == pytest.approx(np.mean(terms))


def test_two_items_that_differ_completely_have_the_loss_of_the_closed_form():
    z = torch.eye(2).repeat(2, 1)
    near = math.exp(1 / TEMPERATURE)
    assert float(contrastive_loss(z)) == pytest.approx(-math.log(near / (near + 2)), rel=1e-4)


@pytest.mark.slow
def test_views_of_an_item_come_closer_and_the_head_is_not_touched():
    network = fresh_network(SHAPE, CPU).train()
    head = network.head.weight.detach().clone()
    config = dataclasses.replace(CONFIG, pretrain_steps=60)
    run = Pretraining(network, open_feed(POOL, CPU.device, 0), np.arange(len(CLASSES)), config, CPU)
    losses = [float(run.advance()) for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    assert torch.equal(network.head.weight, head)


@pytest.mark.slow
def test_training_starts_from_the_pretrained_network_and_is_reproducible(monkeypatch):
    calls = []
    pretrain = simclr.pretrain
    monkeypatch.setattr(learner_module, "pretrain", lambda *a: (calls.append(1), pretrain(*a)))
    labels = some_labels(CLASSES, 2)
    models = [train(POOL, labels, N_CLASSES, config, runtime=CPU) for config in (CONFIG, CONFIG, SMALL)]
    assert len(calls) == 2
    first, second, without = (model.network.stem.weight for model in models)
    assert torch.equal(first, second) and not torch.equal(first, without)
    train(POOL, labels, N_CLASSES, CONFIG, runtime=CPU, warm_start=models[0])
    assert len(calls) == 2, "a network that continues from another needs no pretraining"
    anew = dataclasses.replace(CONFIG, warm_steps=0)  # like the laptop preset: the previous model is not used
    train(POOL, labels, N_CLASSES, anew, runtime=CPU, warm_start=models[0])
    assert len(calls) == 3


def test_a_run_that_is_stopped_after_its_pretraining_does_not_repeat_it(tmp_path, monkeypatch):
    labels = some_labels(CLASSES, 2)
    straight = train(POOL, labels, N_CLASSES, CONFIG, runtime=CPU)

    def stop(progress):
        if progress.note != "pretraining without labels":
            raise Cancelled("stop")

    with pytest.raises(Cancelled):
        train(POOL, labels, N_CLASSES, CONFIG, runtime=CPU, checkpoint_dir=tmp_path, report=stop)
    monkeypatch.setattr(learner_module, "pretrain", lambda *a: pytest.fail("pretrained again"))
    resumed = train(POOL, labels, N_CLASSES, CONFIG, runtime=CPU, checkpoint_dir=tmp_path)
    for name, tensor in straight.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], tensor), name


def test_pretraining_can_be_cancelled(monkeypatch):
    steps = []
    advance = Pretraining.advance
    monkeypatch.setattr(Pretraining, "advance", lambda self: (steps.append(1), advance(self))[1])

    def cancel(progress):
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        train(POOL, some_labels(CLASSES, 2), N_CLASSES, CONFIG, runtime=CPU, report=cancel)
    assert len(steps) == 1


def test_clips_are_pretrained_too_and_a_single_item_is_not():
    clips, classes = clip_pool(n=8)
    train(clips, some_labels(classes, 1), N_CLASSES, dataclasses.replace(CONFIG, steps=2), runtime=CPU)
    network = fresh_network(SHAPE, CPU)
    before = network.stem.weight.detach().clone()
    simclr.pretrain(network, open_feed(POOL, CPU.device, 0), np.arange(1), CONFIG, CPU)
    assert torch.equal(network.stem.weight, before)


def test_a_step_stays_on_the_device():
    with fake_cuda() as device:
        runtime = Runtime(seed=0, device=device)
        network = fresh_network(SHAPE, runtime).train()
        run = Pretraining(network, open_feed(POOL, device, 0), np.arange(len(CLASSES)), CONFIG, runtime)
        assert run.advance().device == device
        assert {p.device for p in (*network.parameters(), *run.projection.parameters())} == {device}


def test_pretrained_layers_train_at_their_share_of_the_rate():
    """A share of 0 leaves them as pretraining left them; the head is trained nevertheless."""
    config = dataclasses.replace(CONFIG, pretrained_rate_scale=0.0, ema_decay=0.0)
    warmed = fresh_network(SHAPE, CPU).train()
    simclr.pretrain(warmed, open_feed(POOL, CPU.device, config.bank_views), np.arange(len(CLASSES)), config, CPU)
    model = train(POOL, some_labels(CLASSES, 2), N_CLASSES, config, runtime=CPU)
    assert torch.equal(model.network.stem.weight, warmed.stem.weight)
    assert not torch.equal(model.network.head.weight, warmed.head.weight)
    whole = train(
        POOL, some_labels(CLASSES, 2), N_CLASSES, dataclasses.replace(config, pretrained_rate_scale=1.0), runtime=CPU
    )
    assert not torch.equal(whole.network.stem.weight, warmed.stem.weight)
