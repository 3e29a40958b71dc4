"""Variational continual learning with coresets (Table 4; Nguyen, Li, Bui and Turner, 2018), single head.

    python -m experiments.replay.variational_continual [--only split permuted] [--size small|full] --out DIR

A dense network with independent normal weights. Task t: 20 of its rows are put aside as its coreset C_t; the
posterior q_t is fitted to the other rows with q_{t-1} as prior (mean loss + KL(q_t | q_{t-1}) / n). For predictions,
a copy of q_t is fitted to the coresets of all tasks so far with q_t as prior; the copy is not passed on. Coresets:
bilevel with the tangent kernel and with the RBF kernel (Table 10), uniform, k-center on the pixels; "without
coresets" predicts with q_t.

Means start at a network trained by maximum likelihood on the first task, variances at e^-6, the first prior is N(0,
1), as in the authors' code. Losses use one draw by local reparameterization (Kingma et al., 2015) in place of ten
draws of the weights; predictions average the probabilities of ten. The full size is the paper's network, 256 units a
layer, and all rows of a task; the small size 100 units and 1,000 rows a task.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from core.coresets.library.linear import one_hot
from core.coresets.library.replay import bilevel_summary
from core.coresets.library.summaries import k_center
from experiments.record import Arguments, Record, mean_and_deviation, run, say
from experiments.replay.continual import PENALTIES, Task, permuted, split
from experiments.replay.digit_networks import dense_ntk
from experiments.replay.replay_memories import rbf

PER_TASK, DRAWS, LOG_VARIANCE = 20, 10, -6.0
METHODS = ("without coresets", "uniform", "k-center", "bilevel", "bilevel RBF")
PAPER = {
    "split, k-center": 65.71, "split, uniform": 80.06, "split, bilevel": 84.62, "split, bilevel RBF": 82.21,
    "permuted, k-center": 85.33, "permuted, uniform": 84.96, "permuted, bilevel": 86.11, "permuted, bilevel RBF": 86.16,
}  # fmt: skip


class NormalLayer(nn.Module):
    """A dense layer with independent normal weights and biases."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        start = nn.Linear(n_in, n_out)
        self.mean = nn.Parameter(torch.cat([start.weight, start.bias[:, None]], 1).detach())  # (n_out, n_in + 1)
        self.log_variance = nn.Parameter(torch.full_like(self.mean, LOG_VARIANCE))

    def forward(self, x: Tensor, sample: bool = True) -> Tensor:
        """The output for weights drawn anew for every row: its mean and variance are known, so it is drawn itself."""
        mean = linear(x, self.mean[:, :-1], self.mean[:, -1])
        if not sample:
            return mean
        spread = self.log_variance.exp()
        variance = linear(x.square(), spread[:, :-1], spread[:, -1])
        return mean + variance.clamp_min(1e-16).sqrt() * torch.randn_like(mean)


