"""The layers of both networks, and their common interface.

Weights are drawn on the host from an explicit generator (`draw_weights`), so every device starts from the same ones and
the global generator is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.learning.distributed import World, sum_over_processes
from core.runtime import in_float32

SLOPE = 0.1  # of LeakyReLU
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Network(nn.Module):
    """(B, C, H, W) -> logits (B, n_classes); `embed` gives the last layer's input (B, width)."""

    width: int
    head: nn.Linear

    def embed(self, pictures: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not implement embed")

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(pictures))
        return logits


class Convolution(nn.Conv2d):
    """Without bias; weights are drawn by `draw_weights`."""

    def __init__(self, n_in: int, n_out: int, size: int, stride: int = 1) -> None:
        super().__init__(n_in, n_out, size, stride=stride, padding=size // 2, bias=False)

    def reset_parameters(self) -> None:
        """Do nothing: `draw_weights` initializes the weights."""


class Linear(nn.Linear):
    """Weights are drawn by `draw_weights`."""

    def reset_parameters(self) -> None:
        """Do nothing: `draw_weights` initializes the weights."""


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization whose statistics are those of the whole batch, across all processes.

    The variance is the mean of squared deviations, in float32: E[x^2] - mean^2 loses all digits in half precision when
    the mean is large."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or World.current().size == 1:
            return super().forward(input)
        return self._across_processes(input, World.current().size).to(input.dtype)

    @in_float32
    def _across_processes(self, input: Tensor, size: int) -> Tensor:
        mean = sum_over_processes(input.mean(dim=(0, 2, 3))) / size
        centered = input - mean[:, None, None]
        variance = sum_over_processes(centered.square().mean(dim=(0, 2, 3))) / size
        count = input.numel() / input.shape[1] * size
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        normalized = centered * (variance + self.eps).rsqrt()[:, None, None]
        scaled: Tensor = normalized * self.weight[:, None, None] + self.bias[:, None, None]
        return scaled

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        momentum = 0.1 if self.momentum is None else self.momentum
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


@contextmanager
def kept_statistics(network: nn.Module) -> Iterator[None]:
    """Batch normalization normalizes as in training but does not update its running statistics."""
    layers = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


class PreactivationBlock(nn.Module):
    """x + conv(act(bn(conv(act(bn(x)))))); where the shape changes, the shortcut is a 1x1 convolution of act(bn(x))."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = BatchNorm(n_in), BatchNorm(n_out)
        self.conv1 = Convolution(n_in, n_out, 3, stride)
        self.conv2 = Convolution(n_out, n_out, 3)
        self.shortcut = Convolution(n_in, n_out, 1, stride) if n_in != n_out or stride != 1 else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.leaky_relu(self.norm1(x), SLOPE)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        inner: Tensor = self.conv2(F.leaky_relu(self.norm2(self.conv1(activated)), SLOPE))
        return shortcut + inner


def draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """He et al.: convolutions N(0, 2 / fan_out); linear layers N(0, 1 / fan_in), bias 0; norms 1 and 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5, generator=generator)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
            nn.init.zeros_(module.bias)


def to_device(network: AnyModule, device: torch.device) -> AnyModule:
    """The network on the device in channels-last layout, the fastest for convolutions. Supports fake tensors."""
    for module in network.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.detach().to(device)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            moved = parameter.detach().to(device)
            if moved.dim() == 4:
                moved = moved.to(memory_format=torch.channels_last)
            module._parameters[name] = nn.Parameter(moved)
    return network
