"""Transfer of a coreset to other networks (Table 1): chosen with a wide ResNet, trained on two others, CIFAR-10.

    python -m experiments.paper.network_transfer [--only SEED ...] [--size small|full] --out DIR

The coreset is chosen without a proxy: forward selection in batches by the implicit gradient with a stochastic Neumann
series, the network trained from scratch after every batch (`core.coresets.library.stochastic`). Rivals: uniform,
k-center on the last layer of the network trained on all rows, and forgetting events of that training. Each set then
trains a plain convolutional network (VGG's pattern) and one of depthwise separable convolutions (MobileNet's pattern),
and, for comparison, the wide ResNet again, from another start. `outer` is the mean loss over all training rows, which
is the objective of the bilevel coreset for the network that was used to choose it.

The small size: 1,000 pictures at 16 x 16, a coreset of 460 (the paper's share of 46 %) from 100 random rows in batches
of 60, WRN-10-1, networks of 10 to 40 thousand parameters, 150 steps of SGD, no augmentation. The full size: all 4,000
pictures at 32 x 32, WRN-16-4, batches of 250 and 3,000 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

from core.coresets.library.implicit import flat_model
from core.coresets.library.stochastic import NetworkProblem, SeriesConfig, Sgd, sgd
from core.coresets.library.summaries import k_center
from core.coresets.library.variants import forward
from core.learning.networks.layers import draw_weights
from core.learning.networks.registry import NetworkShape, new_network
from experiments.datasets import cifar10
from experiments.record import Arguments, Parts, Record, mean_and_deviation, run
from experiments.replay.forgetting_events import ForgettingEvents

SMALL = {"n": 1000, "coreset": 460, "start": 100, "batch": 60, "source": "wrn-10-1", "steps": 150, "rate": 0.05,
         "terms": 50, "scale": 0.02, "width": 12}  # fmt: skip
FULL = {"n": 4000, "coreset": 1840, "start": 250, "batch": 250, "source": "wrn-16-4", "steps": 3000, "rate": 0.1,
        "terms": 100, "scale": 0.01, "width": 64}  # fmt: skip
PAPER_TARGETS = ("plain", "separable")  # VGG16 and MobileNetV2
PAPER = {
    "uniform": (91.49, 91.71), "k-center, embeddings": (92.72, 92.77), "forgetting": (93.75, 93.80),
    "bilevel": (93.66, 93.65), "all rows": (94.23, 94.46),
}  # fmt: skip


def wide_resnet(name: str, seed: int) -> nn.Module:
    network = new_network(NetworkShape(name=name, channels=3, n_classes=10))
    draw_weights(network, torch.Generator().manual_seed(seed))
    return network


def plain(seed: int, width: int) -> nn.Module:
    """Convolutions of 3 x 3 with pooling after each, then a dense layer."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16 * width, 10))


