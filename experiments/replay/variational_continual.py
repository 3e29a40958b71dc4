"""Variational continual learning with coresets (Table 4; Nguyen, Li, Bui and Turner, 2018), single head.

    python -m experiments.replay.variational_continual [--only split permuted] [--size small|full] --out DIR

A dense network with independent normal weights. Task t: 20 of its rows are set aside as its coreset C_t; the
posterior q_t is fitted to the other rows with q_{t-1} as prior (mean loss + KL(q_t | q_{t-1}) / n). For predictions,
a copy of q_t is fitted to the coresets of all tasks so far with q_t as prior; the copy is not passed on. Coresets:
bilevel with the tangent kernel and with the RBF kernel (Table 10), uniform, k-center on the pixels; "without
coresets" predicts with q_t.

Means start at a network trained by maximum likelihood on the first task, variances at e^-6, the first prior is N(0,
1), as in the authors' code. Losses use one draw by local reparameterization (Kingma et al., 2015) in place of ten
draws of the weights; predictions average the probabilities of ten. The full size is the paper's network, 256 units a
layer, 120 epochs and all rows of a task; the small size pictures of 14 x 14, 100 units, 30 epochs and 1,000 rows a
task. Its learning rate and its steps on the coresets are the best of `SCHEDULES` for uniform coresets, with two other
seeds, on rows of the training file that no task trains on.

The networks of all seeds are trained at the same time: their weights have a first dimension k, and the loss is the
sum over networks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import bilevel_summary
from core.coresets.library.summaries import k_center
from experiments.record import Arguments, Parts, Record, mean_and_deviation, run, say
from experiments.replay.continual import PENALTIES, Task, permuted, split
from experiments.replay.digit_networks import dense_ntk
from experiments.replay.replay_memories import rbf

PER_TASK, DRAWS, LOG_VARIANCE = 20, 10, -6.0
METHODS = ("without coresets", "uniform", "k-center", "bilevel", "bilevel RBF")
SCHEDULES = [{"rate": rate, "coreset_epochs": epochs} for rate in (1e-3, 1e-2) for epochs in (100, 1000)]
TUNING_SEEDS = (100, 101)
SEEDS = {"split": 20, "permuted": 5}  # on split MNIST, results vary much between networks
PAPER = {
    "split, k-center": 65.71, "split, uniform": 80.06, "split, bilevel": 84.62, "split, bilevel RBF": 82.21,
    "permuted, k-center": 85.33, "permuted, uniform": 84.96, "permuted, bilevel": 86.11, "permuted, bilevel RBF": 86.16,
}  # fmt: skip


class NormalLayer(nn.Module):
    """Dense layers of k networks with independent normal weights; the last row of the weights is the bias."""

    def __init__(self, starts: list[nn.Linear]) -> None:
        super().__init__()
        start = torch.stack([torch.cat([one.weight.T, one.bias[None]]) for one in starts])
        self.mean = nn.Parameter(start.detach())  # (k, n_in + 1, n_out)
        self.log_variance = nn.Parameter(torch.full_like(self.mean, LOG_VARIANCE))

    def forward(self, x: Tensor, sample: bool = True) -> Tensor:
        """The output for new weights in every row. Its mean and variance are known, so the output is drawn directly."""
        mean = torch.baddbmm(self.mean[:, -1:], x, self.mean[:, :-1])
        if not sample:
            return mean
        spread = self.log_variance.exp()
        variance = torch.baddbmm(spread[:, -1:], x.square(), spread[:, :-1])
        return mean + variance.clamp_min(1e-16).sqrt() * torch.randn_like(mean)


class NormalNetwork(nn.Module):
    """784 - width - width - 10 with ReLU, one network for each seed: (k, b, inputs) -> (k, b, 10)."""

    def __init__(self, width: int, seeds: Sequence[int] = (0,), inputs: int = 784) -> None:
        super().__init__()
        starts = []
        for seed in seeds:
            torch.manual_seed(seed)
            starts.append([nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, 10)])
        self.layers = nn.ModuleList([NormalLayer(list(level)) for level in zip(*starts, strict=True)])

    def forward(self, x: Tensor, sample: bool = True) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, sample))
        return self.layers[-1](x, sample)

    def divergence(self, prior: NormalNetwork | None) -> Tensor:
        """KL(this | prior), the sum over networks; the standard normal where there is no prior."""
        total = torch.zeros(())
        for layer, mean, log_variance in self._beside(prior):
            ratio = (layer.log_variance - log_variance).exp()
            shift = (layer.mean - mean).square() / log_variance.exp()
            total = total + 0.5 * (ratio + shift - 1 - layer.log_variance + log_variance).sum()
        return total

    def add_divergence_gradient(self, prior: NormalNetwork | None, factor: float) -> None:
        """The gradient of factor * divergence, which has a closed form, on that of the loss."""
        with torch.no_grad():
            for layer, mean, log_variance in self._beside(prior):
                precision = (-log_variance).exp()
                layer.mean.grad.addcmul_(layer.mean - mean, precision, value=factor)
                ratio = (layer.log_variance - log_variance).exp_().sub_(1)
                layer.log_variance.grad.add_(ratio, alpha=factor / 2)

    def _beside(self, prior: NormalNetwork | None) -> Iterator[tuple[NormalLayer, Tensor, Tensor]]:
        for k, layer in enumerate(self.layers):
            if prior is None:
                yield layer, torch.zeros(()), torch.zeros(())
            else:
                yield layer, prior.layers[k].mean.detach(), prior.layers[k].log_variance.detach()


@dataclass(frozen=True)
class Schedule:
    """Adam."""

    epochs: int
    batch: int = 256
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class Data:
    """The training data of k networks: separate rows (k, n) of x and y for each."""

    x: Tensor
    y: Tensor
    rows: Tensor

    def batches(self, schedule: Schedule) -> Iterator[tuple[Tensor, Tensor]]:
        """(k, b, inputs) and (k, b), in a new random order in every epoch."""
        for _ in range(schedule.epochs):
            orders = torch.stack([own[torch.randperm(len(own))] for own in self.rows])
            for rows in orders.split(schedule.batch, 1):
                yield self.x[rows], self.y[rows]


def summed_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The sum over networks of the mean over rows."""
    return cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]


