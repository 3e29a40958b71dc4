"""An imbalanced stream with a memory of 100: 200 rows of each of the first four pairs of digits, 2,000 of the last.

    python -m experiments.replay.streaming_imbalanced [--only dense convolutional] [--size small|full] --out DIR

Batches of 125 arrive once; the network learns each with the memory replayed, then the memory is updated: reservoir,
class-balanced reservoir, or merge-reduce with bilevel coresets (one slot). The paper: 80.6, 89.7 and 92.4. The small
size trains a dense network with the better of beta 10 and 100, or, with `--only convolutional`, the paper's network
with the same two. The full size trains the paper's network with the paper's grid of beta. The better beta is chosen on
rows of the training file that no stream contains: 400 of each pair of digits. Five seeds, one after the other; a run
that is started again continues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, ReplayMemory, bilevel_summary, learn_task
from core.coresets.library.streaming import ClassBalancedReservoir, MergeReduce, Reservoir
from experiments.benchmark.goals import mean_interval
from experiments.datasets import mnist
from experiments.record import Arguments, Parts, Record, curves, mean_and_deviation, run
from experiments.replay.continual import at_better_beta
from experiments.replay.digit_networks import PENALTY, Convolutional, Dense, accuracy, convolutional_ntk, dense_ntk

MEMORY, BATCH, EPOCHS, SEEDS = 100, 125, 40, 5
LEARNED, N_TUNING = (200, 200, 200, 200, 2000), 400  # rows of each pair of digits
PAPER = {"reservoir": 80.6, "balanced reservoir": 89.7, "bilevel merge-reduce": 92.4}
NETWORKS = {"dense": (Dense, dense_ntk), "convolutional": (Convolutional, convolutional_ntk)}
Tangent = Callable[[torch.Tensor], torch.Tensor]
Rows = tuple[torch.Tensor, torch.Tensor]


def stream(arguments: Arguments, seed: int) -> tuple[Rows, Rows, Rows]:
    """(x, y) in the order of arrival, other rows of the training file for the choice of beta, and the test rows."""
    x, y, xt, yt = mnist(arguments.data)
    generator = np.random.default_rng(seed)
    learned, tuning = [], []
    for low, n_rows in zip(range(0, 10, 2), LEARNED, strict=True):
        pair = generator.permutation(np.flatnonzero((y == low) | (y == low + 1)))
        learned.append(pair[:n_rows])
        tuning.append(pair[n_rows : n_rows + N_TUNING])
    own, others = np.concatenate(learned), np.concatenate(tuning)
    parts = (x[own], y[own]), (x[others], y[others]), (xt, yt)
    first, second, third = ((torch.tensor(rows[:, None]), torch.tensor(labels)) for rows, labels in parts)
    return first, second, third


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


def learn(rows: Rows, kept: list[np.ndarray], network: Callable[[], Any], config: ReplayConfig, seed: int) -> Any:
    """The network after the stream."""
    x, y = rows
    torch.manual_seed(seed)
    model = network()
    generator = torch.Generator().manual_seed(seed)
    for arrived, held in zip(batches(len(y)), kept, strict=False):
        memory = ReplayMemory(MEMORY)
        if len(held):
            memory.add(x[held], y[held])
        learn_task(model, (x[arrived], y[arrived]), memory, config, generator=generator)
    return model


def accuracy_of_pairs(model: Any, rows: Rows) -> float:
    """Mean accuracy over the five pairs of digits, in %."""
    x, y = rows
    pairs = [(y == low) | (y == low + 1) for low in range(0, 10, 2)]
    return 100 * float(np.mean([accuracy(model, x[pair], y[pair]) for pair in pairs]))


def study(arguments: Arguments, name: str, method: str, betas: list[float], seed: int) -> list[dict]:
    learned, tuning, tests = stream(arguments, seed)
    network, tangent = NETWORKS[name]
    kept = memories(method, *learned, tangent, seed)
    row = {"network": name, "method": method, "seed": seed,
           "kept_per_class": np.bincount(learned[1][kept[-1]], minlength=10).tolist()}  # fmt: skip
    rows = []
    for beta in betas:
        model = learn(learned, kept, network, ReplayConfig(beta=beta, epochs=EPOCHS, learning_rate=5e-4), seed)
        found = {"accuracy": accuracy_of_pairs(model, tests), "tuning": accuracy_of_pairs(model, tuning)}
        rows.append({**row, "beta": beta, **found})
    return rows


def main(arguments: Arguments) -> Record:
    betas = [10.0, 100.0] if arguments.small else [0.1, 1.0, 10.0, 100.0, 1000.0]
    names = arguments.only or (("dense",) if arguments.small else ("convolutional",))
    parts = Parts(arguments.out, {"memory": MEMORY, "batch": BATCH, "betas": betas})
    rows: list[dict] = []
    for name in names:
        for seed in range(SEEDS):
            for method in PAPER:
                measure = partial(study, arguments, name, method, betas, seed)
                rows += parts.rows(f"{name}, {method}, {seed}", measure)
    claims: dict[str, dict] = {}
    for name in names:
        best = {
            method: at_better_beta([row for row in rows if (row["network"], row["method"]) == (name, method)])
            for method in PAPER
        }
        for method, own in best.items():
            claim = mean_and_deviation([row["accuracy"] for row in own]) | {"beta": own[0]["beta"]}
            claims[f"{name}: {method}"] = claim | {"paper": PAPER[method]}
        for method in ("reservoir", "balanced reservoir"):
            pairs = zip(best["bilevel merge-reduce"], best[method], strict=True)
            lead = np.array([ours["accuracy"] - other["accuracy"] for ours, other in pairs])
            claims[f"{name}: bilevel minus {method}"] = str(mean_interval(lead))
    shown = [{**row, "method": f"{row['method']} ({row['network']})"} for row in rows]
    figure = curves(shown, "beta", "accuracy", by="method", title="Imbalanced stream of split MNIST, memory of 100")
    return Record(rows, parts.settings, claims, figure, parts.earlier_seconds)


if __name__ == "__main__":
    run("streaming_imbalanced", main)