def separable(seed: int, width: int) -> nn.Module:
    """Depthwise and pointwise convolutions, then the mean over positions."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    for n_in, n_out, stride in ((width, 2 * width, 2), (2 * width, 4 * width, 2), (4 * width, 4 * width, 1)):
        layers += [nn.Conv2d(n_in, n_in, 3, stride, 1, groups=n_in), nn.BatchNorm2d(n_in), nn.ReLU()]
        layers += [nn.Conv2d(n_in, n_out, 1), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


Make = Callable[[int, dict], nn.Module]
TARGETS: dict[str, Make] = {
    "plain": lambda seed, scale: plain(seed, scale["width"]),
    "separable": lambda seed, scale: separable(seed, scale["width"]),
    "wide ResNet": lambda seed, scale: wide_resnet(scale["source"], seed),
}


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def load(arguments: Arguments, n: int, seed: int) -> tuple[Tensor, ...]:
    x, y, xt, yt = (torch.tensor(part) for part in cifar10(arguments.data))
    if arguments.small:
        x, xt = avg_pool2d(x, 2), avg_pool2d(xt, 2)
    rows = torch.from_numpy(np.random.default_rng(seed).permutation(len(y))[:n])
    return x[rows], y[rows], xt, yt


def forgetting_order(model: nn.Module, x: Tensor, y: Tensor, config: Sgd) -> np.ndarray:
    """Rows by forgetting events, counted at every visit of a row during SGD over epochs of all rows."""
    events, generator = ForgettingEvents(len(y)), torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.learning_rate, momentum=config.momentum, nesterov=True,
        weight_decay=config.penalty,
    )  # fmt: skip
    epochs = max(1, config.steps * config.batch // len(y))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(config.batch):
            outputs = model(x[rows])
            events.see(rows, outputs.detach().argmax(1) == y[rows])
            optimizer.zero_grad()
            cross_entropy(outputs, y[rows]).backward()
            optimizer.step()
        schedule.step()
    model.eval()
    return events.order(config.seed)


def chosen_sets(x: Tensor, y: Tensor, scale: dict, seed: int) -> dict[str, np.ndarray]:
    """Rows of every method, and all rows."""
    config = Sgd(steps=scale["steps"], learning_rate=scale["rate"], seed=seed)
    size, shuffled = scale["coreset"], np.random.default_rng(seed + 50).permutation(len(y))
    source = wide_resnet(scale["source"], seed)
    problem = NetworkProblem(
        model=source, inputs=x, targets=y, loss=losses, train=sgd(source, x, y, losses, config),
        series=SeriesConfig(terms=scale["terms"], batch=64, scale=scale["scale"], seed=seed),
    )  # fmt: skip
    bilevel = forward(problem, size, start=shuffled[: scale["start"]].tolist(), batch=scale["batch"]).rows.numpy()
    trained = wide_resnet(scale["source"], seed)
    forgotten = forgetting_order(trained, x, y, config)
    with torch.no_grad():
        embeddings = torch.cat([trained.embed(part) for part in x.split(500)]).double().numpy()  # type: ignore[operator]
    return {
        "bilevel": bilevel, "uniform": shuffled[:size], "k-center, embeddings": k_center(embeddings, size, seed),
        "forgetting": forgotten[:size], "all rows": np.arange(len(y)),
    }  # fmt: skip


def trained_on(make: Make, rows: np.ndarray, data: tuple[Tensor, ...], scale: dict, seed: int) -> dict[str, float]:
    """Test accuracy in % of a fresh network trained on `rows`, and its mean loss over all training rows."""
    x, y, xt, yt = data
    model = make(1000 + seed, scale)
    weights = torch.zeros(len(y))
    weights[torch.from_numpy(rows)] = 1.0
    sgd(model, x, y, losses, Sgd(steps=scale["steps"], learning_rate=scale["rate"], seed=seed))(weights)
    assert torch.isfinite(flat_model(model)[1]).all()
    with torch.no_grad():
        accuracy = float((model(xt).argmax(1) == yt).double().mean())
        return {"accuracy": 100 * accuracy, "outer": float(losses(model(x), y).mean())}


def study(arguments: Arguments, scale: dict, seed: int) -> list[dict]:
    data = load(arguments, scale["n"], seed)
    return [
        {"seed": seed, "method": method, "target": target} | trained_on(make, own, data, scale, seed)
        for method, own in chosen_sets(data[0], data[1], scale, seed).items()
        for target, make in TARGETS.items()
    ]


def main(arguments: Arguments) -> Record:
    scale = SMALL if arguments.small else FULL
    parts = Parts(arguments.out, scale | {"size": arguments.size})
    rows: list[dict] = []
    for seed in [int(name) for name in arguments.only] or range(5):
        rows += parts.rows(f"seed {seed}", partial(study, arguments, scale, seed))
    claims = {}
    for method, target in dict.fromkeys((row["method"], row["target"]) for row in rows):
        own = [row for row in rows if (row["method"], row["target"]) == (method, target)]
        claims[f"{method} -> {target}"] = mean_and_deviation([row["accuracy"] for row in own])
        claims[f"{method} -> {target}"] |= {"outer": mean_and_deviation([row["outer"] for row in own])}
        if target in PAPER_TARGETS:
            claims[f"{method} -> {target}"] |= {"paper": PAPER[method][PAPER_TARGETS.index(target)]}
    return Record(rows, parts.settings, claims, earlier_seconds=parts.earlier_seconds)


if __name__ == "__main__":
    run("network_transfer", main)
