"""Analytic kernels against Monte Carlo: wide finite networks with random weights, gradients taken by torch.

One small network per layer kind. A finite network of width w has the kernels of the infinite one up to an error of
about 1 / sqrt(w * draws); the tolerances are several times what these seeds show.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from core.kernels import ntk
from core.kernels.networks import AveragePool, Conv, Dense, Flatten, GlobalAveragePool, Layer, Network, Relu, Residual
from core.kernels.plan import same_padding

WIDTH, DRAWS = 192, 24
END: tuple[Layer, ...] = (Flatten(), Dense(1.1, 0.2))
CASES = {
    "convolution": Network("convolution", (Conv(3, 1, 1.3, 0.3), *END)),
    "strided": Network("strided", (Conv(3, 2, 1.2, 0.1), Relu(), Conv(3, 2, 1.4, 0.1), *END)),
    "relu": Network("relu", (Conv(3, 1, 1.5, 0.2), Relu(), Conv(3, 1, 1.4, 0.1), Relu(), *END)),
    "dense": Network("dense", (Flatten(), Dense(1.4, 0.3), Relu(), Dense(1.2, 0.1), Relu(), Dense(1.0, 0.2))),
    "residual": Network("residual", (Conv(3), Residual((Relu(), Conv(3, 1, 1.4)), (Conv(1, 1, 0.8),)), *END)),
    "average pool": Network("average pool", (Conv(3, 1, 1.5), Relu(), AveragePool(2), Conv(3, 1, 1.2), Relu(), *END)),
    "global pool": Network("global pool", (Conv(3, 1, 1.5), Relu(), GlobalAveragePool(), Dense(1.1, 0.2))),
}


class Finite(torch.nn.Module):
    """The network with `WIDTH` channels, in the NTK parameterization, on (C, H, W) inputs; one output."""

    def __init__(self, network: Network, x: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        self.layers, self.generator = network.layers, generator
        self.weights = torch.nn.ParameterList()
        self.cursor = 0
        self.last = max(i for i, layer in enumerate(network.layers) if isinstance(layer, Dense))
        self.forward(x)  # makes the parameters

    def parameter(self, *shape: int) -> Tensor:
        if self.cursor == len(self.weights):
            self.weights.append(torch.randn(*shape, generator=self.generator, dtype=torch.float32))
        self.cursor += 1
        return self.weights[self.cursor - 1]

    def forward(self, x: Tensor) -> Tensor:
        self.cursor = 0
        for position, layer in enumerate(self.layers):
            x = self.apply_layer(layer, x, 1 if position == self.last else WIDTH)
        return x.sum()

    def apply_layer(self, layer: Layer, x: Tensor, width: int) -> Tensor:
        match layer:
            case Conv():
                weight = self.parameter(width, x.shape[0], layer.size, layer.size)
                bias = self.parameter(width)
                (top, bottom), (left, right) = (same_padding(n, layer.size, layer.stride) for n in x.shape[1:])
                padded = torch.nn.functional.pad(x, (left, right, top, bottom))
                scale = layer.W_std / math.sqrt(x.shape[0] * layer.size**2)
                return torch.nn.functional.conv2d(
                    padded[None], scale * weight, layer.b_std * bias, stride=layer.stride
                )[0]
            case Dense():
                weight, bias = self.parameter(width, len(x)), self.parameter(width)
                return layer.W_std / math.sqrt(len(x)) * (weight @ x) + layer.b_std * bias
            case Relu():
                return torch.relu(x)
            case AveragePool():
                return torch.nn.functional.avg_pool2d(x[None], layer.size)[0]
            case Flatten():
                return x.flatten()
            case GlobalAveragePool():
                return x.mean((1, 2))
            case Residual():
                main, shortcut = x, x
                for inner in layer.main:
                    main = self.apply_layer(inner, main, width)
                for inner in layer.shortcut:
                    shortcut = self.apply_layer(inner, shortcut, width)
                return main + shortcut


def empirical_kernels(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """(NTK, NNGP): means over draws of the inner products of gradients in all parameters, and in those of the last
    layer alone (which are its inputs, so that their products are the covariance of the output); x (n, C, H, W)."""
    tangent, output = torch.zeros(len(x), len(x)), torch.zeros(len(x), len(x))
    for draw in range(DRAWS):
        model = Finite(network, x[0], torch.Generator().manual_seed(draw))
        parameters = dict(model.named_parameters())
        gradients = vmap(jacrev(lambda p, one, m=model: functional_call(m, p, (one,))), (None, 0))(parameters, x)
        products = [g.flatten(1) @ g.flatten(1).T for g in gradients.values()]
        tangent += sum(products)
        output += products[-1] + products[-2]
    return tangent / DRAWS, output / DRAWS


@pytest.mark.parametrize("network", CASES.values(), ids=CASES)
def test_both_kernels_are_those_of_wide_random_networks(network: Network) -> None:
    x = np.random.default_rng(3).normal(size=(3, 6, 6, 2)).astype(np.float32)
    tangent, output = empirical_kernels(network, torch.from_numpy(np.moveaxis(x, 3, 1).copy()))
    for kind, sampled in (("ntk", tangent), ("nngp", output)):
        analytic = ntk.kernel(x, None, network, kind)
        np.testing.assert_allclose(sampled.detach().numpy(), analytic, rtol=0.05, atol=0.04 * float(analytic.max()))
