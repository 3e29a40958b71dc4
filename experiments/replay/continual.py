"""Continual learning with a replay memory: permuted and split MNIST, 1,000 rows per task, a memory of 100.

Bilevel coresets (neural tangent kernel proxy) against every baseline of the paper's table; the paper: 79.3 on permuted,
95.8 on split. The small size trains the dense network on both, fewer epochs, two seeds and one or two values of beta;
the full size is the paper's: 400 epochs, the convolutional network on split, five seeds, beta tuned per method.
`--only` takes names of methods; bilevel and iCaRL alone have six seeds in the small size.
"""

from __future__ import annotations

import numpy as np
import torch

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import ReplayConfig, ReplayMemory, bilevel_summary, evidence_of, learn_task
from core.coresets.library.summaries import SUMMARIES, summarize
from experiments.datasets import mnist
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say
from experiments.replay.digit_networks import PENALTY, Convolutional, Dense, accuracy, convolutional_ntk, dense_ntk

WITHOUT = "without replay"
METHODS = ("bilevel", WITHOUT, *SUMMARIES)
PER_TASK, MEMORY = 1000, 100
PENALTIES = {"permuted": PENALTY / 10, "split": PENALTY}  # of the proxy; as beta, the better one for each
PAPER = {"permuted": 79.3, "split": 95.8}
CLOSE, MORE_SEEDS = {"bilevel", "iCaRL"}, 6  # with `--only` of these alone
SMALL_EPOCHS = {"permuted": 30, "split": 50}
SMALL_BETAS = {"permuted": [0.1], "split": [10.0, 100.0]}
Task = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def permuted(arguments: Arguments, n_test: int, per_task: int = PER_TASK) -> list[Task]:
    """Ten tasks: the same digits under ten permutations of the pixels."""
    x, y, xt, yt = mnist(arguments.data)
    generator = np.random.default_rng(0)
    tasks = []
    for _ in range(10):
        order = generator.permutation(784)
        train, test = (torch.tensor(a.reshape(len(a), -1)[:, order]) for a in (x[:per_task], xt[:n_test]))
        tasks.append((train, torch.tensor(y[:per_task]), test, torch.tensor(yt[:n_test])))
    return tasks


def split(arguments: Arguments, n_test: int, per_task: int = PER_TASK) -> list[Task]:
    """Five tasks of two digits each, one output for all ten."""
    x, y, xt, yt = mnist(arguments.data)
    generator = np.random.default_rng(0)
    tasks = []
    for low in range(0, 10, 2):
        rows = generator.permutation(np.flatnonzero((y == low) | (y == low + 1)))[:per_task]
        test = np.flatnonzero((yt == low) | (yt == low + 1))[: n_test // 5]
        parts = (x[rows][:, None], y[rows], xt[test][:, None], yt[test])
        tasks.append(tuple(torch.tensor(part) for part in parts))
    return tasks


def learn(  # noqa: PLR0913
    tasks: list[Task], proxies: list[torch.Tensor], method: str, network, config: ReplayConfig, seed: int,
    penalty: float = PENALTY,
):  # fmt: skip
    """Mean test accuracy over all tasks after the last one; `penalty` is that of the kernel proxy."""
    torch.manual_seed(seed)
    model, memory = network(), ReplayMemory(MEMORY)
    generator = torch.Generator().manual_seed(seed)
    for (x, y, _, _), proxy in zip(tasks, proxies, strict=True):
        learn_task(model, (x, y), memory, config, generator=generator)
        if method == WITHOUT:
            continue
        size = memory.next_slot_size
        if method == "bilevel":
            rows = bilevel_summary(proxy, one_hot(y, 10), size, penalty=penalty)
        else:
            rows = summarize(method, evidence_of(model, x, y, seed), size)
        memory.add(x[rows], y[rows])
    return float(np.mean([accuracy(model, xt, yt) for _, _, xt, yt in tasks]))


def study(name: str, arguments: Arguments) -> list[dict]:
    small = arguments.small
    tasks = (permuted if name == "permuted" else split)(arguments, 2000 if small else 10_000)
    network = Dense if small or name == "permuted" else Convolutional
    tangent = dense_ntk if network is Dense else convolutional_ntk
    # one kernel is valid for all permutations: the dense kernel depends on inner products alone
    proxies = [tangent(tasks[0][0])] * 10 if name == "permuted" else [tangent(task[0]) for task in tasks]
    betas = SMALL_BETAS[name] if small else [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
    timing = {"epochs": SMALL_EPOCHS[name] if small else 400, "learning_rate": 5e-4}
    n_seeds = 5 if not small else (MORE_SEEDS if arguments.only and set(arguments.only) <= CLOSE else 2)
    rows = []
    for method in arguments.only or METHODS:
        for beta in betas[:1] if method == WITHOUT else betas:
            for seed in range(n_seeds):
                config = ReplayConfig(beta=beta, **timing)
                found = learn(tasks, proxies, method, network, config, seed, PENALTIES[name])
                rows.append({"data": name, "method": method, "beta": beta, "seed": seed, "accuracy": 100 * found})
        say(f"{name} {method}: {np.mean([r['accuracy'] for r in rows if r['method'] == method]):.2f}")
    return rows


def best_beta(rows: list[dict], name: str, method: str) -> dict[str, float]:
    """The mean and deviation over seeds at the beta that is best for this method, as in the paper."""
    own = [row for row in rows if row["data"] == name and row["method"] == method]
    groups = [mean_and_deviation([r["accuracy"] for r in own if r["beta"] == b]) for b in {r["beta"] for r in own}]
    return max(groups, key=lambda group: group["mean"])


def main(arguments: Arguments) -> Record:
    rows = [row for name in ("permuted", "split") for row in study(name, arguments)]
    methods = arguments.only or METHODS
    claims = {name: {m: best_beta(rows, name, m) for m in methods} | {"paper": PAPER[name]} for name in PAPER}
    places = {name: k for k, name in enumerate(METHODS)}
    shown = [{**row, "place": places[row["method"]]} for row in rows]
    figure = curves(shown, "place", "accuracy", by="data", title="Replay memory of 100: accuracy after the last task")
    figure.update_xaxes(tickvals=list(places.values()), ticktext=list(places), title="")
    figure.update_traces(mode="markers")
    return Record(rows, {"per_task": PER_TASK, "memory": MEMORY, "size": arguments.size}, claims, figure)


if __name__ == "__main__":
    run("continual", main)
