"""Replay memories on split MNIST: sizes (Table 9), accuracy by task (Fig. 9), kernels (Table 10), streams (Table 5).

    python -m experiments.replay.replay_memories [--only sizes proxies streams slots] [--size small|full] --out DIR

Continual learning trains task by task with a memory of 50, 100 or 200. Streams deliver the same tasks one after the
other in batches of 125; the memory is a reservoir, or merge-reduce with bilevel coresets in ten slots, and 40 gradient
steps follow each batch. "train on the memory" trains once, at the end of the stream, on the rows of merge-reduce. The
two slots that represent the fewest batches are merged; with the rule as printed, 80 of 100 rows are of the last task.
The part slots, which is not run by default, has streams with other numbers of slots. Proxies are the tangent kernel and
the RBF kernel exp(-5e-4 |x - y|^2).

The small size trains a dense network on pictures of 14 x 14 with the better of beta 1 and 10, five seeds and 50 epochs
a task; the full size the paper's convolutional network, 400 epochs, the grid of beta, and permuted MNIST as a stream
too. Bilevel coresets depend on neither the seed nor the network, so each is computed once. The better beta is chosen on
rows of the training file that no task trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, ReplayMemory, bilevel_summary, evidence_of
from core.coresets.library.streaming import MergeReduce, Reservoir, Rule
from core.coresets.library.summaries import summarize
from experiments.record import Arguments, Parts, Record, mean_and_deviation, run, say
from experiments.replay.continual import (
    SMALL_EPOCHS,
    Task,
    at_better_beta,
    mean_accuracy,
    permuted,
    split,
    task_accuracies,
)
from experiments.replay.digit_networks import (
    PENALTY,
    CoarseDense,
    Convolutional,
    Dense,
    convolutional_ntk,
    dense_ntk,
)
from experiments.replay.together import Learner, learn_together, learner

GAMMA, BATCH, STEPS, SLOTS = 5e-4, 125, 40, 10
SLOTTED = ((50, 5), (200, 5), (200, 20), (200, 40))  # memories with other numbers of slots
PRINTED = "bilevel, slots as printed"
PAPER = {
    "continual, uniform, 50": 85.23, "continual, uniform, 100": 92.80, "continual, uniform, 200": 95.08,
    "continual, bilevel, 50": 91.61, "continual, bilevel, 100": 95.81, "continual, bilevel, 200": 97.01,
    "stream, reservoir, 50": 83.90, "stream, reservoir, 100": 90.72, "stream, reservoir, 200": 94.12,
    "stream, bilevel, 50": 85.32, "stream, bilevel, 100": 92.51, "stream, bilevel, 200": 95.50,
    "stream, train on the memory of bilevel, 100": 89.99,
    "continual, bilevel RBF, 100": 96.09, "stream, bilevel RBF, 100": 92.49,
    "permuted stream, reservoir, 100": 73.21, "permuted stream, bilevel, 100": 74.49,
    "permuted stream, train on the memory of bilevel, 100": 45.03,
}  # fmt: skip
Kernel = Callable[[torch.Tensor], torch.Tensor]
Choice = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, int], np.ndarray]
Found = list[float]  # by task


def rbf(x: torch.Tensor) -> torch.Tensor:
    flat = x.flatten(1).double()
    gamma = GAMMA * 784 / flat.shape[1]  # a pixel of a small picture is the mean of four
    return torch.exp(-gamma * torch.cdist(flat, flat).square())


def continual(tasks: list[Task], choices: list[Choice], learners: list[Learner], config: ReplayConfig) -> list[Found]:
    """The accuracy on every task after the last one, in %, of every learner, with its `choice(model, x, y, size)`."""
    for x, y, _, _ in tasks:
        learn_together(learners, x, y, config)
        for one, choice in zip(learners, choices, strict=True):
            rows = choice(one.network, x, y, one.memory.next_slot_size)
            one.memory.add(x[rows], y[rows])
    return [task_accuracies(one.network, tasks) for one in learners]


def bilevel_choice(kernel: Kernel) -> Choice:
    """The cached choice of every task: a smaller summary of the same rows is its first part."""
    orders: dict[int, np.ndarray] = {}

    def choose(model, x, y, size):
        key = x.data_ptr()
        if len(orders.get(key, ())) < size:
            orders[key] = bilevel_summary(kernel(x), one_hot(y, 10), size, penalty=PENALTY)
        return orders[key][:size]

    return choose


def uniform_choice(seed: int) -> Choice:
    return lambda model, x, y, size: summarize("uniform", evidence_of(model, x, y, seed), size)


def constant(choice: Choice) -> Callable[[int], Choice]:
    """The same choice for every seed."""
    return lambda seed: choice


def stream_memory(
    tasks: list[Task], size: int, kernel: Kernel | None, seed: int, rule: Rule = "fewest", n_slots: int = SLOTS
) -> list[np.ndarray]:
    """The rows in memory when each batch arrives and after the last; a reservoir if there is no kernel."""
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    targets = one_hot(y, 10)

    def reduce(rows, weights, count):
        return bilevel_summary(
            kernel(x[rows]), targets[rows], count, penalty=PENALTY, outer_weights=torch.tensor(weights)
        )

    reservoir = Reservoir(size, np.random.default_rng(seed))
    memory = reservoir if kernel is None else MergeReduce(n_slots, size // n_slots, reduce, rule=rule)
    kept = [memory.rows]
    for rows in np.array_split(np.arange(len(y)), len(y) // BATCH):
        memory.add(rows)
        kept.append(memory.rows)
    return kept


def learn_stream(
    tasks: list[Task], kept: list[list[np.ndarray]], learners: list[Learner], config: ReplayConfig
) -> list[float]:
    """Mean accuracy over tasks after the stream, in %, of every learner with its own memories `kept`.

    One step uses the whole batch, as gradient descent does.
    """
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    for number, rows in enumerate(np.array_split(np.arange(len(y)), len(y) // BATCH)):
        for one, own in zip(learners, kept, strict=True):
            remember(one, x, y, own[number])
        learn_together(learners, x[rows], y[rows], config)
    return [mean_accuracy(one.network, tasks) for one in learners]


def remember(one: Learner, x: torch.Tensor, y: torch.Tensor, held: np.ndarray) -> None:
    """The rows `held` as the learner's memory."""
    one.memory = ReplayMemory(max(len(held), 1))
    if len(held):
        one.memory.add(x[held], y[held])