class NormalNetwork(nn.Module):
    """784 - width - width - 10 with ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([NormalLayer(784, width), NormalLayer(width, width), NormalLayer(width, 10)])

    def forward(self, x: Tensor, sample: bool = True) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, sample))
        return self.layers[-1](x, sample)

    def divergence(self, prior: NormalNetwork | None) -> Tensor:
        """KL(this | prior); the standard normal where there is none."""
        total = torch.zeros(())
        for k, layer in enumerate(self.layers):
            mean = torch.zeros(()) if prior is None else prior.layers[k].mean.detach()
            log_variance = torch.zeros(()) if prior is None else prior.layers[k].log_variance.detach()
            ratio = (layer.log_variance - log_variance).exp()
            shift = (layer.mean - mean).square() / log_variance.exp()
            total = total + 0.5 * (ratio + shift - 1 - layer.log_variance + log_variance).sum()
        return total


@dataclass(frozen=True)
class Schedule:
    """Adam."""

    epochs: int
    batch: int = 256
    learning_rate: float = 1e-3


def fit(model: NormalNetwork, prior: NormalNetwork | None, x: Tensor, y: Tensor, schedule: Schedule) -> None:
    """Minimize the mean loss + KL(model | prior) / n in place."""
    optimizer = torch.optim.Adam(model.parameters(), lr=schedule.learning_rate)
    for _ in range(schedule.epochs):
        for rows in torch.randperm(len(y)).split(schedule.batch):
            loss = cross_entropy(model(x[rows]), y[rows]) + model.divergence(prior) / len(y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def fit_means(model: NormalNetwork, x: Tensor, y: Tensor, schedule: Schedule) -> None:
    """Maximum likelihood for the means, as the start of the first task."""
    optimizer = torch.optim.Adam([layer.mean for layer in model.layers], lr=schedule.learning_rate)
    for _ in range(schedule.epochs):
        for rows in torch.randperm(len(y)).split(schedule.batch):
            optimizer.zero_grad()
            cross_entropy(model(x[rows], sample=False), y[rows]).backward()
            optimizer.step()


def refined(model: NormalNetwork, x: Tensor, y: Tensor, schedule: Schedule) -> NormalNetwork:
    """A copy, fitted to the coresets with `model` as prior."""
    own = copy.deepcopy(model)
    fit(own, model, x, y, schedule)
    return own


def accuracy(model: NormalNetwork, tasks: list[Task]) -> float:
    """Mean over tasks in %, with probabilities averaged over draws."""
    found = []
    with torch.no_grad():
        for _, _, xt, yt in tasks:
            mean = sum(torch.softmax(model(xt), 1) for _ in range(DRAWS))
            found.append(float((mean.argmax(1) == yt).double().mean()))
    return 100 * float(np.mean(found))


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


def learn(tasks: list[Task], coresets: list[np.ndarray], scale: dict, seed: int) -> float:
    torch.manual_seed(seed)
    model, schedule = NormalNetwork(scale["width"]), Schedule(scale["epochs"])
    prior: NormalNetwork | None = None
    for (x, y, _, _), rows in zip(tasks, coresets, strict=True):
        rest = np.setdiff1d(np.arange(len(y)), rows)
        if prior is None:
            fit_means(model, x[rest], y[rest], schedule)
        fit(model, prior, x[rest], y[rest], schedule)
        prior = copy.deepcopy(model)
    held = [(x[rows], y[rows]) for (x, y, _, _), rows in zip(tasks, coresets, strict=True) if len(rows)]
    if held:
        inputs, labels = (torch.cat(part) for part in zip(*held, strict=True))
        model = refined(model, inputs, labels, Schedule(scale["coreset_epochs"]))
    return accuracy(model, tasks)


def main(arguments: Arguments) -> Record:
    scale = {"width": 100, "epochs": 60, "coreset_epochs": 200, "seeds": 5}
    if not arguments.small:
        scale = {"width": 256, "epochs": 120, "coreset_epochs": 200, "seeds": 5}
    rows = []
    for name in arguments.only or ("split", "permuted"):
        per_task = 1000 if arguments.small else 12_000
        make = split if name == "split" else permuted
        tasks = make(arguments, 2000 if arguments.small else 10_000, per_task)
        for method in METHODS:
            for seed in range(scale["seeds"]):
                if seed == 0 or not method.startswith("bilevel"):
                    coresets = chosen_rows(method, tasks, name, seed)
                found = learn(tasks, coresets, scale, seed)
                rows.append({"data": name, "method": method, "seed": seed, "accuracy": found})
            own = [r["accuracy"] for r in rows if (r["data"], r["method"]) == (name, method)]
            say(f"{name}, {method}: {np.mean(own):.2f} +- {np.std(own):.2f}")
    claims = {}
    for key in dict.fromkeys((row["data"], row["method"]) for row in rows):
        own = [row["accuracy"] for row in rows if (row["data"], row["method"]) == key]
        claims[", ".join(key)] = mean_and_deviation(own) | {"paper": PAPER.get(", ".join(key))}
    return Record(rows, scale | {"size": arguments.size}, claims)


if __name__ == "__main__":
    run("variational_continual", main)
