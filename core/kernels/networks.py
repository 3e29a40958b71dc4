"""Networks as data: frozen layers that both kernel paths read. This module has no computation and imports no torch.

A network is a tuple of layers from the image (n, H, W, C) to one output. Weights follow the NTK parameterization: a
layer computes W_std / sqrt(fan-in) * (weights . inputs) + b_std * bias with standard normal weights and biases. ReLU
has no factor of two; include sqrt(2) in W_std to preserve the variance.

Position-diagonal or full: a network with `Flatten` directly after its convolutions needs only the covariance of equal
positions, O(pixels) per pair. Pooling mixes positions, so `AveragePool` and `GlobalAveragePool` need pairs of
positions, O(pixels^2) per pair: see `needs_position_pairs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from core.errors import InvalidInput

Pooling = Literal["flatten", "gap", "gap-fast"]
SQRT2 = math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Conv:
    """size x size convolution with SAME zero padding (of an odd total, the larger part is at the end)."""

    size: int
    stride: int = 1
    W_std: float = 1.0
    b_std: float = 0.0


@dataclass(frozen=True, slots=True)
class Dense:
    """Fully connected; only after `Flatten` or `GlobalAveragePool`."""

    W_std: float = 1.0
    b_std: float = 0.0


@dataclass(frozen=True, slots=True)
class Relu:
    """max(0, x)."""


@dataclass(frozen=True, slots=True)
class AveragePool:
    """Mean over size x size blocks; rows and columns that do not fill a block are left out."""

    size: int = 2


@dataclass(frozen=True, slots=True)
class Flatten:
    """Concatenation of all positions: the covariance becomes the mean over equal positions."""


@dataclass(frozen=True, slots=True)
class GlobalAveragePool:
    """The mean over positions: the covariance becomes the mean over all pairs of positions."""


@dataclass(frozen=True, slots=True)
class QuadratureAveragePool(GlobalAveragePool):
    """`GlobalAveragePool` by Bayesian quadrature (`core.kernels.quadrature`): only the offsets between two positions
    that are most informative about the mean are computed, with weights. They cover `share` of the pairs of positions.
    Sides of at most `exact_below` positions are computed exactly. Not with `AveragePool`, which mixes offsets."""

    share: float = 0.045
    exact_below: int = 16


@dataclass(frozen=True, slots=True)
class Residual:
    """main(x) + shortcut(x); an empty shortcut is the identity. Both contain only `Conv`, `Relu` and `Residual`."""

    main: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


Layer = Conv | Dense | Relu | AveragePool | Flatten | GlobalAveragePool | Residual


@dataclass(frozen=True, slots=True)
class Network:
    """Layers in order. `name` is for display; `identity()` identifies the kernel."""

    name: str
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        bridges = [i for i, layer in enumerate(self.layers) if isinstance(layer, Flatten | GlobalAveragePool)]
        if len(bridges) != 1:
            raise InvalidInput(f"Network {self.name!r} has {len(bridges)} of Flatten and GlobalAveragePool; use one.")
        spatial, tail = self.layers[: bridges[0]], self.layers[bridges[0] + 1 :]
        if not all(isinstance(layer, Dense | Relu) for layer in tail):
            raise InvalidInput(f"Network {self.name!r}: only Dense and Relu may follow Flatten or GlobalAveragePool.")
        if any(isinstance(layer, Dense) for layer in spatial):
            raise InvalidInput(f"Network {self.name!r}: Dense must follow Flatten or GlobalAveragePool.")
        if isinstance(self.layers[bridges[0]], QuadratureAveragePool) and any(
            isinstance(x, AveragePool) for x in spatial
        ):
            raise InvalidInput(
                f"Network {self.name!r}: AveragePool mixes offsets, so QuadratureAveragePool cannot end it."
            )
        for layer in spatial:
            _check_residual(self.name, layer)

    @property
    def bridge(self) -> int:
        """Position of the `Flatten` or `GlobalAveragePool` layer."""
        return next(i for i, layer in enumerate(self.layers) if isinstance(layer, Flatten | GlobalAveragePool))

    @property
    def needs_position_pairs(self) -> bool:
        return any(isinstance(layer, AveragePool | GlobalAveragePool) for layer in self.layers)

    def identity(self) -> str:
        """A text that is the same for equal layers and settings, whatever the name."""
        return repr(self.layers)


@dataclass(frozen=True, slots=True)
class Rbf:
    """exp(-gamma |x - x'|^2) on flattened inputs; gamma None means one over the number of inputs."""

    gamma: float | None = None
    name: str = "rbf"

    def identity(self) -> str:
        return f"Rbf(gamma={self.gamma})"


@dataclass(frozen=True, slots=True)
class Linear:
    """<x, x'> / number of inputs."""

    name: str = "linear"

    def identity(self) -> str:
        return "Linear()"


AnyNetwork = Network | Rbf | Linear


def _check_residual(name: str, layer: Layer) -> None:
    if not isinstance(layer, Residual):
        return
    for inner in layer.main + layer.shortcut:
        if not isinstance(inner, Conv | Relu | Residual):
            raise InvalidInput(f"Network {name!r}: a Residual holds Conv, Relu and Residual, not {inner}.")
        _check_residual(name, inner)
    if _stride(layer.main) != _stride(layer.shortcut):
        raise InvalidInput(f"Network {name!r}: main path and shortcut of a Residual differ in stride.")


def _stride(layers: tuple[Layer, ...]) -> int:
    strides = [_stride(x.main) if isinstance(x, Residual) else x.stride if isinstance(x, Conv) else 1 for x in layers]
    return math.prod(strides)


def _bridge(pooling: Pooling) -> Layer:
    bridges: dict[str, Layer] = {"flatten": Flatten(), "gap": GlobalAveragePool(), "gap-fast": QuadratureAveragePool()}
    if pooling not in bridges:
        raise InvalidInput(f"Pooling is {pooling!r}; choose one of {', '.join(bridges)}.")
    return bridges[pooling]


def fnn() -> Network:
    """Two hidden layers on the flattened input."""
    dense = Dense(1.0, 0.05)
    return Network("fnn", (Flatten(), dense, Relu(), dense, Relu(), dense))


def scnn() -> Network:
    """Two 5x5 convolutions and one hidden dense layer."""
    conv, dense = Conv(5, 1, 1.0, 0.05), Dense(1.0, 0.05)
    return Network("scnn", (conv, Relu(), conv, Relu(), Flatten(), dense, Relu(), dense))


def wrn(block_size: int = 4, pooling: Pooling = "flatten") -> Network:
    """Wide residual network: three groups of `block_size` pre-activation blocks at strides 1, 2, 2."""
    if block_size < 1:
        raise InvalidInput(f"The block size is {block_size}; use at least 1.")
    layers: list[Layer] = [Conv(3)]
    for group_stride in (1, 2, 2):
        for block in range(block_size):
            stride = group_stride if block == 0 else 1
            main = (Relu(), Conv(3, stride), Relu(), Conv(3))
            layers.append(Residual(main, (Conv(3, stride),) if block == 0 else ()))
    return Network("wrn", (*layers, _bridge(pooling), Dense()))


def cntk6(pooling: Pooling = "flatten") -> Network:
    """Six 3x3 convolutions that preserve the variance."""
    return Network("cntk6", (*(Conv(3, 1, SQRT2), Relu()) * 6, _bridge(pooling), Dense()))


def myrtle5() -> Network:
    """Four 3x3 convolutions with average pooling, then the mean over the remaining positions.

    Repeated 2x2 pooling down to one position equals this mean if the side is a power of two. With the mean, the network
    is defined for every size.
    """
    conv: tuple[Layer, ...] = (Conv(3, 1, SQRT2), Relu())
    layers = (*conv, *conv, AveragePool(2), *conv, AveragePool(2), *conv)
    return Network("myrtle5", (*layers, GlobalAveragePool(), Dense(SQRT2)))


def rbf(gamma: float | None = None) -> Rbf:
    if gamma is not None and gamma <= 0:
        raise InvalidInput(f"gamma is {gamma}; it must be above 0.")
    return Rbf(gamma)


def linear() -> Linear:
    return Linear()


_BY_NAME: dict[str, Callable[[int], AnyNetwork]] = {
    "scnn": lambda block_size: scnn(),
    "fnn": lambda block_size: fnn(),
    "wrn": lambda block_size: wrn(block_size),
    "wrn-gap": lambda block_size: wrn(block_size, "gap"),
    "cntk6": lambda block_size: cntk6(),
    "cntk6-gap": lambda block_size: cntk6("gap"),
    "cntk6-gap-fast": lambda block_size: cntk6("gap-fast"),
    "myrtle5": lambda block_size: myrtle5(),
    "rbf": lambda block_size: rbf(),
    "linear": lambda block_size: linear(),
}
NAMES: tuple[str, ...] = tuple(_BY_NAME)


def by_name(name: str, *, block_size: int = 4) -> AnyNetwork:
    """The network with this name in the settings. Names with "-gap" have global average pooling, those with "-gap-fast"
    its quadrature. Only wrn reads `block_size`."""
    if name not in _BY_NAME:
        raise InvalidInput(f"There is no network called {name!r}; choose one of {', '.join(NAMES)}.")
    return _BY_NAME[name](block_size)