def learn_memory(tasks: list[Task], kept: list[np.ndarray], learners: list[Learner], epochs: int) -> list[float]:
    """The same for one training on the memory at the end of the stream."""
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    learn_together(learners, x[kept[-1]], y[kept[-1]], ReplayConfig(beta=0.0, epochs=epochs))
    return [mean_accuracy(one.network, tasks) for one in learners]


class Study:
    """Rows of the tables, measured one after the other."""

    def __init__(self, arguments: Arguments) -> None:
        self.small, self.rows, self.arguments = arguments.small, list[dict](), arguments
        self.network = CoarseDense if self.small else Convolutional
        self.tangent = dense_ntk if self.small else convolutional_ntk
        self.betas = [1.0, 10.0] if self.small else [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
        self.epochs, self.seeds = (SMALL_EPOCHS["split"] if self.small else 400), list(range(5))
        n_test = 2000 if self.small else 10_000
        self.tasks, self.others = split(arguments, n_test), split(arguments, n_test, tuning=True)
        self.parts = Parts(arguments.out, {"size": arguments.size, "seeds": self.seeds, "epochs": self.epochs})

    def continual(self, name: str, size: int, choice: Callable[[int], Choice]) -> None:
        part = f"continual, {name}, {size}"

        def measure(beta: float) -> list[dict]:
            learners = [learner(self.network, size, beta, seed) for seed in self.seeds]
            config = ReplayConfig(beta=0.0, epochs=self.epochs)
            found = continual(self.tasks, [choice(seed) for seed in self.seeds], learners, config)
            values = [float(np.mean(own)) for own in found]
            rows = self.found_rows(part, beta, values, learners, self.others)
            return [row | {"tasks": own} for row, own in zip(rows, found, strict=True)]

        for beta in self.betas:
            self.rows += self.parts.rows(f"{part}, beta {beta:g}", partial(measure, beta))
        say(f"{part}: {self.best(part)}")

    def stream(
        self,
        name: str,
        size: int,
        kernel: Kernel | None,
        tasks: list[Task],
        place: str = "stream",
        n_slots: int = SLOTS,
    ) -> None:
        """`place` is "stream" for split MNIST; permuted MNIST has the dense network."""
        betas = self.betas if place == "stream" else [0.1, 1.0, *self.betas]
        network = self.network if place == "stream" else Dense
        others = self.others if place == "stream" else permuted(self.arguments, 10_000, tuning=True)
        part, alone = f"{place}, {name}, {size}", f"{place}, train on the memory of {name}, {size}"
        rule: Rule = "printed" if name == PRINTED else "fewest"
        kept: list[list[np.ndarray]] = []

        def memories() -> list[list[np.ndarray]]:
            """Of every seed; bilevel memories do not depend on it, so one is computed for all."""
            if not kept:
                seeds = self.seeds if kernel is None else self.seeds[:1]
                found = [stream_memory(tasks, size, kernel, seed, rule, n_slots) for seed in seeds]
                kept.extend(found if kernel is None else found * len(self.seeds))
            return kept

        def measure(beta: float) -> list[dict]:
            learners = [learner(network, size, beta, seed) for seed in self.seeds]
            found = learn_stream(tasks, memories(), learners, ReplayConfig(beta=0.0, epochs=STEPS))
            return self.found_rows(part, beta, found, learners, others)

        def measure_memory() -> list[dict]:
            learners = [learner(network, 1, 0.0, seed) for seed in self.seeds]
            found = learn_memory(tasks, memories()[0], learners, 400)
            return self.found_rows(alone, 0.0, found, learners, others)

        for beta in betas:
            self.rows += self.parts.rows(f"{part}, beta {beta:g}", partial(measure, beta))
        if name in ("bilevel", PRINTED) and size == 100:
            self.rows += self.parts.rows(alone, measure_memory)
        say(f"{part}: {self.best(part)}")

    def found_rows(
        self, name: str, beta: float, found: list[float], learners: list[Learner], others: list[Task]
    ) -> list[dict]:
        tuning = [mean_accuracy(one.network, others) for one in learners]
        return [
            {"name": name, "beta": beta, "seed": seed, "accuracy": value, "tuning": own}
            for seed, value, own in zip(self.seeds, found, tuning, strict=True)
        ]

    def best(self, name: str) -> dict:
        """Mean and deviation over seeds at the better beta, and the mean by task where there are tasks."""
        own = at_better_beta([row for row in self.rows if row["name"] == name])
        by_task = [row["tasks"] for row in own if "tasks" in row]
        tasks = {"tasks": np.mean(by_task, 0).round(2).tolist()} if by_task else {}
        return mean_and_deviation([row["accuracy"] for row in own]) | {"beta": own[0]["beta"]} | tasks


def main(arguments: Arguments) -> Record:
    study = Study(arguments)
    tables_of(study, arguments.only or ("sizes", "streams", "proxies"))
    claims = {name: study.best(name) | {"paper": PAPER.get(name)} for name in {row["name"] for row in study.rows}}
    return Record(study.rows, study.parts.settings, claims, earlier_seconds=study.parts.earlier_seconds)


def tables_of(study: Study, parts: Sequence[str]) -> None:
    """The memory of 100, which most tables have, comes first."""
    tangent, other = constant(bilevel_choice(study.tangent)), constant(bilevel_choice(rbf))
    for sizes in ((100,), (50, 200)):
        for size in sizes:
            if "sizes" in parts:
                study.continual("uniform", size, uniform_choice)
                study.continual("bilevel", size, tangent)
            if "streams" in parts:
                study.stream("reservoir", size, None, study.tasks)
                study.stream("bilevel", size, study.tangent, study.tasks)
        if "streams" in parts and sizes == (100,):
            study.stream(PRINTED, 100, study.tangent, study.tasks)
        if "proxies" in parts and sizes == (100,):
            study.continual("bilevel RBF", 100, other)
            study.stream("bilevel RBF", 100, rbf, study.tasks)
    for size, n_slots in SLOTTED if "slots" in parts else ():
        study.stream(f"bilevel in {n_slots} slots", size, study.tangent, study.tasks, n_slots=n_slots)
    if "streams" in parts and not study.small:
        tasks = permuted(study.arguments, 10_000)
        study.stream("reservoir", 100, None, tasks, "permuted stream")
        study.stream("bilevel", 100, dense_ntk, tasks, "permuted stream")


if __name__ == "__main__":
    run("replay_memories", main)
