"""Transfer of coresets for two models to a third: single-model against joint coresets, small networks on MNIST.

Models: A, a dense tanh network on pixels; B, a convolutional tanh network; the third, C, is a deeper dense network with
ELU that no selection used. Coresets: forward selection in batches for A, for B, for the sum of both, and alternating
between A and B. Each is evaluated by C's test accuracy when trained on its rows alone, over several initializations.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, cross_entropy

from core.coresets.library.implicit import InverseConfig, supervised
from core.coresets.library.joint import JointProblem, alternate
from core.coresets.library.variants import forward
from experiments.datasets import mnist, rows_per_class
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say

PENALTY = 1e-2


def dense(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(196, 16), nn.Tanh(), nn.Linear(16, 10)).double()


def convolutional(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 6, 5, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(150, 10)).double()


def third(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(196, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 10)
    ).double()


def load(arguments: Arguments, n: int, seed: int):
    """Digits at 14 x 14: n for the selection, 2,000 for the test."""
    x, y, xt, yt = mnist(arguments.data)
    chosen = rows_per_class(y, n // 10, seed)
    pooled = [avg_pool2d(torch.tensor(a)[:, None].double(), 2) for a in (x[chosen], xt[:2000])]
    return pooled[0], torch.tensor(y[chosen]), pooled[1], torch.tensor(yt[:2000])


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
    for _ in range(150):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def score(make, x, y, xt, yt, trials: int) -> float:
    models = [train(make(100 + trial), x, y) for trial in range(trials)]
    with torch.no_grad():
        return float(np.mean([float((model(xt).argmax(1) == yt).double().mean()) for model in models]))


def study(arguments: Arguments, scale: dict, seed: int) -> list[dict]:
    x, y, xt, yt = load(arguments, scale["n"], seed)
    settings = {
        "penalty": PENALTY, "mean": True, "solver_tolerance": 1e-4, "solver_steps": scale["inner_steps"],
        "inverse": InverseConfig(tolerance=1e-2, max_steps=20, damping=1e-2),
    }  # fmt: skip
    A, B = (supervised(make(seed), x, y, losses, **settings) for make in (dense, convolutional))
    start = rows_per_class(y.numpy(), 1, seed).tolist()
    size, batch = scale["coreset"], scale["batch"]
    chosen = {
        "A alone": forward(A, size, start=start, batch=batch).rows,
        "B alone": forward(B, size, start=start, batch=batch).rows,
        "joint, sum": forward(JointProblem([A, B]), size, start=start, batch=batch).rows,
        "joint, alternating": alternate([A, B], size, start=start, batch=batch).rows,
        "uniform, balanced": torch.tensor(rows_per_class(y.numpy(), size // 10, seed + 50)),
    }
    rows = []
    for method, own in chosen.items():
        for name, make in (("A", dense), ("B", convolutional), ("C (unseen)", third)):
            found = score(make, x[own], y[own], xt, yt, scale["trials"])
            rows.append({"seed": seed, "coreset": method, "model": name, "accuracy": 100 * found})
    return rows


def gain(rows: list[dict], joint: str) -> dict[str, float]:
    """The gain in C's accuracy of a joint coreset over the mean of the two single ones, by seed."""
    by = {(row["coreset"], row["seed"]): row["accuracy"] for row in rows if row["model"] == "C (unseen)"}
    seeds = sorted({row["seed"] for row in rows})
    found = [by[joint, seed] - (by["A alone", seed] + by["B alone", seed]) / 2 for seed in seeds]
    return {"mean": float(np.mean(found)), "standard_error": float(np.std(found, ddof=1) / np.sqrt(len(found)))}


def main(arguments: Arguments) -> Record:
    scale = {"n": 400, "coreset": 50, "batch": 4, "inner_steps": 20, "trials": 4, "seeds": 28}
    if not arguments.small:
        scale = {"n": 2000, "coreset": 100, "batch": 1, "inner_steps": 100, "trials": 5, "seeds": 5}
    rows: list[dict] = []
    for seed in range(scale["seeds"]):
        rows += study(arguments, scale, seed)
        say(f"seed {seed} done")
    claims: dict[str, dict] = {}
    for coreset in dict.fromkeys(row["coreset"] for row in rows):
        for model in ("A", "B", "C (unseen)"):
            own = [r["accuracy"] for r in rows if r["coreset"] == coreset and r["model"] == model]
            claims[f"{coreset} -> {model}"] = mean_and_deviation(own)
    for joint in ("joint, sum", "joint, alternating"):
        claims[f"{joint}, gain over one model"] = gain(rows, joint)
    places = {name: k for k, name in enumerate(("A", "B", "C (unseen)"))}
    figure = curves([{**row, "place": places[row["model"]]} for row in rows], "place", "accuracy", by="coreset",
                    title="Coresets for one model, trained with another")  # fmt: skip
    figure.update_xaxes(tickvals=list(places.values()), ticktext=list(places), title="trained model")
    return Record(rows, scale | {"penalty": PENALTY}, claims, figure)


if __name__ == "__main__":
    run("joint_transfer", main)
