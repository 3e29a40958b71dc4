"""Wide residual networks (Zagoruyko and Komodakis, 2016): WRN-depth-width.

A 3x3 stem of 16 channels, three groups of (depth - 4) / 6 pre-activation blocks at 16, 32 and 64 times `width` channels
(the second and third group halve the resolution), batch normalization, the mean over positions, one linear layer.
WRN-28-10 has 36.5 million parameters.

Departures and details: LeakyReLU with slope 0.1 in place of ReLU, and no dropout, as in the code of MixMatch's authors.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from core.errors import InvalidInput
from core.learning.networks.layers import SLOPE, BatchNorm, Convolution, Linear, Network, PreactivationBlock


class WideResNet(Network):
    def __init__(self, depth: int, width: int, channels: int, n_classes: int) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise InvalidInput(f"A wide ResNet of depth {depth} does not exist; use 10, 16, 22, 28 and so on.")
        if width < 1:
            raise InvalidInput(f"A wide ResNet of width {width} does not exist; use 1 or more.")
        n_blocks = (depth - 4) // 6
        blocks: list[nn.Module] = []
        n_in = 16
        for group, n_out in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(n_blocks):
                blocks.append(PreactivationBlock(n_in, n_out, stride=2 if group and not block else 1))
                n_in = n_out
        self.stem = Convolution(channels, 16, 3)
        self.blocks = nn.Sequential(*blocks)
        self.norm = BatchNorm(n_in)
        self.width = n_in
        self.head = Linear(n_in, n_classes)

    def embed(self, pictures: Tensor) -> Tensor:
        activated = F.leaky_relu(self.norm(self.blocks(self.stem(pictures))), SLOPE)
        return activated.mean(dim=(2, 3))
