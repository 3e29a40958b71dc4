"""An imbalanced stream with a memory of 100: 200 rows of each of the first four pairs of digits, 2,000 of the last.

Batches of 125 arrive once; the network learns each with the memory replayed, then the memory is updated: reservoir,
class-balanced reservoir, or merge-reduce with bilevel coresets (one slot). The paper: 80.6, 89.7 and 92.4. The small
size trains a dense network, beta the better of 10 and 100; the full size the convolutional one, beta tuned in a grid.
`--only 0` takes the seeds named.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, ReplayMemory, bilevel_summary, learn_task
from core.coresets.library.streaming import ClassBalancedReservoir, MergeReduce, Reservoir
from experiments.datasets import mnist
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say
from experiments.replay.digit_networks import PENALTY, Convolutional, Dense, accuracy, convolutional_ntk, dense_ntk

MEMORY, BATCH, EPOCHS = 100, 125, 40
PAPER = {"reservoir": 80.6, "balanced reservoir": 89.7, "bilevel merge-reduce": 92.4}
Tangent = Callable[[torch.Tensor], torch.Tensor]


def stream(arguments: Arguments, seed: int):
    """(x, y) in the order of arrival, and the test rows."""
    x, y, xt, yt = mnist(arguments.data)
    generator = np.random.default_rng(seed)
    rows = []
    for low in range(0, 10, 2):
        pair = np.flatnonzero((y == low) | (y == low + 1))
        rows.append(generator.permutation(pair)[: 2000 if low == 8 else 200])
    order = np.concatenate(rows)
    return tuple(torch.tensor(a) for a in (x[order][:, None], y[order], xt[:, None], yt))


def memories(method: str, x: torch.Tensor, y: torch.Tensor, tangent: Tangent, seed: int) -> list[np.ndarray]:
    """The rows in memory when each batch arrives, and after the last. None of the three depends on the learner."""
    generator = np.random.default_rng(seed)
    labels, targets = y.numpy(), one_hot(y, 10)

    def reduce(rows, weights, size):
        stands_for = torch.tensor(weights)
        return bilevel_summary(tangent(x[rows]), targets[rows], size, penalty=PENALTY, outer_weights=stands_for)

    memory = {
        "reservoir": Reservoir(MEMORY, generator),
        "balanced reservoir": ClassBalancedReservoir(MEMORY, generator),
        "bilevel merge-reduce": MergeReduce(1, MEMORY, reduce),
    }[method]
    kept = [memory.rows]
    for rows in batches(len(y)):
        memory.add(rows, labels[rows]) if isinstance(memory, ClassBalancedReservoir) else memory.add(rows)
        kept.append(memory.rows)
    return kept


def batches(n: int) -> list[np.ndarray]:
    return np.array_split(np.arange(n), n // BATCH)


def learn(data, kept: list[np.ndarray], network, config: ReplayConfig, seed: int) -> float:
    """Mean test accuracy over the five pairs of digits after the stream, in %."""
    x, y, xt, yt = data
    torch.manual_seed(seed)
    model = network()
    generator = torch.Generator().manual_seed(seed)
    for rows, held in zip(batches(len(y)), kept, strict=False):
        memory = ReplayMemory(MEMORY)
        if len(held):
            memory.add(x[held], y[held])
        learn_task(model, (x[rows], y[rows]), memory, config, generator=generator)
    pairs = [(yt == low) | (yt == low + 1) for low in range(0, 10, 2)]
    return 100 * float(np.mean([accuracy(model, xt[pair], yt[pair]) for pair in pairs]))


def study(arguments: Arguments, method: str, betas: list[float], seed: int) -> list[dict]:
    data = stream(arguments, seed)
    network, tangent = (Dense, dense_ntk) if arguments.small else (Convolutional, convolutional_ntk)
    kept = memories(method, data[0], data[1], tangent, seed)
    row = {"method": method, "seed": seed, "kept_per_class": np.bincount(data[1][kept[-1]], minlength=10).tolist()}
    configs = [ReplayConfig(beta=beta, epochs=EPOCHS, learning_rate=5e-4) for beta in betas]
    return [{**row, "beta": c.beta, "accuracy": learn(data, kept, network, c, seed)} for c in configs]


def main(arguments: Arguments) -> Record:
    betas, n_seeds = ([10.0, 100.0], 3) if arguments.small else ([0.1, 1.0, 10.0, 100.0, 1000.0], 5)
    seeds = [int(name) for name in arguments.only] or range(n_seeds)
    rows = []
    for method in PAPER:
        for seed in seeds:
            rows += study(arguments, method, betas, seed)
        say(f"{method}: {np.mean([r['accuracy'] for r in rows if r['method'] == method]):.2f}")
    claims: dict[str, dict] = {}
    for method in PAPER:
        groups = [
            mean_and_deviation([r["accuracy"] for r in rows if r["method"] == method and r["beta"] == beta])
            for beta in betas
        ]
        claims[method] = max(groups, key=lambda g: g["mean"]) | {"paper": PAPER[method]}
    figure = curves(rows, "beta", "accuracy", by="method", title="Imbalanced stream of split MNIST, memory of 100")
    return Record(rows, {"memory": MEMORY, "batch": BATCH, "betas": betas}, claims, figure)


if __name__ == "__main__":
    run("streaming_imbalanced", main)