def fit(model: NormalNetwork, prior: NormalNetwork | None, data: Data, schedule: Schedule) -> None:
    """Minimize the mean loss + KL(model | prior) / n in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=schedule.learning_rate, fused=True)
    for x, y in data.batches(schedule):
        optimizer.zero_grad()
        summed_loss(model(x), y).backward()
        model.add_divergence_gradient(prior, 1 / data.rows.shape[1])
        optimizer.step()


def fit_means(model: NormalNetwork, data: Data, schedule: Schedule) -> None:
    """Maximum likelihood for the means, as the start of the first task."""
    optimizer = torch.optim.Adam([layer.mean for layer in model.layers], lr=schedule.learning_rate, fused=True)
    for x, y in data.batches(schedule):
        optimizer.zero_grad()
        summed_loss(model(x, sample=False), y).backward()
        optimizer.step()


def refined(model: NormalNetwork, data: Data, schedule: Schedule) -> NormalNetwork:
    """A copy, fitted to the coresets with `model` as prior."""
    own = copy.deepcopy(model)
    fit(own, model, data, schedule)
    return own


def accuracies(model: NormalNetwork, tasks: list[Task]) -> list[float]:
    """Of every network: the mean over tasks in %, with probabilities averaged over draws."""
    found = []
    k = len(model.layers[0].mean)
    with torch.no_grad():
        for _, _, xt, yt in tasks:
            x = xt.flatten(1).expand(k, -1, -1)
            mean = sum(torch.softmax(model(x), 2) for _ in range(DRAWS))
            found.append((mean.argmax(2) == yt).double().mean(1))
    return (100 * torch.stack(found).mean(0)).tolist()


def chosen_rows(method: str, tasks: list[Task], name: str, seed: int) -> list[np.ndarray]:
    """The coreset of every task. None depends on the model."""
    rows = []
    for k, (x, y, _, _) in enumerate(tasks):
        if method.startswith("bilevel"):
            kernel = rbf(x) if method == "bilevel RBF" else dense_ntk(x)
            rows.append(bilevel_summary(kernel, one_hot(y, 10), PER_TASK, penalty=PENALTIES[name]))
        elif method == "k-center":
            rows.append(k_center(x.flatten(1).double().numpy(), PER_TASK, seed + 100 * k))
        elif method == "uniform":
            rows.append(np.random.default_rng([seed, k]).permutation(len(y))[:PER_TASK])
        else:
            rows.append(np.zeros(0, np.int64))
    return rows


def learn(tasks: list[Task], coresets: list[list[np.ndarray]], scale: dict, seeds: Sequence[int]) -> list[float]:
    """The accuracy for every seed; `coresets` has the rows of every task for every seed."""
    model, schedule = (
        NormalNetwork(scale["width"], seeds, tasks[0][0][0].numel()),
        Schedule(scale["epochs"], learning_rate=scale["rate"]),
    )
    prior: NormalNetwork | None = None
    for number, (x, y, _, _) in enumerate(tasks):
        rest = [np.setdiff1d(np.arange(len(y)), rows[number]) for rows in coresets]
        data = Data(x.flatten(1), y, torch.from_numpy(np.stack(rest)))
        if prior is None:
            fit_means(model, data, schedule)
        fit(model, prior, data, schedule)
        prior = copy.deepcopy(model)
    if len(coresets[0][0]):
        before = np.cumsum([0, *(len(y) for _, y, _, _ in tasks)])
        held = [np.concatenate([r + b for r, b in zip(own, before, strict=False)]) for own in coresets]
        x, y = torch.cat([t[0] for t in tasks]).flatten(1), torch.cat([t[1] for t in tasks])
        model = refined(
            model,
            Data(x, y, torch.from_numpy(np.stack(held))),
            Schedule(scale["coreset_epochs"], learning_rate=scale["rate"]),
        )
    return accuracies(model, tasks)


def study(name: str, method: str, tasks: list[Task], scale: dict) -> list[dict]:
    seeds = range(SEEDS[name])
    one = chosen_rows(method, tasks, name, 0) if method.startswith("bilevel") else None  # the same for all seeds
    coresets = [one or chosen_rows(method, tasks, name, seed) for seed in seeds]
    found = learn(tasks, coresets, scale, seeds)
    return [
        {"data": name, "method": method, "seed": seed, "accuracy": value}
        for seed, value in zip(seeds, found, strict=True)
    ]


def schedules(name: str, others: list[Task], scale: dict) -> list[dict]:
    """The accuracy of uniform coresets with every schedule, measured on the tasks' rows for tuning."""
    coresets = [chosen_rows("uniform", others, name, seed) for seed in TUNING_SEEDS]
    return [one | {"tuning": float(np.mean(learn(others, coresets, scale | one, TUNING_SEEDS)))} for one in SCHEDULES]


