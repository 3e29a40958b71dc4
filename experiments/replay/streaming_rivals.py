"""Other memories of a balanced stream (Table 5's rivals): gradient-based selection and exemplar streaming, split MNIST.

    python -m experiments.replay.streaming_rivals [--only METHOD ...] [--size small|full] --out DIR

The stream and the learner are those of `replay_memories`: five pairs of digits one after the other, a memory of 100,
40 gradient steps for every 125 rows. Gradient-based selection (Aljundi et al.) receives batches of 10, as in the
paper; it uses the gradients of the current network. It is measured with 3 steps per batch, about as many per row as
every other method has, and with 40, which may be the paper's setting. Exemplar streaming (Hayes et al.) keeps ten
centers of every class in pixel space. The paper: neither is above the reservoir's 90.72 on split MNIST; bilevel
coresets have 92.51.

The small size trains a dense network on pictures of 14 x 14 with the better of beta 1 and 10; the full size the paper's
convolutional network and its grid of beta. The better beta is chosen on rows of the training file that no task trains
on.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from core.coresets.library.replay import ReplayConfig
from experiments.record import Arguments, Parts, Record, mean_and_deviation, run, say
from experiments.replay.continual import MEMORY, Task, at_better_beta, mean_accuracy, split
from experiments.replay.digit_networks import CoarseDense, Convolutional, Dense, convolutional_ntk, dense_ntk
from experiments.replay.exemplar_streaming import ExemplarStreaming
from experiments.replay.gradient_selection import GradientSelection, gradient_cosines
from experiments.replay.replay_memories import BATCH, STEPS, learn_stream, remember, stream_memory
from experiments.replay.together import DenseStack, Learner, learn_together, learner

GRADIENT_BATCH = 10
EQUAL_STEPS = round(STEPS * GRADIENT_BATCH / BATCH)
METHODS = ("reservoir", "bilevel", "exemplar streaming", "gradient selection", "gradient selection, 40 steps")
PAPER = {"reservoir": 90.72, "bilevel": 92.51}


def joined(tasks: list[Task]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([task[0] for task in tasks]), torch.cat([task[1] for task in tasks])


def gradient_selection(tasks: list[Task], learners: list[Learner], seeds: list[int], steps: int) -> list[float]:
    """Mean accuracy over tasks after the stream, in %, of every learner."""
    x, y = joined(tasks)
    memories = [GradientSelection(MEMORY, np.random.default_rng(seed)) for seed in seeds]
    config = ReplayConfig(beta=0.0, epochs=steps)
    for rows in np.array_split(np.arange(len(y)), len(y) // GRADIENT_BATCH):
        for one, memory in zip(learners, memories, strict=True):
            remember(one, x, y, memory.rows)
        learn_together(learners, x[rows], y[rows], config)
        compared = [np.concatenate([memory.rows, rows]) for memory in memories]
        for memory, cosines in zip(memories, all_cosines(learners, x, y, compared), strict=True):
            memory.add(rows, cosines)
    return [mean_accuracy(one.network, tasks) for one in learners]


def all_cosines(
    learners: list[Learner], x: torch.Tensor, y: torch.Tensor, compared: list[np.ndarray]
) -> list[torch.Tensor]:
    """The cosines of the loss gradients of the `compared` rows, for every learner."""
    if all(isinstance(one.network, Dense) for one in learners):
        rows = torch.from_numpy(np.stack(compared))
        return list(DenseStack([one.network for one in learners]).cosines(x[rows].flatten(2), y[rows]))
    return [gradient_cosines(one.network, x[own], y[own]) for one, own in zip(learners, compared, strict=True)]


def exemplar_streaming(tasks: list[Task], learners: list[Learner]) -> list[float]:
    x, y = joined(tasks)
    memory = ExemplarStreaming(MEMORY // 10)  # the same for all learners: it does not depend on the network
    for rows in np.array_split(np.arange(len(y)), len(y) // BATCH):
        if memory.centers:
            inputs, labels = memory.memory
            for one in learners:
                remember(one, inputs, labels, np.arange(len(labels)))
        learn_together(learners, x[rows], y[rows], ReplayConfig(beta=0.0, epochs=STEPS))
        memory.add(x[rows], y[rows])
    return [mean_accuracy(one.network, tasks) for one in learners]


def study(method: str, tasks: list[Task], others: list[Task], arguments: Arguments, betas: list[float]) -> list[dict]:
    network, tangent = (CoarseDense, dense_ntk) if arguments.small else (Convolutional, convolutional_ntk)
    pairs = [(seed, beta) for seed in range(5) for beta in betas]
    learners, seeds = [learner(network, MEMORY, beta, seed) for seed, beta in pairs], [seed for seed, _ in pairs]
    if method.startswith("gradient selection"):
        found = gradient_selection(tasks, learners, seeds, STEPS if "40" in method else EQUAL_STEPS)
    elif method == "exemplar streaming":
        found = exemplar_streaming(tasks, learners)
    else:
        kernel = tangent if method == "bilevel" else None
        kept = [stream_memory(tasks, MEMORY, kernel, seed) for seed in range(1 if kernel else 5)]
        config = ReplayConfig(beta=0.0, epochs=STEPS)
        found = learn_stream(tasks, [kept[seed % len(kept)] for seed in seeds], learners, config)
    tuning = [mean_accuracy(one.network, others) for one in learners]
    return [
        {"method": method, "beta": beta, "seed": seed, "accuracy": value, "tuning": own}
        for (seed, beta), value, own in zip(pairs, found, tuning, strict=True)
    ]


def main(arguments: Arguments) -> Record:
    n_test = 2000 if arguments.small else 10_000
    tasks, others = split(arguments, n_test), split(arguments, n_test, tuning=True)
    betas = [1.0, 10.0] if arguments.small else [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    parts = Parts(arguments.out, {"size": arguments.size, "memory": MEMORY, "betas": betas})
    rows: list[dict] = []
    claims: dict[str, dict] = {}
    for method in arguments.only or METHODS:
        own = parts.rows(method, partial(study, method, tasks, others, arguments, betas))
        best = at_better_beta(own)
        claims[method] = mean_and_deviation([row["accuracy"] for row in best])
        claims[method] |= {"beta": best[0]["beta"], "paper": PAPER.get(method)}
        say(f"{method}: {claims[method]}")
        rows += own
    return Record(rows, parts.settings, claims, earlier_seconds=parts.earlier_seconds)


if __name__ == "__main__":
    run("streaming_rivals", main)
