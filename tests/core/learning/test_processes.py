"""Two processes that share every batch end where one ends, and a run that is killed ends where an unkilled one does."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from core.errors import Cancelled, InvalidInput
from core.learning import launch
from core.learning.distributed import World
from core.learning.models import save_model
from core.learning.training import predict, train
from core.runtime import Runtime
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels

CPU = Runtime.create(0, "cpu")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fixmatch", "mixmatch"])
def test_two_processes_give_the_result_of_one(method, monkeypatch):
    monkeypatch.setenv("WINNOW_DEVICE", "cpu")
    inputs, classes = clip_pool()
    labels = some_labels(classes, 2)
    held_out = (np.arange(20, 24), classes[20:24])
    config = dataclasses.replace(SMALL, method=method, steps=4, unlabeled_batch=8, threshold=0.3)
    told = []
    alone = train(inputs, labels, N_CLASSES, config, runtime=CPU, held_out=held_out)
    shared = dataclasses.replace(config, processes=2)
    both = train(inputs, labels, N_CLASSES, shared, runtime=CPU, held_out=held_out, report=told.append)
    for name, tensor in alone.network.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(both.network.state_dict()[name], tensor, atol=2e-4, rtol=2e-3, msg=name)
    assert both.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-3)
    assert [progress.metrics["loss"] for progress in told if progress.metrics] == [both.metrics["loss"]]
    assert both.metrics["used_share"] > 0
    first, second = (predict(m, inputs, runtime=CPU).probabilities for m in (alone, both))
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_batch_that_cannot_be_shared_is_refused_and_processes_end_with_their_parent(monkeypatch):
    inputs, classes = picture_pool()
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])

    def cancel(progress):
        if started:
            raise Cancelled("stop")

    config = dataclasses.replace(SMALL, processes=2)
    with pytest.raises(Cancelled):
        train(inputs, some_labels(classes, 1), N_CLASSES, config, runtime=CPU, report=cancel)
    assert started[0].poll() is not None
    with pytest.raises(InvalidInput, match="9 cannot be shared equally by 2"):
        World(0, 2).require_divisible("labeled", 9)


def train_here(folder: str) -> None:
    """The run of the test below, in a process of its own."""
    torch.set_num_threads(1)
    inputs, classes = picture_pool()
    config = dataclasses.replace(SMALL, steps=100)
    labels = some_labels(classes, 2)
    model = train(inputs, labels, N_CLASSES, config, runtime=CPU, checkpoint_dir=Path(folder))
    save_model(model, Path(folder) / "model.safetensors")


def start(folder: Path) -> subprocess.Popen:
    code = f"from tests.core.learning.test_processes import train_here; train_here({str(folder)!r})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    """FAULTS C2: kill -9 after the first checkpoint; epochs of this pool have 25 steps."""
    running = start(tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert not (tmp_path / "model.safetensors").exists()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    inputs, classes = picture_pool()
    config = dataclasses.replace(SMALL, steps=100)
    labels = some_labels(classes, 2)
    try:
        told = []
        resumed = train(
            inputs, labels, N_CLASSES, config, runtime=CPU, checkpoint_dir=tmp_path, report=told.append
        )
        straight = train(inputs, labels, N_CLASSES, config, runtime=CPU)
    finally:
        torch.set_num_threads(threads)
    assert told[0].done > 25 and [e["step"] for e in resumed.history] == [25, 50, 75, 100]
    for name, tensor in straight.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], tensor), name
    assert resumed.history == straight.history


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_not_used(tmp_path):
    inputs, classes = picture_pool(n=20)
    config = dataclasses.replace(SMALL, steps=3)
    labels = some_labels(classes, 2)
    first = train(inputs, labels, N_CLASSES, config, runtime=CPU, checkpoint_dir=tmp_path)
    other = Runtime.create(9, "cpu")
    fresh = train(inputs, labels, N_CLASSES, config, runtime=other)
    assert torch.equal(
        train(inputs, labels, N_CLASSES, config, runtime=other, checkpoint_dir=tmp_path).network.head.weight,
        fresh.network.head.weight,
    )
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half a checkpoi")
    again = train(inputs, labels, N_CLASSES, config, runtime=CPU, checkpoint_dir=tmp_path)
    assert torch.equal(again.network.head.weight, first.network.head.weight)
    assert not list(tmp_path.glob("*.part"))