def main(arguments: Arguments) -> Record:
    scale = {"width": 100, "epochs": 30, "seeds": SEEDS}
    if not arguments.small:
        scale = {"width": 256, "epochs": 120, "coreset_epochs": 200, "rate": 1e-3, "seeds": SEEDS}
    parts = Parts(arguments.out, scale | {"size": arguments.size})
    rows: list[dict] = []
    claims: dict[str, dict] = {}
    for name in arguments.only or ("split", "permuted"):
        per_task, n_test = (1000, 2000) if arguments.small else (12_000, 10_000)
        make = split if name == "split" else permuted
        tasks = make(arguments, n_test, per_task)
        if arguments.small:
            others = make(arguments, n_test, per_task, tuning=True)
            tried = parts.rows(f"{name}, schedules", partial(schedules, name, others, dict(scale)))
            best = max(tried, key=lambda one: one["tuning"])
            scale |= {"rate": best["rate"], "coreset_epochs": best["coreset_epochs"]}
            claims[f"{name}, schedules"] = {"tried": tried, "taken": best}
            say(f"{name}: {claims[f'{name}, schedules']}")
        for method in METHODS:
            own = parts.rows(f"{name}, {method}", partial(study, name, method, tasks, dict(scale)))
            say(f"{name}, {method}: {mean_and_deviation([row['accuracy'] for row in own])}")
            rows += own
    for key in dict.fromkeys((row["data"], row["method"]) for row in rows):
        values = [row["accuracy"] for row in rows if (row["data"], row["method"]) == key]
        claims[", ".join(key)] = mean_and_deviation(values) | {"paper": PAPER.get(", ".join(key))}
    return Record(rows, parts.settings, claims, earlier_seconds=parts.earlier_seconds)


if __name__ == "__main__":
    run("variational_continual", main)
