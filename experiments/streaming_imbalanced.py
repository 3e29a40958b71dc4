"""An imbalanced stream with a memory of 100: 200 rows of each of the first four pairs of digits, 2,000 of the last.

Batches of 125 arrive once; the network learns each with the memory replayed, then the memory is updated: reservoir,
class-balanced reservoir, or merge-reduce with bilevel coresets (one slot). The paper: 80.6, 89.7 and 92.4. The small
size trains the dense network with fewer epochs; the full size the convolutional one with 40, beta tuned per method.
"""

from __future__ import annotations

import numpy as np
import torch

from core.coresets.replay import ReplayConfig, ReplayMemory, bilevel_summary, learn_task
from core.coresets.streaming import ClassBalancedReservoir, MergeReduce, Reservoir
from experiments.datasets import mnist
from experiments.digit_networks import Convolutional, Dense, accuracy, dense_ntk
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

MEMORY, BATCH = 100, 125
PAPER = {"reservoir": 80.6, "balanced reservoir": 89.7, "bilevel merge-reduce": 92.4}


def stream(arguments: Arguments, seed: int):
    """(x, y) in the order of arrival, and the test rows."""
    x, y, xt, yt = mnist(arguments.data)
    generator = np.random.default_rng(seed)
    rows = []
    for low in range(0, 10, 2):
        pair = np.flatnonzero((y == low) | (y == low + 1))
        rows.append(generator.permutation(pair)[: 2000 if low == 8 else 200])
    order = np.concatenate(rows)
    return (torch.tensor(a) for a in (x[order][:, None], y[order], xt[:, None], yt))


class Keeper:
    """One face for the three memories: `add(rows)` and `rows`."""

    def __init__(self, method: str, x: torch.Tensor, y: torch.Tensor, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.labels = y.numpy()
        self.method = method
        if method == "reservoir":
            self.memory = Reservoir(MEMORY, generator)
        elif method == "balanced reservoir":
            self.memory = ClassBalancedReservoir(MEMORY, generator)
        else:

            def reduce(rows, weights, size):
                stands_for = torch.tensor(weights)
                proxy = dense_ntk(x[rows])
                return bilevel_summary(proxy, y[rows], size, penalty=1e-3, outer_weights=stands_for, seed=seed)

            self.memory = MergeReduce(1, MEMORY, reduce)

    def add(self, rows) -> None:
        if isinstance(self.memory, ClassBalancedReservoir):
            self.memory.add(rows, self.labels[rows])
        else:
            self.memory.add(rows)

    @property
    def rows(self):
        return self.memory.rows


def learn(arguments: Arguments, method: str, beta: float, seed: int) -> dict:
    x, y, xt, yt = stream(arguments, seed)
    torch.manual_seed(seed)
    small = arguments.small
    model = Dense() if small else Convolutional()
    config = ReplayConfig(beta=beta, epochs=20 if small else 40, learning_rate=1e-3 if small else 5e-4)
    generator = torch.Generator().manual_seed(seed)
    keeper = Keeper(method, x, y, seed)
    for rows in np.array_split(np.arange(len(y)), len(y) // BATCH):
        memory = ReplayMemory(MEMORY)
        if len(keeper.rows):
            memory.add(x[keeper.rows], y[keeper.rows])
        learn_task(model, (x[rows], y[rows]), memory, config, generator=generator)
        keeper.add(rows)
    pairs = [(yt == low) | (yt == low + 1) for low in range(0, 10, 2)]
    kept = np.bincount(y[keeper.rows].numpy(), minlength=10).tolist()
    score = float(np.mean([accuracy(model, xt[pair], yt[pair]) for pair in pairs]))
    return {"method": method, "beta": beta, "seed": seed, "accuracy": 100 * score, "kept_per_class": kept}


def main(arguments: Arguments) -> Record:
    betas, seeds = ([10.0], 3) if arguments.small else ([0.1, 1.0, 10.0, 100.0, 1000.0], 5)
    rows = []
    for method in PAPER:
        for beta in betas:
            rows += [learn(arguments, method, beta, seed) for seed in range(seeds)]
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
