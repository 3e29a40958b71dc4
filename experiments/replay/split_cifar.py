"""Continual learning on split CIFAR-10 with the convolutional network and a memory of 200 (Table 3, last column).

    python -m experiments.replay.split_cifar [--only METHOD ...] [--size small|full] --out DIR

Five tasks of two classes each, one output for all ten, the protocol of `continual`. Bilevel coresets have the tangent
kernel of the network without dropout and pooling. The data has 4,000 training pictures, so a task has about 790 rows
instead of the paper's 1,000, and 1,000 test pictures instead of 10,000.

The small size averages 2 x 2 pixels (16 x 16), halves the network (16 and 32 channels, 64 units), trains 20 epochs a
task with beta = 10, and compares six rows of the table; the full size is the paper's network and schedule, the grid
of beta and all rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, bilevel_summary, evidence_of
from core.coresets.library.summaries import SUMMARIES, summarize
from core.kernels.networks import scnn
from core.kernels.ntk import kernel
from experiments.datasets import cifar10
from experiments.record import Arguments, Parts, Record, mean_and_deviation, run, say
from experiments.replay.continual import WITHOUT, Task
from experiments.replay.digit_networks import PENALTY, Convolutional
from experiments.replay.replay_memories import continual
from experiments.replay.together import learner

MEMORY = 200
SMALL_METHODS = (WITHOUT, "uniform", "bilevel", "k-means embeddings", "iCaRL", "hardest")
PAPER = {
    WITHOUT: 19.95, "uniform": 43.22, "k-means features": 43.96, "k-means embeddings": 44.37,
    "k-means gradients": 36.99, "k-center features": 36.90, "k-center embeddings": 40.81, "k-center gradients": 35.11,
    "gradient matching": 43.69, "max entropy": 35.31, "hardest": 32.31, "FRCL": 43.35, "iCaRL": 44.22, "bilevel": 44.51,
}  # fmt: skip


def load(arguments: Arguments) -> list[Task]:
    """Tasks of two classes each, in the order of the classes; at most 1,000 rows per task."""
    x, y, xt, yt = (torch.tensor(part) for part in cifar10(arguments.data))
    if arguments.small:
        x, xt = avg_pool2d(x, 2), avg_pool2d(xt, 2)
    tasks = []
    for low in range(0, 10, 2):
        train, test = ((labels == low) | (labels == low + 1) for labels in (y, yt))
        tasks.append((x[train][:1000], y[train][:1000], xt[test], yt[test]))
    return tasks


def tangent(x: torch.Tensor) -> torch.Tensor:
    """(n, n) of two 5 x 5 convolutions and a dense layer."""
    pictures = np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())
    return torch.from_numpy(kernel(pictures, None, scnn())).double()


def bilevel_orders(tasks: list[Task]) -> dict[int, np.ndarray]:
    """The first MEMORY rows of every task, best first, by the number of its first class. Independent of the model."""
    return {int(y.min()): bilevel_summary(tangent(x), one_hot(y, 10), MEMORY, penalty=PENALTY) for x, y, _, _ in tasks}


def chooser(method: str, orders: dict[int, np.ndarray], seed: int):
    if method == "bilevel":
        return lambda model, x, y, size: orders[int(y.min())][:size]
    return lambda model, x, y, size: summarize(method, evidence_of(model, x, y, seed), size)


def study(
    method: str, tasks: list[Task], orders: dict[int, np.ndarray], scale: dict, betas: list[float], seed: int
) -> list[dict]:
    make = partial(Convolutional, scale["channels"], scale["width"], 0.5, (3, tasks[0][0].shape[-1]))
    if method == WITHOUT:  # a memory that is never replayed
        betas, choice = [0.0], chooser("uniform", orders, seed)
    else:
        choice = chooser(method, orders, seed)
    learners = [learner(make, MEMORY, beta, seed) for beta in betas]
    found = continual(tasks, [choice] * len(betas), learners, ReplayConfig(beta=0.0, epochs=scale["epochs"]))
    return [
        {"method": method, "beta": beta, "seed": seed, "accuracy": float(np.mean(own))}
        for beta, own in zip(betas, found, strict=True)
    ]


def main(arguments: Arguments) -> Record:
    scale = {"channels": (16, 32), "width": 64, "epochs": 20, "betas": [10.0]}
    if not arguments.small:
        scale = {"channels": (32, 64), "width": 128, "epochs": 400, "betas": [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]}
    tasks = load(arguments)
    methods = arguments.only or (SMALL_METHODS if arguments.small else (WITHOUT, "bilevel", *SUMMARIES))
    orders = bilevel_orders(tasks) if "bilevel" in methods else {}
    parts = Parts(arguments.out, scale | {"memory": MEMORY, "size": arguments.size})
    rows: list[dict] = []
    claims: dict[str, dict] = {}
    for seed in range(5):
        for method in methods:
            measure = partial(study, method, tasks, orders, scale, scale["betas"], seed)
            rows += parts.rows(f"{method}, seed {seed}", measure)
        say(f"seed {seed}: {[(r['method'], round(r['accuracy'], 1)) for r in rows if r['seed'] == seed]}")
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        groups = [mean_and_deviation([r["accuracy"] for r in own if r["beta"] == b]) for b in {r["beta"] for r in own}]
        claims[method] = max(groups, key=lambda group: group["mean"]) | {"paper": PAPER[method]}
    return Record(rows, parts.settings, claims, earlier_seconds=parts.earlier_seconds)


if __name__ == "__main__":
    run("split_cifar", main)
