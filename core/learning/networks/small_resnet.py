"""A residual network for two CPU cores: 78 thousand parameters, a training step of tens of milliseconds.

A 5x5 stem of 16 channels with stride 2, one pre-activation block each at 16, 32 and 64 channels, batch normalization,
the mean over positions, one linear layer.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from core.learning.networks.layers import SLOPE, BatchNorm, Convolution, Linear, Network, PreactivationBlock


class SmallResNet(Network):
    def __init__(self, channels: int, n_classes: int) -> None:
        super().__init__()
        self.stem = Convolution(channels, 16, 5, stride=2)
        self.blocks = nn.Sequential(
            PreactivationBlock(16, 16, 1), PreactivationBlock(16, 32, 2), PreactivationBlock(32, 64, 2)
        )
        self.norm = BatchNorm(64)
        self.width = 64
        self.head = Linear(64, n_classes)

    def embed(self, pictures: Tensor) -> Tensor:
        activated = F.leaky_relu(self.norm(self.blocks(self.stem(pictures))), SLOPE)
        return activated.mean(dim=(2, 3))
