"""Two processes that share every batch give the result of one, and a killed run gives the result of an unkilled one."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from core.errors import InvalidInput
from core.learning.distributed import World, join
from core.learning.models import load_model, save_model
from core.learning.training import predict, train
from core.runtime import Runtime
from core.types import Progress
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels

CPU = Runtime.create(0, "cpu")
ROOT = Path(__file__).resolve().parents[3]
METHODS = ("fixmatch", "mixmatch", "fixmatch, warmed up")


def shared_problem(method: str) -> dict:
    """The problem that both sides of the comparison train on."""
    inputs, classes = clip_pool()
    more = {"warmed up": {"pretrain_steps": 3}}
    name, _, extra = method.partition(", ")
    own = {"method": name, **more.get(extra, {})}
    config = dataclasses.replace(SMALL, steps=4, unlabeled_batch=8, threshold=0.3, **own)
    return {
        "inputs": inputs,
        "labels": some_labels(classes, 2),
        "n_classes": N_CLASSES,
        "config": config,
        "held_out": (np.arange(20, 24), classes[20:24]),
    }


def train_as_member(folder: str) -> None:
    """One of the processes that torchrun starts for the test below: every method, one after the other."""
    device = join()
    for number, method in enumerate(METHODS):
        reported: list[Progress] = []
        model = train(**shared_problem(method), runtime=Runtime.create(0, device), report=reported.append)
        if World.current().leads:
            path = model_of(Path(folder), number)
            save_model(model, path)
            losses = [progress.metrics["loss"] for progress in reported if progress.metrics]
            path.with_suffix(".json").write_text(json.dumps(losses))
        dist.barrier()
    dist.destroy_process_group()


def model_of(folder: Path, number: int) -> Path:
    return folder / f"{number}.safetensors"


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory) -> Path:
    """A folder with the models that two processes trained together, started once: loading torch takes longer."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    module = [*torchrun, "--nproc-per-node=2", "-m", "tests.core.learning.test_processes", str(folder)]
    environment = {**os.environ, "WINNOW_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(module, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_give_the_result_of_one(method, trained_by_two):
    """torchrun, two processes, gloo: the same weights, losses and predictions as one process, to float rounding."""
    path = model_of(trained_by_two, METHODS.index(method))
    both = load_model(path, CPU)
    problem = shared_problem(method)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # divides a batch like two processes; Adam's first steps amplify other roundings
    try:
        alone = train(**problem, runtime=CPU)
    finally:
        torch.set_num_threads(threads)
    for name, tensor in alone.network.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(both.network.state_dict()[name], tensor, atol=2e-4, rtol=2e-3, msg=name)
    assert both.metrics["loss"] == pytest.approx(alone.metrics["loss"], rel=1e-3)
    assert json.loads(path.with_suffix(".json").read_text()) == [both.metrics["loss"]]
    assert both.metrics["used_share"] > 0
    first, second = (predict(m, problem["inputs"], runtime=CPU).probabilities for m in (alone, both))
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(InvalidInput, match="9 cannot be shared equally by 2"):
        World(0, 2).require_divisible("labeled", 9)


def train_here(folder: str) -> None:
    """The run of the test below, in a separate process."""
    torch.set_num_threads(1)
    inputs, classes = picture_pool()
    config = dataclasses.replace(SMALL, steps=100)
    labels = some_labels(classes, 2)

    def stay(progress: Progress) -> None:
        if progress.done >= 60:  # it does not end before it is killed
            time.sleep(600)

    train(inputs, labels, N_CLASSES, config, runtime=CPU, checkpoint_dir=Path(folder), report=stay)


def start(folder: Path) -> subprocess.Popen:
    code = f"from tests.core.learning.test_processes import train_here; train_here({str(folder)!r})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_weights(tmp_path):
    """Kill -9 after the first checkpoint; epochs of this pool have 25 steps."""
    running = start(tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.005)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    inputs, classes = picture_pool()
    config = dataclasses.replace(SMALL, steps=100)
    labels = some_labels(classes, 2)
    try:
        reported = []
        resumed = train(inputs, labels, N_CLASSES, config, runtime=CPU, checkpoint_dir=tmp_path, report=reported.append)
        straight = train(inputs, labels, N_CLASSES, config, runtime=CPU)
    finally:
        torch.set_num_threads(threads)
    assert reported[0].done > 25 and [e["step"] for e in resumed.history] == [25, 50, 75, 100]
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


if __name__ == "__main__":
    train_as_member(sys.argv[1])
