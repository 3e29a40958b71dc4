"""Kernels of infinitely wide networks, layer by layer, in torch: any device and floating type, batched over pairs.

K  covariance of the outputs of an infinitely wide network (NNGP); T  its neural tangent kernel.
    convolution  K <- W^2 mean_window(K) + b^2,  T <- K_new + W^2 mean_window(T); both positions shift together
    dense        K <- W^2 K + b^2,               T <- K_new + W^2 T
    ReLU         K <- (sin(theta) + (pi - theta) cos(theta)) sqrt(v v') / (2 pi),  T <- T (pi - theta) / (2 pi)
    with v, v' the variances of both items at their positions and cos(theta) = K / sqrt(v v').

Positions: none after flattening; (H, W) in the position-diagonal mode; (H, W, H, W) in the full mode, the first two of
item 1 and the last two of item 2. Variances are covariances of an item with itself in the same mode.

This implementation follows the equations literally and is the reference for the fused one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.errors import InvalidInput
from core.kernels.networks import AveragePool, Conv, Dense, Flatten, GlobalAveragePool, Layer, Relu, Residual
from core.kernels.plan import same_padding


@dataclass(frozen=True, slots=True)
class Covariance:
    """K and T for all pairs, and K of each item with itself."""

    K: Tensor  # (n1, n2, *positions)
    T: Tensor  # (n1, n2, *positions)
    own1: Tensor  # (n1, *positions)
    own2: Tensor  # (n2, *positions)


def input_covariance(x1: Tensor, x2: Tensor, full: bool) -> Covariance:
    """The covariance of images (n, H, W, C): inner products over channels, divided by C, per (pair of) positions."""
    channels = x1.shape[3]
    if full:
        K = torch.einsum("ahwc,bijc->abhwij", x1, x2) / channels
        own1, own2 = (torch.einsum("ahwc,aijc->ahwij", x, x) / channels for x in (x1, x2))
    else:
        K = torch.einsum("ahwc,bhwc->abhw", x1, x2) / channels
        own1, own2 = ((x * x).sum(3) / channels for x in (x1, x2))
    return Covariance(K, torch.zeros_like(K), own1, own2)


def flat_covariance(x1: Tensor, x2: Tensor) -> Covariance:
    """The covariance of flattened images as one matrix product; equals `input_covariance` followed by `Flatten`."""
    flat1, flat2 = x1.flatten(1), x2.flatten(1)
    size = flat1.shape[1]
    K = flat1 @ flat2.T / size
    return Covariance(K, torch.zeros_like(K), (flat1 * flat1).sum(1) / size, (flat2 * flat2).sum(1) / size)


def propagate(layers: Iterable[Layer], covariance: Covariance) -> Covariance:
    """The covariance after all layers, applied in order."""
    for layer in layers:
        covariance = _apply(layer, covariance)
    return covariance


def _apply(layer: Layer, c: Covariance) -> Covariance:
    match layer:
        case Conv():
            return _convolve(layer, c)
        case Dense():
            return _affine(c, layer)
        case Relu():
            return _rectify(c)
        case Residual():
            main, shortcut = propagate(layer.main, c), propagate(layer.shortcut, c)
            return Covariance(
                main.K + shortcut.K, main.T + shortcut.T, main.own1 + shortcut.own1, main.own2 + shortcut.own2
            )
        case AveragePool():
            return Covariance(*(_block_mean(a, layer.size, n) for a, n in _parts(c)))
        case Flatten():
            return Covariance(*(_mean_of_equal_positions(a, n) for a, n in _parts(c)))
        case GlobalAveragePool():
            return Covariance(*(a.flatten(n).mean(n) for a, n in _parts(c)))
    raise InvalidInput(f"There is no kernel for the layer {layer}.")


def _parts(c: Covariance) -> tuple[tuple[Tensor, int], ...]:
    """Each tensor, with the number of axes before its positions."""
    return (c.K, 2), (c.T, 2), (c.own1, 1), (c.own2, 1)


def _affine(c: Covariance, layer: Conv | Dense) -> Covariance:
    W2, b2 = layer.W_std**2, layer.b_std**2
    K = W2 * c.K + b2
    return Covariance(K, K + W2 * c.T, W2 * c.own1 + b2, W2 * c.own2 + b2)


def _convolve(layer: Conv, c: Covariance) -> Covariance:
    return _affine(Covariance(*(_window_mean(a, layer, n) for a, n in _parts(c))), layer)


def _window_mean(a: Tensor, layer: Conv, lead: int) -> Tensor:
    """Mean over the window with zero padding, always divided by size^2; axes of the same kind are shifted together."""
    for first in (lead, lead + 1):
        axes = range(first, a.dim(), 2)  # the rows, then the columns, of each item
        length = a.shape[first]
        before, after = same_padding(length, layer.size, layer.stride)
        padding = [0] * (2 * a.dim())
        for axis in axes:
            padding[2 * (a.dim() - 1 - axis)], padding[2 * (a.dim() - 1 - axis) + 1] = before, after
        padded = torch.nn.functional.pad(a, padding)
        n_out = -(-length // layer.stride)
        total: Tensor | None = None
        for tap in range(layer.size):
            part = padded
            for axis in axes:
                part = part.narrow(axis, tap, (n_out - 1) * layer.stride + 1)
                if layer.stride > 1:
                    part = part.unfold(axis, 1, layer.stride).squeeze(-1)  # every stride-th position
            total = part if total is None else total + part
        assert total is not None
        a = total / layer.size
    return a


def _rectify(c: Covariance) -> Covariance:
    v1, v2 = (_variance(own) for own in (c.own1, c.own2))
    size = v1.shape[1:]
    if c.own1.dim() < 5:
        K, factor = arc_cosine(c.K, v1.unsqueeze(1), v2.unsqueeze(0))
        return Covariance(K, c.T * factor, c.own1 / 2, c.own2 / 2)
    K, factor = arc_cosine(c.K, v1.view(-1, 1, *size, 1, 1), v2.view(1, -1, 1, 1, *size))
    own1, own2 = (
        arc_cosine(own, v.view(-1, *size, 1, 1), v.view(-1, 1, 1, *size))[0] for own, v in ((c.own1, v1), (c.own2, v2))
    )
    return Covariance(K, c.T * factor, own1, own2)


def _variance(own: Tensor) -> Tensor:
    """(n, H, W) or (n,): the variances at each position."""
    if own.dim() < 5:
        return own
    return torch.diagonal(own.flatten(3).flatten(1, 2), dim1=1, dim2=2).reshape(own.shape[:3])


def arc_cosine(K: Tensor, v1: Tensor, v2: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU covariance and the factor of its derivative; theta = atan2(sqrt(v v' - K^2), K)."""
    sine = torch.sqrt(torch.clamp(v1 * v2 - K * K, min=0.0))
    rest = math.pi - torch.atan2(sine, K)
    return (sine + rest * K) / (2 * math.pi), rest / (2 * math.pi)


def _block_mean(a: Tensor, size: int, lead: int) -> Tensor:
    for axis in range(lead, a.dim()):
        n_blocks = a.shape[axis] // size
        if n_blocks < 1:
            raise InvalidInput(f"A side of {a.shape[axis]} positions is too small for pooling by {size}.")
        a = a.narrow(axis, 0, n_blocks * size).unflatten(axis, (n_blocks, size)).mean(axis + 1)
    return a


def _mean_of_equal_positions(a: Tensor, lead: int) -> Tensor:
    if a.dim() - lead == 4:
        a = torch.diagonal(torch.diagonal(a, dim1=lead, dim2=lead + 2), dim1=lead, dim2=lead + 1)
    return a.flatten(lead).mean(lead)
