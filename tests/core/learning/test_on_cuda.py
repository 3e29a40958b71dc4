"""Training on a simulated GPU: every tensor is on the right device, and the host rarely waits for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.config import TrainingConfig
from core.learning.learner import METHODS, Learner, TrainingData
from core.learning.models import TrainedModel
from core.learning.networks.registry import NetworkShape, fresh_network
from core.learning.prediction import logits_of, predict
from core.learning.training import train
from core.media.feeds import open_feed
from core.media.mel import tables_on
from core.media.views import noise_on, view_bank
from core.runtime import Runtime
from tests.core.fake_cuda import fake_cuda
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels


def learner_on(device: torch.device, inputs, classes, config: TrainingConfig) -> Learner:
    runtime = Runtime(seed=0, device=device)
    labels = some_labels(classes, 2)
    labeled = np.flatnonzero(labels >= 0)
    data = TrainingData(
        feed=open_feed(inputs, device, config.bank_views), labeled=labeled, labels=labels[labeled],
        unlabeled=np.arange(len(classes)), prior=np.full(N_CLASSES, 0.25, np.float32), n_steps=10,
    )  # fmt: skip
    shape = NetworkShape(name=config.network, channels=1, n_classes=N_CLASSES)
    return Learner(shape, data, config, runtime)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["resnet-small", "wrn-10-1"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_step_of_every_method_stays_on_the_device(method, network):
    inputs, classes = picture_pool(n=20)
    with fake_cuda() as device:
        learner = learner_on(device, inputs, classes, replace(SMALL, method=method, network=network))
        for _ in range(2):
            learner.advance()
        assert {tensor.device for tensor in learner.network.state_dict().values()} == {device}
        assert learner.sums.device == device and all(t.device == device for t in learner.state.values())
        channels_last = learner.network.get_submodule("blocks.0.conv2").weight
        assert channels_last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("bank_views", [2, 0])
def test_audio_is_augmented_on_the_device_from_the_bank_and_from_waveforms(bank_views):
    inputs, _ = clip_pool(n=8)
    if bank_views:
        view_bank(inputs, bank_views)  # made once, before; a step only reads it
    rows = np.arange(8)
    draws = np.random.default_rng(0).random((8, 30), dtype=np.float32)
    with fake_cuda() as device:
        feed = open_feed(inputs, device, bank_views)
        made = [grade(rows, draws[:, : feed.n_draws]) for grade in (feed.weak, feed.standard, feed.strong)]
        made.append(feed.clean(rows))
        assert {batch.device for batch in made} == {device} == {noise_on(device, inputs).device}
        assert {batch.shape for batch in made} == {(8, 1, 32, 8)}
    tables_on.cache_clear()  # what was moved to a fake device is fake


def test_a_mismatch_of_devices_is_found():
    with fake_cuda() as device, pytest.raises(RuntimeError, match="same device"):
        torch.zeros(2, device=device) + torch.zeros(2)


def test_prediction_runs_on_the_device(monkeypatch):
    inputs, _ = picture_pool(n=20)
    shape = NetworkShape(name="resnet-small", channels=1, n_classes=N_CLASSES)
    with fake_cuda() as device:
        runtime = Runtime(seed=0, device=device)
        network = fresh_network(shape, runtime)
        assert logits_of(network, inputs, np.arange(20), runtime).device == device
        model = TrainedModel(network=network, shape=shape, config=SMALL)
        monkeypatch.setattr(torch.Tensor, "numpy", lambda tensor: np.zeros(tuple(tensor.shape), np.float32))
        found = predict(model, inputs, runtime=runtime, n_views=2)
    assert found.probabilities.shape == (20, N_CLASSES) and found.view_probabilities.shape == (2, 20, N_CLASSES)


@pytest.mark.slow
def test_between_steps_the_host_waits_for_the_device_a_few_times_per_epoch(monkeypatch):
    """Steps have no synchronization (the test below); here they are empty, and all other synchronizations are
    counted."""
    inputs, classes = picture_pool(n=40)
    waits: list[str] = []
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "nonzero"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda tensor, *a, _o=original, _n=name, **k: (waits.append(_n), _o(tensor, *a, **k))[1]
        )
    monkeypatch.setattr(Learner, "advance", lambda learner: setattr(learner, "step", learner.step + 1))
    held_out = (np.arange(30, 40), classes[30:40])
    runtime = Runtime.create(0, "cpu")
    train(inputs, some_labels(classes, 2), N_CLASSES, replace(SMALL, steps=1_000), runtime=runtime, held_out=held_out)
    n_epochs = 1_000 // 25
    assert n_epochs <= len(waits) <= 4 * n_epochs, waits


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_operation_of_a_step_reads_a_value_back(method):
    """Fake tensors have no values: reading one back would raise, so a step that passes has no synchronization."""
    inputs, classes = picture_pool(n=20)
    with fake_cuda() as device:
        learner = learner_on(device, inputs, classes, replace(SMALL, method=method))
        learner.advance()
        with pytest.raises(Exception, match=r"_local_scalar_dense|data-dependent|tolist|item"):
            learner.read_sums(1)
