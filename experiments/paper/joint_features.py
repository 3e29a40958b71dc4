"""Coresets for two models with different features, evaluated by training other networks on them.

Two models on digits of MNIST: A has coarse pixels as features (means over 4 x 4 pixels), B has edges (means of absolute
differences to the neighbors, across and down). Both are softmax regression. Coresets are built one row at a time for A,
for B, for the sum of both and alternating; each is evaluated with networks on all pixels: C, a dense one; D, a
convolutional one with pooling; E, a convolution and a dense layer.

`experiments.paper.joint_transfer` does the same with two networks on the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from core.coresets.library.joint import JointProblem, alternate
from core.coresets.library.linear import SoftmaxProblem, one_hot
from core.coresets.library.variants import forward
from experiments.datasets import mnist, rows_per_class
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

PENALTY = 2e-3
FIRST_SEED = 100  # lower seeds were used during development
SMALL = {"n": 500, "coreset": 40, "trainings": 3, "seeds": 24}
FULL = {"n": 2000, "coreset": 100, "trainings": 5, "seeds": 24}


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ELU(), nn.Linear(100, 100), nn.ELU(), nn.Linear(100, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ELU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ELU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def both() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ELU(), nn.Flatten(), nn.Linear(1152, 64), nn.ELU(), nn.Linear(64, 10)
    )


UNSEEN: dict[str, Callable[[], nn.Module]] = {"C, dense": dense, "D, convolutional": convolutional, "E, both": both}


def coarse(x: Tensor) -> Tensor:
    """(n, 49) of pictures (n, 1, 28, 28)."""
    return avg_pool2d(x, 4).flatten(1)


def edges(x: Tensor) -> Tensor:
    """(n, 162): 9 x 9 positions, across and down, minus their mean over the rows."""
    across = (x[..., 1:-1, 2:] - x[..., 1:-1, :-2]).abs()
    down = (x[..., 2:, 1:-1] - x[..., :-2, 1:-1]).abs()
    found = torch.cat([avg_pool2d(part, 3, ceil_mode=True).flatten(1) for part in (across, down)], 1)
    return found - found.mean(0)


def problem(features: Tensor, labels: Tensor) -> SoftmaxProblem:
    """Softmax regression on features scaled to a mean square length of 1."""
    scaled = features.double() / features.double().square().sum(1).mean().sqrt()
    return SoftmaxProblem(features=scaled, targets=one_hot(labels, 10), penalty=PENALTY, mean=True, tolerance=1e-4)


def most_influential(model: SoftmaxProblem) -> int:
    """The row with the largest influence on a model without training data."""
    untrained = torch.zeros(10, model.features.shape[1], dtype=torch.float64)
    return int(model.influence(untrained, torch.zeros(model.n_rows)).scores.argmax())


def trained_accuracy(make: Callable[[], nn.Module], seed: int, own: tuple, test: tuple) -> float:
    torch.manual_seed(seed)
    network = make()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(network(own[0]), own[1]).backward()
        optimizer.step()
    with torch.no_grad():
        return 100 * float((network(test[0]).argmax(1) == test[1]).double().mean())


def study(arguments: Arguments, scale: dict[str, int], seed: int) -> list[dict]:
    x, y, xt, yt = mnist(arguments.data)
    test = torch.tensor(xt[:2000])[:, None], torch.tensor(yt[:2000])
    chosen = rows_per_class(y, scale["n"] // 10, seed)
    pictures, labels = torch.tensor(x[chosen])[:, None], torch.tensor(y[chosen])
    A, B = problem(coarse(pictures), labels), problem(edges(pictures), labels)
    start, size = [most_influential(A)], scale["coreset"]
    coresets = {
        "for A": forward(A, size, start=start).rows,
        "for B": forward(B, size, start=start).rows,
        "joint, sum": forward(JointProblem([A, B]), size, start=start).rows,
        "joint, in turn": alternate([A, B], size, start=start).rows,
        "uniform, balanced": torch.tensor(rows_per_class(labels.numpy(), size // 10, seed + 50)),
    }
    rows = []
    for name, own in coresets.items():
        for network, make in UNSEEN.items():
            part = (pictures[own], labels[own])
            found = [trained_accuracy(make, trial, part, test) for trial in range(scale["trainings"])]
            rows.append({"seed": seed, "coreset": name, "network": network, "accuracy": float(np.mean(found))})
    return rows


def leads(rows: list[dict], joint: str) -> dict[str, dict[str, float]]:
    """The lead in accuracy of a joint coreset over each single one: mean over seeds and standard error."""
    by = {(row["coreset"], row["network"], row["seed"]): row["accuracy"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    gains = {}
    for network in UNSEEN:
        for single in ("for A", "for B"):
            gaps = [by[joint, network, seed] - by[single, network, seed] for seed in seeds]
            error = float(np.std(gaps, ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else float("nan")
            gains[f"{network}, over {single}"] = {"mean": float(np.mean(gaps)), "standard_error": error}
    return gains


def main(arguments: Arguments) -> Record:
    scale = SMALL if arguments.small else FULL
    rows: list[dict] = []
    for seed in range(FIRST_SEED, FIRST_SEED + scale["seeds"]):
        rows += study(arguments, scale, seed)
        say(f"seed {seed} done")
    claims: dict = {
        f"{coreset} -> {network}": mean_and_deviation(
            [row["accuracy"] for row in rows if (row["coreset"], row["network"]) == (coreset, network)]
        )
        for coreset in dict.fromkeys(row["coreset"] for row in rows)
        for network in UNSEEN
    }
    claims |= {f"lead of {joint}": leads(rows, joint) for joint in ("joint, sum", "joint, in turn")}
    places = {name: k for k, name in enumerate(UNSEEN)}
    figure = curves([{**row, "place": places[row["network"]]} for row in rows], "place", "accuracy", by="coreset",
                    title="Coresets for two sets of features, evaluated with other networks")  # fmt: skip
    figure.update_xaxes(tickvals=list(places.values()), ticktext=list(places), title="trained network")
    return Record(rows, scale | {"penalty": PENALTY}, claims, figure)


if __name__ == "__main__":
    run("joint_features", main)
