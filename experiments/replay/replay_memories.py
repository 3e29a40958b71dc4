"""Replay memories on split MNIST: sizes (Table 9), accuracy by task (Fig. 9), kernels (Table 10), streams (Table 5).

    python -m experiments.replay.replay_memories [--only sizes proxies streams] [--size small|full] --out DIR

Continual learning trains task by task with a memory of 50, 100 or 200. Streams deliver the same tasks one after the
other in batches of 125; the memory is a reservoir, or merge-reduce with bilevel coresets in ten slots, and 40 gradient
steps follow each batch. "train on the memory" trains once, at the end of the stream, on what merge-reduce kept. Proxies
are the tangent kernel and the RBF kernel exp(-5e-4 |x - y|^2).

The small size trains the dense network on split MNIST with the better of beta 10 and 100, five seeds and 100 epochs a
task; the full size the paper's convolutional network, 400 epochs, the grid of beta, five seeds, and permuted MNIST as
a stream too. Bilevel coresets depend on neither the seed nor the network, so each is computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, ReplayMemory, bilevel_summary, evidence_of, learn_task
from core.coresets.library.streaming import MergeReduce, Reservoir
from core.coresets.library.summaries import summarize
from experiments.record import Arguments, Record, mean_and_deviation, run, say
from experiments.replay.continual import Task, permuted, split
from experiments.replay.digit_networks import PENALTY, Convolutional, Dense, accuracy, convolutional_ntk, dense_ntk

GAMMA, BATCH, STEPS, SLOTS = 5e-4, 125, 40, 10
PAPER = {
    "continual, uniform, 50": 85.23, "continual, uniform, 100": 92.80, "continual, uniform, 200": 95.08,
    "continual, bilevel, 50": 91.61, "continual, bilevel, 100": 95.81, "continual, bilevel, 200": 97.01,
    "stream, reservoir, 50": 83.90, "stream, reservoir, 100": 90.72, "stream, reservoir, 200": 94.12,
    "stream, bilevel, 50": 85.32, "stream, bilevel, 100": 92.51, "stream, bilevel, 200": 95.50,
    "stream, train on the memory, 100": 89.99, "continual, bilevel RBF, 100": 96.09, "stream, bilevel RBF, 100": 92.49,
    "permuted stream, reservoir, 100": 73.21, "permuted stream, bilevel, 100": 74.49,
    "permuted stream, train on the memory, 100": 45.03,
}  # fmt: skip
Kernel = Callable[[torch.Tensor], torch.Tensor]


def rbf(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(1).double()
    return torch.exp(-GAMMA * torch.cdist(flat, flat).square())


def continual(tasks: list[Task], choose, network, memory_size: int, config: ReplayConfig, seed: int) -> list[float]:
    """The accuracy on every task after the last one, in %; `choose(model, x, y, size)` gives rows, best first."""
    torch.manual_seed(seed)
    model, memory = network(), ReplayMemory(memory_size)
    generator = torch.Generator().manual_seed(seed)
    for x, y, _, _ in tasks:
        learn_task(model, (x, y), memory, config, generator=generator)
        rows = choose(model, x, y, memory.next_slot_size)
        memory.add(x[rows], y[rows])
    return task_accuracies(model, tasks)


def task_accuracies(model: torch.nn.Module, tasks: list[Task]) -> list[float]:
    return [100 * accuracy(model, xt, yt) for _, _, xt, yt in tasks]


def mean_accuracy(model: torch.nn.Module, tasks: list[Task]) -> float:
    return float(np.mean(task_accuracies(model, tasks)))


def bilevel_choice(kernel: Kernel):
    """The choice of every task, kept: a smaller summary of the same rows is its beginning."""
    orders: dict[int, np.ndarray] = {}

    def choose(model, x, y, size):
        key = x.data_ptr()
        if len(orders.get(key, ())) < size:
            orders[key] = bilevel_summary(kernel(x), one_hot(y, 10), size, penalty=PENALTY)
        return orders[key][:size]

    return choose


def uniform_choice(seed: int):
    return lambda model, x, y, size: summarize("uniform", evidence_of(model, x, y, seed), size)


def stream_memory(tasks: list[Task], size: int, kernel: Kernel | None, seed: int) -> list[np.ndarray]:
    """The rows in memory when each batch arrives and after the last; a reservoir where there is no kernel."""
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    targets = one_hot(y, 10)

    def reduce(rows, weights, count):
        return bilevel_summary(
            kernel(x[rows]), targets[rows], count, penalty=PENALTY, outer_weights=torch.tensor(weights)
        )

    reservoir = Reservoir(size, np.random.default_rng(seed))
    memory = reservoir if kernel is None else MergeReduce(SLOTS, size // SLOTS, reduce)
    kept = [memory.rows]
    for rows in np.array_split(np.arange(len(y)), len(y) // BATCH):
        memory.add(rows)
        kept.append(memory.rows)
    return kept


def learn_stream(tasks: list[Task], kept: list[np.ndarray], network, config: ReplayConfig, seed: int) -> float:
    """Mean accuracy over tasks after the stream, in %; one step uses the whole batch, as gradient descent does."""
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    torch.manual_seed(seed)
    model, generator = network(), torch.Generator().manual_seed(seed)
    for rows, held in zip(np.array_split(np.arange(len(y)), len(y) // BATCH), kept, strict=False):
        memory = ReplayMemory(len(held) or 1)
        if len(held):
            memory.add(x[held], y[held])
        learn_task(model, (x[rows], y[rows]), memory, config, generator=generator)
    return mean_accuracy(model, tasks)


def learn_memory(tasks: list[Task], held: np.ndarray, network, epochs: int, seed: int) -> float:
    """The memory alone, once."""
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    torch.manual_seed(seed)
    model, generator = network(), torch.Generator().manual_seed(seed)
    config = ReplayConfig(beta=0.0, epochs=epochs)
    learn_task(model, (x[held], y[held]), ReplayMemory(1), config, generator=generator)
    return mean_accuracy(model, tasks)


class Study:
    """Rows of the tables, measured one after the other."""

    def __init__(self, arguments: Arguments) -> None:
        self.small, self.rows = arguments.small, list[dict]()
        self.network = Dense if self.small else Convolutional
        self.tangent = dense_ntk if self.small else convolutional_ntk
        self.betas = [10.0, 100.0] if self.small else [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
        self.epochs, self.seeds = (100 if self.small else 400), 5
        self.tasks = split(arguments, 2000 if self.small else 10_000)
        self.arguments = arguments

    def note(self, name: str, beta: float, seed: int, value: float, tasks: list[float] | None = None) -> None:
        by_task = {} if tasks is None else {"tasks": tasks}
        self.rows.append({"name": name, "beta": beta, "seed": seed, "accuracy": value, **by_task})

    def continual(self, name: str, size: int, choice) -> None:
        for beta in self.betas:
            for seed in range(self.seeds):
                config = ReplayConfig(beta=beta, epochs=self.epochs)
                found = continual(self.tasks, choice(seed), self.network, size, config, seed)
                self.note(f"continual, {name}, {size}", beta, seed, float(np.mean(found)), found)
        say(f"{name} {size}: {self.best(f'continual, {name}, {size}')['mean']:.2f}")

    def stream(self, name: str, size: int, kernel: Kernel | None, tasks: list[Task], place: str = "stream") -> None:
        network = Dense if place != "stream" else self.network
        kept: list[np.ndarray] = []
        for seed in range(self.seeds):
            kept = stream_memory(tasks, size, kernel, seed) if kernel is None or not kept else kept
            for beta in [0.1, 1.0, *self.betas] if place != "stream" else self.betas:
                config = ReplayConfig(beta=beta, epochs=STEPS)
                self.note(f"{place}, {name}, {size}", beta, seed, learn_stream(tasks, kept, network, config, seed))
            if name == "bilevel" and size == 100:
                trained = learn_memory(tasks, kept[-1], network, 4 * self.epochs, seed)
                self.note(f"{place}, train on the memory, {size}", 0.0, seed, trained)
        say(f"{place} {name} {size}: {self.best(f'{place}, {name}, {size}')['mean']:.2f}")

    def best(self, name: str) -> dict:
        """Mean and deviation over seeds at the better beta, and the mean by task where there are tasks."""
        own = [row for row in self.rows if row["name"] == name]
        groups = []
        for beta in {row["beta"] for row in own}:
            here = [row for row in own if row["beta"] == beta]
            by_task = [row["tasks"] for row in here if "tasks" in row]
            tasks = {"tasks": np.mean(by_task, 0).round(2).tolist()} if by_task else {}
            groups.append(mean_and_deviation([row["accuracy"] for row in here]) | {"beta": beta} | tasks)
        return max(groups, key=lambda group: group["mean"])


def main(arguments: Arguments) -> Record:
    study, parts = Study(arguments), arguments.only or ("sizes", "streams", "proxies")
    if "sizes" in parts:
        tangent = bilevel_choice(study.tangent)
        for size in (200, 100, 50):
            study.continual("uniform", size, uniform_choice)
            study.continual("bilevel", size, lambda seed: tangent)
    if "streams" in parts:
        for size in (50, 100, 200):
            study.stream("reservoir", size, None, study.tasks)
            study.stream("bilevel", size, study.tangent, study.tasks)
        if not arguments.small:
            tasks = permuted(arguments, 10_000)
            study.stream("reservoir", 100, None, tasks, "permuted stream")
            study.stream("bilevel", 100, dense_ntk, tasks, "permuted stream")
    if "proxies" in parts:
        other = bilevel_choice(rbf)
        study.continual("bilevel RBF", 100, lambda seed: other)
        study.stream("bilevel RBF", 100, rbf, study.tasks)
    claims = {name: study.best(name) | {"paper": PAPER.get(name)} for name in {row["name"] for row in study.rows}}
    return Record(study.rows, {"size": arguments.size, "seeds": study.seeds, "epochs": study.epochs}, claims)


if __name__ == "__main__":
    run("replay_memories", main)
