"""Other memories of a balanced stream (Table 5's rivals): gradient-based selection and exemplar streaming, split MNIST.

    python -m experiments.replay.streaming_rivals [--only METHOD ...] [--size small|full] --out DIR

The stream and the learner are those of `replay_memories`: five pairs of digits one after the other, a memory of 100,
40 gradient steps for every 125 rows. Gradient-based selection (Aljundi et al.) receives batches of 10, as in the
paper, with the number of steps in proportion, so that every method takes equally many; it sees the gradients of the
present network. Exemplar streaming (Hayes et al.) keeps ten centers of every class in pixel space. The paper: neither
is above the reservoir's 90.72 on split MNIST; bilevel coresets have 92.51.

The small size trains the dense network, beta the better of 10 and 100; the full size the paper's convolutional
network and its grid of beta.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from core.coresets.library.replay import ReplayConfig, ReplayMemory, learn_task
from experiments.record import Arguments, Record, mean_and_deviation, run, say
from experiments.replay.continual import MEMORY, Task, split
from experiments.replay.digit_networks import Convolutional, Dense, convolutional_ntk, dense_ntk
from experiments.replay.exemplar_streaming import ExemplarStreaming
from experiments.replay.gradient_selection import GradientSelection, row_gradients
from experiments.replay.replay_memories import BATCH, STEPS, learn_stream, mean_accuracy, stream_memory

METHODS = ("reservoir", "gradient selection", "exemplar streaming", "bilevel")
GRADIENT_BATCH = 10
PAPER = {"reservoir": 90.72, "bilevel": 92.51}


def learned_batches(model, data, size: int, memory_of, config: ReplayConfig, seed: int) -> Iterator[np.ndarray]:
    """Trains on one batch of `size` rows after the other with the present memory; yields the rows after each."""
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    for rows in np.array_split(np.arange(len(y)), len(y) // size):
        held = memory_of()
        memory = ReplayMemory(max(len(held[1]), 1))
        if len(held[1]):
            memory.add(*held)
        learn_task(model, (x[rows], y[rows]), memory, config, generator=generator)
        yield rows


def gradient_selection(tasks: list[Task], network, beta: float, seed: int) -> float:
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    torch.manual_seed(seed)
    model, memory = network(), GradientSelection(MEMORY, np.random.default_rng(seed))
    config = ReplayConfig(beta=beta, epochs=round(STEPS * GRADIENT_BATCH / BATCH))
    batches = learned_batches(model, (x, y), GRADIENT_BATCH, lambda: (x[memory.rows], y[memory.rows]), config, seed)
    for rows in batches:
        held = memory.rows
        own = row_gradients(model, x[np.concatenate([held, rows])], y[np.concatenate([held, rows])])
        memory.add(rows, own[len(held) :], own[: len(held)])
    return mean_accuracy(model, tasks)


def exemplar_streaming(tasks: list[Task], network, beta: float, seed: int) -> float:
    x, y = torch.cat([t[0] for t in tasks]), torch.cat([t[1] for t in tasks])
    torch.manual_seed(seed)
    model, memory = network(), ExemplarStreaming(MEMORY // 10)
    config = ReplayConfig(beta=beta, epochs=STEPS)
    nothing = (x[:0], y[:0])
    for rows in learned_batches(
        model, (x, y), BATCH, lambda: memory.memory if memory.centers else nothing, config, seed
    ):
        memory.add(x[rows], y[rows])
    return mean_accuracy(model, tasks)


def study(method: str, tasks: list[Task], arguments: Arguments, beta: float, seed: int, kept: list | None) -> float:
    network = Dense if arguments.small else Convolutional
    if method == "gradient selection":
        return gradient_selection(tasks, network, beta, seed)
    if method == "exemplar streaming":
        return exemplar_streaming(tasks, network, beta, seed)
    assert kept is not None
    return learn_stream(tasks, kept, network, ReplayConfig(beta=beta, epochs=STEPS), seed)


def main(arguments: Arguments) -> Record:
    tasks = split(arguments, 2000 if arguments.small else 10_000)
    betas = [10.0, 100.0] if arguments.small else [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    tangent = dense_ntk if arguments.small else convolutional_ntk
    rows: list[dict] = []
    claims: dict[str, dict] = {}
    for method in arguments.only or METHODS:
        kept = stream_memory(tasks, MEMORY, tangent, 0) if method == "bilevel" else None
        for seed in range(5):
            if method == "reservoir":
                kept = stream_memory(tasks, MEMORY, None, seed)
            for beta in betas:
                found = study(method, tasks, arguments, beta, seed, kept)
                rows.append({"method": method, "beta": beta, "seed": seed, "accuracy": found})
        own = [row for row in rows if row["method"] == method]
        groups = [mean_and_deviation([r["accuracy"] for r in own if r["beta"] == beta]) for beta in betas]
        claims[method] = max(groups, key=lambda group: group["mean"]) | {"paper": PAPER.get(method)}
        say(f"{method}: {claims[method]['mean']:.2f} +- {claims[method]['deviation']:.2f}")
    return Record(rows, {"size": arguments.size, "memory": MEMORY, "betas": betas}, claims)


if __name__ == "__main__":
    run("streaming_rivals", main)
