"""The networks and kernels of the replay and streaming experiments on MNIST and CIFAR-10."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from core.kernels.networks import fnn, scnn
from core.kernels.ntk import kernel

PENALTY = 2e-3  # of the kernel proxy: 1e-3 |W|^2 in the authors' code, here PENALTY / 2 |W|^2; the paper states none


def dropped(x: Tensor, p: float) -> Tensor:
    """Dropout with four decisions from each random number, which torch draws for every one; p in steps of 1 / 65536."""
    if p == 0:
        return x
    draws = torch.empty(x.numel() // 4 + 1, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = draws[: x.numel()].view(x.shape) >= round(p * 65536) - 32768
    return x * (kept / (1 - p))


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return dropped(x, self.p) if self.training else x


class Dense(nn.Module):
    """784-100-100-10 with dropout 0.2: the paper's network for permuted MNIST. Small sizes have 196 inputs."""

    def __init__(self, width: int = 100, inputs: int = 784) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, width), nn.ReLU(), Dropout(0.2),
            nn.Linear(width, width), nn.ReLU(), Dropout(0.2),
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class CoarseDense(Dense):
    """The same for pictures of 14 x 14."""

    def __init__(self) -> None:
        super().__init__(inputs=196)


class Convolutional(nn.Module):
    """Two 5 x 5 convolutions with pooling, then a dense layer; channels (32, 64) and 128 units are the paper's.

    `picture` is (channels, side length) of the inputs.
    """

    def __init__(
        self,
        channels: tuple[int, int] = (32, 64),
        width: int = 128,
        dropout: float = 0.5,
        picture: tuple[int, int] = (1, 28),
    ) -> None:
        super().__init__()
        side = ((picture[1] - 4) // 2 - 4) // 2
        self.body = nn.Sequential(
            nn.Conv2d(picture[0], channels[0], 5), Dropout(dropout), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels[0], channels[1], 5), Dropout(dropout), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(side * side * channels[1], width), Dropout(dropout), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def dense_ntk(x: Tensor) -> Tensor:
    """(n, n) neural tangent kernel of a wide dense network on flattened rows."""
    side = math.isqrt(x[0].numel())
    return kernel(x.reshape(len(x), side, side, 1).double(), None, fnn())


def convolutional_ntk(x: Tensor) -> Tensor:
    """(n, n) the same for two 5 x 5 convolutions and a dense layer, all wide."""
    return torch.from_numpy(kernel(x.reshape(len(x), 28, 28, 1).float().numpy(), None, scnn())).double()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float(torch.cat([model(part).argmax(1) for part in x.split(2000)]).eq(y).double().mean())
