"""Kernels with global average pooling in torch, offset by offset: batched over pairs, for GPUs.

A pair of positions is (p, p + d). Convolutions shift both positions together, so each offset d has its own picture
(`core.kernels.plan`), which passes all layers independently of the others. A batch holds one offset of many pairs of
items, (pairs, H - |dy|, W - |dx|): the Python loop runs over offsets and layers, never over entries.

Memory: a batch has at most `BATCH_BYTES` per picture tensor, and about eight such tensors exist at a time (K, T, their
window means, the factors of ReLU, a shortcut): 512 MiB in all, in addition to the inputs, the result, and two maps of
variances per item and ReLU. The full mode of `core.kernels.covariance` needs (H W)^2 floats for every pair instead.

The dense layers after pooling follow `core.kernels.covariance`. The result agrees with that module and, for
`QuadratureAveragePool`, with the fused path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from core.kernels.covariance import Covariance, arc_cosine, propagate
from core.kernels.networks import Conv, Layer, Network, Relu, Residual
from core.kernels.plan import plan_for, same_padding

BATCH_BYTES = 64 * 2**20
Maps = list[Tensor]  # the variances (n, H, W) before every ReLU, in the order of the layers


@dataclass(frozen=True, slots=True)
class _Pictures:
    """K and T of one offset (pairs, h, w); the height and width without cropping; the offset at this layer."""

    K: Tensor
    T: Tensor
    size: tuple[int, int]
    offset: tuple[int, int]


def offset_kernel(x1: Tensor, x2: Tensor, network: Network, kind: Literal["ntk", "nngp"] = "ntk") -> Tensor:
    """(n1, n2) kernel of images (n, H, W, C) for a network that ends in a global average without average pooling."""
    height, width = x1.shape[1:3]
    plan = plan_for(network, height, width)
    spatial = network.layers[: network.bridge]
    maps1, maps2 = (_variance_maps(x, spatial) for x in (x1, x2))
    side = max(1, int((BATCH_BYTES // (x1.element_size() * height * width)) ** 0.5))
    rows = []
    for begin1 in range(0, len(x1), side):
        blocks = []
        for begin2 in range(0, len(x2), side):
            parts = (slice(begin1, begin1 + side), slice(begin2, begin2 + side))
            sums = x1.new_zeros((2, len(x1[parts[0]]), len(x2[parts[1]])))
            for (_, dy, dx), share in zip(plan.offsets.tolist(), plan.shares.tolist(), strict=True):
                sums += share * _offset_sums((x1, x2), (maps1, maps2), parts, spatial, (dy, dx))
            blocks.append(sums / plan.n_averaged)
        rows.append(torch.cat(blocks, 2))
    K, T = torch.cat(rows, 1)
    own1, own2 = (_own_averages(x, network, plan.tail) for x in (x1, x2))
    after = propagate(plan.tail, Covariance(K, T, own1, own2))
    return after.T if kind == "ntk" else after.K


def _own_averages(x: Tensor, network: Network, tail: Sequence[Layer]) -> Tensor:
    """(n,) variances after pooling, which only a subsequent ReLU reads."""
    if not any(isinstance(layer, Relu) for layer in tail):
        return x.new_ones(len(x))
    pooled = Network("pooled", network.layers[: network.bridge + 1])
    return torch.stack([offset_kernel(one, one, pooled, "nngp")[0, 0] for one in x.split(1)])


def _variance_maps(x: Tensor, layers: Sequence[Layer]) -> Maps:
    """The variances of each item at equal positions, before every ReLU."""
    found: Maps = []
    _record(layers, (x * x).sum(3) / x.shape[3], found)
    return found


def _record(layers: Sequence[Layer], values: Tensor, found: Maps) -> Tensor:
    """The variances (n, H, W) after the layers; those before each ReLU are appended to `found`."""
    for layer in layers:
        if isinstance(layer, Relu):
            found.append(values)
            values = values / 2
        elif isinstance(layer, Conv):
            values = _window_mean(values, layer, tuple(values.shape[1:]), (0, 0)) * layer.W_std**2 + layer.b_std**2
        elif isinstance(layer, Residual):
            values = _record(layer.main, values, found) + _record(layer.shortcut, values, found)
    return values


def _offset_sums(
    inputs: tuple[Tensor, Tensor],
    maps: tuple[Maps, Maps],
    parts: tuple[slice, slice],
    layers: Sequence[Layer],
    offset: tuple[int, int],
) -> Tensor:
    """(2, n1, n2) sums of K and T over the positions of one offset."""
    first, second = (x[part] for x, part in zip(inputs, parts, strict=True))
    size = (first.shape[1], first.shape[2])
    a, b = _cropped(first, size, offset, 1), _cropped(second, size, offset, -1)
    K = torch.einsum("ahwc,bhwc->abhw", a, b).flatten(0, 1) / first.shape[3]
    own = ([m[parts[0]] for m in maps[0]], [m[parts[1]] for m in maps[1]])
    after = _walk(layers, _Pictures(K, torch.zeros_like(K), size, offset), (iter(own[0]), iter(own[1])))
    return torch.stack([after.K.sum((1, 2)), after.T.sum((1, 2))]).view(2, len(first), len(second))


def _walk(layers: Sequence[Layer], pictures: _Pictures, maps: tuple[Iterator[Tensor], Iterator[Tensor]]) -> _Pictures:
    for layer in layers:
        if isinstance(layer, Conv):
            pictures = _convolve(layer, pictures)
        elif isinstance(layer, Relu):
            v1, v2 = (
                _cropped(next(m), pictures.size, pictures.offset, sign) for m, sign in zip(maps, (1, -1), strict=True)
            )
            shape = (len(v1), len(v2), *pictures.K.shape[1:])
            K, factor = arc_cosine(pictures.K.view(shape), v1.unsqueeze(1), v2.unsqueeze(0))
            T = pictures.T * factor.flatten(0, 1)
            pictures = _Pictures(K.flatten(0, 1), T, pictures.size, pictures.offset)
        elif isinstance(layer, Residual):
            main = _walk(layer.main, pictures, maps)
            other = _walk(layer.shortcut, pictures, maps)
            pictures = _Pictures(main.K + other.K, main.T + other.T, main.size, main.offset)
    return pictures


def _convolve(layer: Conv, pictures: _Pictures) -> _Pictures:
    W2, b2 = layer.W_std**2, layer.b_std**2
    K = W2 * _window_mean(pictures.K, layer, pictures.size, pictures.offset) + b2
    T = K + W2 * _window_mean(pictures.T, layer, pictures.size, pictures.offset)
    size = (-(-pictures.size[0] // layer.stride), -(-pictures.size[1] // layer.stride))
    offset = (pictures.offset[0] // layer.stride, pictures.offset[1] // layer.stride)
    return _Pictures(K, T, size, offset)


def _window_mean(a: Tensor, layer: Conv, size: tuple[int, ...], offset: tuple[int, int]) -> Tensor:
    """The mean over the window, for every position whose partner exists; zero padding as for the whole picture."""
    padding, shape = [], []
    for length, d in zip(size, offset, strict=True):
        before, _ = same_padding(length, layer.size, layer.stride)
        n_out = -(-length // layer.stride) - abs(d) // layer.stride
        after = (n_out - 1) * layer.stride + layer.size - before - (length - abs(d))
        padding.append((before, max(after, 0)))
        shape.append(n_out)
    padded = F.pad(a, (*padding[1], *padding[0]))
    return F.avg_pool2d(padded[:, None], layer.size, layer.stride)[:, 0, : shape[0], : shape[1]]


def _cropped(a: Tensor, size: tuple[int, int], offset: tuple[int, int], sign: int) -> Tensor:
    """(n, H, W, ...) without the positions that have no partner: sign 1 for the first item of a pair, -1 for the
    second."""
    for axis, (length, d) in enumerate(zip(size, offset, strict=True), start=1):
        a = a.narrow(axis, max(0, -sign * d), length - abs(d))
    return a
