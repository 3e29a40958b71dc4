"""Continual learning with a replay memory: permuted and split MNIST, 1,000 rows per task, a memory of 100.

Bilevel coresets (neural tangent kernel proxy) against every baseline of the paper's table; the paper: 79.3 on permuted,
95.8 on split. The small size has pictures of 14 x 14 and trains a dense network on both, 30 (permuted) and 50 epochs
(split) per task with one beta or the better of two; the full size is the paper's: 400 epochs, the convolutional network
on split, a wider grid of beta. Both have five seeds. `--only` takes names of methods.

The better beta of a method is the one with the higher mean accuracy over seeds on rows of the training file that no
task has. The paper tunes it on the test rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, bilevel_summary, evidence_of
from core.coresets.library.summaries import SUMMARIES, summarize
from experiments.datasets import Split, mnist
from experiments.record import Arguments, Parts, Record, curves, mean_and_deviation, run, say
from experiments.replay.digit_networks import (
    PENALTY,
    CoarseDense,
    Convolutional,
    Dense,
    accuracy,
    convolutional_ntk,
    dense_ntk,
)
from experiments.replay.together import Learner, learn_together, learner

WITHOUT = "without replay"
METHODS = ("bilevel", WITHOUT, *SUMMARIES)
PER_TASK, MEMORY = 1000, 100
PENALTIES = {"permuted": PENALTY / 10, "split": PENALTY}  # of the proxy; as beta, the better one for each
PAPER = {"permuted": 79.3, "split": 95.8}
SEEDS = 5
SMALL_EPOCHS = {"permuted": 30, "split": 50}
SMALL_BETAS = {"permuted": [0.1], "split": [1.0, 10.0]}
Task = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def pictures(arguments: Arguments) -> Split:
    """MNIST; the small size averages 2 x 2 pixels."""
    x, y, xt, yt = mnist(arguments.data)
    if arguments.small:
        x, xt = (part.reshape(-1, 14, 2, 14, 2).mean((2, 4)) for part in (x, xt))
    return x, y, xt, yt


def permuted(arguments: Arguments, n_test: int, per_task: int = PER_TASK, *, tuning: bool = False) -> list[Task]:
    """Ten tasks: the same digits under ten permutations of the pixels. With `tuning`, see `split`."""
    x, y, xt, yt = pictures(arguments)
    if tuning:
        xt, yt = x[per_task:], y[per_task:]
    generator = np.random.default_rng(0)
    tasks = []
    for _ in range(10):
        order = generator.permutation(x[0].size)
        train, test = (torch.tensor(a.reshape(len(a), -1)[:, order]) for a in (x[:per_task], xt[:n_test]))
        tasks.append((train, torch.tensor(y[:per_task]), test, torch.tensor(yt[:n_test])))
    return tasks


def split(arguments: Arguments, n_test: int, per_task: int = PER_TASK, *, tuning: bool = False) -> list[Task]:
    """Five tasks of two digits each, one output for all ten.

    With `tuning`, the same tasks with rows of the training file that no task trains on instead of the test rows.
    """
    x, y, xt, yt = pictures(arguments)
    generator = np.random.default_rng(0)
    tasks = []
    for low in range(0, 10, 2):
        order = generator.permutation(np.flatnonzero((y == low) | (y == low + 1)))
        rows, others = order[:per_task], order[per_task : per_task + n_test // 5]
        test = np.flatnonzero((yt == low) | (yt == low + 1))[: n_test // 5]
        measured = (x[others], y[others]) if tuning else (xt[test], yt[test])
        parts = (x[rows][:, None], y[rows], measured[0][:, None], measured[1])
        tasks.append(tuple(torch.tensor(part) for part in parts))
    return tasks


def bilevel_orders(name: str, tasks: list[Task], tangent: Callable[[torch.Tensor], torch.Tensor]) -> list[np.ndarray]:
    """The bilevel rows of every task, best first, as many as its first slot has. They do not depend on the learner."""
    if name == "permuted":  # one kernel is valid for all permutations: the dense kernel depends on inner products alone
        x, y, _, _ = tasks[0]
        return [bilevel_summary(tangent(x), one_hot(y, 10), MEMORY, penalty=PENALTIES[name])] * len(tasks)
    sizes = [MEMORY // (k + 1) for k in range(len(tasks))]
    return [
        bilevel_summary(tangent(x), one_hot(y, 10), size, penalty=PENALTIES[name])
        for (x, y, _, _), size in zip(tasks, sizes, strict=True)
    ]


def learn(
    tasks: list[Task], orders: list[np.ndarray], method: str, learners: list[Learner], seeds: list[int], epochs: int
) -> list[float]:
    """Mean test accuracy over all tasks after the last one, in %, of every learner, which is trained in place."""
    config = ReplayConfig(beta=0.0, epochs=epochs)
    for number, (x, y, _, _) in enumerate(tasks):
        learn_together(learners, x, y, config)
        for one, seed in zip(learners, seeds, strict=True):
            if method == WITHOUT:
                continue
            size = one.memory.next_slot_size
            if method == "bilevel":
                rows = orders[number][:size]
            else:
                rows = summarize(method, evidence_of(one.network, x, y, seed), size)
            one.memory.add(x[rows], y[rows])
    return [mean_accuracy(one.network, tasks) for one in learners]


def task_accuracies(model: torch.nn.Module, tasks: list[Task]) -> list[float]:
    return [100 * accuracy(model, xt, yt) for _, _, xt, yt in tasks]


def mean_accuracy(model: torch.nn.Module, tasks: list[Task]) -> float:
    return float(np.mean(task_accuracies(model, tasks)))


def at_better_beta(rows: list[dict]) -> list[dict]:
    """The rows with the beta that has the highest mean accuracy on the rows for tuning."""
    return max(
        ([row for row in rows if row["beta"] == beta] for beta in dict.fromkeys(row["beta"] for row in rows)),
        key=lambda own: float(np.mean([row["tuning"] for row in own])),
    )


def study(name: str, arguments: Arguments, parts: Parts) -> list[dict]:
    small = arguments.small
    make, n_test = permuted if name == "permuted" else split, 2000 if small else 10_000
    tasks, others = make(arguments, n_test), make(arguments, n_test, tuning=True)
    network = CoarseDense if small else (Dense if name == "permuted" else Convolutional)
    methods = arguments.only or METHODS
    tangent = convolutional_ntk if network is Convolutional else dense_ntk
    orders = bilevel_orders(name, tasks, tangent) if "bilevel" in methods else []
    betas = SMALL_BETAS[name] if small else [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    epochs = SMALL_EPOCHS[name] if small else 400

    def measure(method: str) -> list[dict]:
        own = betas[:1] if method == WITHOUT else betas
        pairs = [(seed, beta) for seed in range(SEEDS) for beta in own]
        learners = [learner(network, MEMORY, beta, seed) for seed, beta in pairs]
        found = learn(tasks, orders, method, learners, [seed for seed, _ in pairs], epochs)
        tuning = [mean_accuracy(one.network, others) for one in learners]
        return [
            {"data": name, "method": method, "beta": beta, "seed": seed, "accuracy": value, "tuning": own}
            for (seed, beta), value, own in zip(pairs, found, tuning, strict=True)
        ]

    rows = []
    for method in methods:
        rows += parts.rows(f"{name}, {method}", partial(measure, method))
        say(f"{name} {method}: {best_beta(rows, name, method)}")
    return rows


def best_beta(rows: list[dict], name: str, method: str) -> dict[str, float]:
    """The mean and deviation over seeds at the better beta of this method."""
    own = at_better_beta([row for row in rows if row["data"] == name and row["method"] == method])
    return mean_and_deviation([row["accuracy"] for row in own]) | {"beta": own[0]["beta"]}


def main(arguments: Arguments) -> Record:
    small = {"epochs": SMALL_EPOCHS, "betas": SMALL_BETAS} if arguments.small else {}
    parts = Parts(arguments.out, {"per_task": PER_TASK, "memory": MEMORY, "size": arguments.size} | small)
    rows = [row for name in ("split", "permuted") for row in study(name, arguments, parts)]
    methods = arguments.only or METHODS
    claims = {name: {m: best_beta(rows, name, m) for m in methods} | {"paper": PAPER[name]} for name in PAPER}
    places = {name: k for k, name in enumerate(METHODS)}
    shown = [{**row, "place": places[row["method"]]} for row in rows]
    figure = curves(shown, "place", "accuracy", by="data", title="Replay memory of 100: accuracy after the last task")
    figure.update_xaxes(tickvals=list(places.values()), ticktext=list(places), title="")
    figure.update_traces(mode="markers")
    return Record(rows, parts.settings, claims, figure, parts.earlier_seconds)


if __name__ == "__main__":
    run("continual", main)
