"""The cost of a training step and the share of augmentation and mixing, per method.

    python -m benchmarks.learning [--steps 30] [--clips 300]

Synthetic clips, the laptop preset, one thread; CPU time, because the machine may be busy. The share is the time inside
the feed's augmented batches and MixMatch's mixing over the time of whole steps. `step_ratio` is the time of a method's
step divided by that of FixMatch; it gives the number of steps of equal time.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import soundfile
import torch

from core.config import MediaConfig, preset
from core.learning.learner import METHODS, Learner, TrainingData
from core.learning.methods import mixmatch
from core.learning.networks.registry import NetworkShape
from core.media.feeds import open_feed
from core.media.inputs import Inputs, prepare
from core.rows import MemoryRowCache
from core.runtime import Runtime

N_CLASSES = 10


def clips(n: int) -> Inputs:
    rng = np.random.default_rng(0)
    files: dict[str, bytes] = {}
    for _ in range(n):
        file = io.BytesIO()
        soundfile.write(file, rng.uniform(-0.5, 0.5, 8_000).astype(np.float32), 16_000, format="WAV")
        files[hashlib.sha256(file.getvalue()).hexdigest()] = file.getvalue()
    return prepare(list(files), files.__getitem__, "audio", MediaConfig(), MemoryRowCache())


class Stopwatch:
    """CPU seconds spent inside the functions it wraps; nested calls count once."""

    def __init__(self) -> None:
        self.seconds, self.inside = 0.0, False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            self.inside, began = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside, self.seconds = False, self.seconds + time.process_time() - began

        return timed


def measure(inputs: Inputs, method: str, n_steps: int) -> dict[str, float]:
    config = dataclasses.replace(preset("laptop").training, method=method)
    runtime = Runtime.create(0, "cpu")
    feed, watch = open_feed(inputs, runtime.device, config.bank_views), Stopwatch()
    for grade in ("weak", "standard", "strong"):
        setattr(feed, grade, watch.wrap(getattr(feed, grade)))
    labeled = np.arange(40)
    data = TrainingData(
        feed=feed, labeled=labeled, labels=labeled % N_CLASSES, unlabeled=np.arange(len(inputs)),
        prior=np.full(N_CLASSES, 1 / N_CLASSES, np.float32), n_steps=1_000,
    )  # fmt: skip
    learner = Learner(NetworkShape(name=config.network, channels=1, n_classes=N_CLASSES), data, config, runtime)
    plain_mix = mixmatch.mix
    mixmatch.mix = watch.wrap(plain_mix)
    try:
        for _ in range(5):
            learner.advance()
        watch.seconds, began = 0.0, time.process_time()
        for _ in range(n_steps):
            learner.advance()
        total = time.process_time() - began
    finally:
        mixmatch.mix = plain_mix
    return {"milliseconds": 1_000 * total / n_steps, "augmentation_share": watch.seconds / total}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--clips", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    inputs = clips(given.clips)
    found = {method: measure(inputs, method, given.steps) for method in METHODS}
    for result in found.values():
        result["step_ratio"] = result["milliseconds"] / found["fixmatch"]["milliseconds"]
    print(json.dumps({"benchmark": "learning", "threads": 1, "steps": given.steps, "methods": found}))


if __name__ == "__main__":
    main()
