"""The kernel of a network on images: one function with two implementations.

    from core.kernels import networks, ntk
    K = ntk.kernel(x1, x2, networks.scnn())          # x1 (n1, H, W, C), x2 (n2, H, W, C) -> (n1, n2)

"fused" runs on the CPU in float32 (`core.kernels.fused`); "torch" runs on any device in the inputs' floating type
(`core.kernels.covariance`). "auto" uses torch for tensors and for float64 arrays, and fused for all other arrays. The
result has the type of the inputs: a tensor on their device, or an array.

Relative accuracy: 1e-5 in float64 and 2e-4 in float32. The tangent kernel of nearly equal items is the least accurate,
because the angle between them is the square root of a rounding error.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import InvalidInput
from core.kernels.covariance import flat_covariance, input_covariance, propagate
from core.kernels.networks import AnyNetwork, AveragePool, Linear, Network, Rbf
from core.kernels.offsets import offset_kernel

Backend = Literal["auto", "fused", "torch"]
KernelKind = Literal["ntk", "nngp"]

_BLOCK_BYTES = 64 * 2**20  # of one tensor of a block; a few exist at a time


def kernel(
    x1: NDArray[Any] | Tensor,
    x2: NDArray[Any] | Tensor | None,
    network: AnyNetwork,
    kind: KernelKind = "ntk",
    backend: Backend = "auto",
) -> Any:
    """(n1, n2) tangent ("ntk") or output ("nngp") kernel. If `x2` is None or x1 itself, half of it is computed.

    Rbf and Linear have no layers, so both kinds are the same.
    """
    _check(x1, x2, kind, backend)
    if x2 is x1:
        x2 = None
    is_tensor = isinstance(x1, Tensor)
    if backend == "auto":
        backend = "torch" if is_tensor or x1.dtype == np.float64 else "fused"
    if isinstance(network, Network) and backend == "fused":
        from core.kernels.fused import fused_kernel  # here, because importing numba takes seconds

        arrays = [None if x is None else x.cpu().numpy() if isinstance(x, Tensor) else x for x in (x1, x2)]
        result = fused_kernel(cast(NDArray[Any], arrays[0]), arrays[1], network, kind)
        return torch.from_numpy(result).to(x1.device) if isinstance(x1, Tensor) else result
    left = _as_tensor(x1)
    right = left if x2 is None else _as_tensor(x2)
    with torch.no_grad():
        value = _plain_kernel(left, right, network, kind, symmetric=x2 is None)
    return value if is_tensor else value.numpy()


def _check(x1: NDArray[Any] | Tensor, x2: NDArray[Any] | Tensor | None, kind: str, backend: str) -> None:
    if kind not in ("ntk", "nngp"):
        raise InvalidInput(f"The kernel's kind is {kind!r}; choose 'ntk' or 'nngp'.")
    if backend not in ("auto", "fused", "torch"):
        raise InvalidInput(f"The backend is {backend!r}; choose 'auto', 'fused' or 'torch'.")
    for x in (x1,) if x2 is None else (x1, x2):
        if x.ndim != 4:
            raise InvalidInput(f"Images have shape (n, height, width, channels); this array has {tuple(x.shape)}.")
        if tuple(x.shape[1:]) != tuple(x1.shape[1:]):
            raise InvalidInput(f"Images of {tuple(x1.shape[1:])} and of {tuple(x.shape[1:])} cannot be compared.")


def _as_tensor(x: NDArray[Any] | Tensor) -> Tensor:
    tensor = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def _plain_kernel(x1: Tensor, x2: Tensor, network: AnyNetwork, kind: KernelKind, symmetric: bool) -> Tensor:
    """The torch path, in blocks that bound its memory. Pairs of positions are processed offset by offset if no layer
    mixes offsets."""
    if isinstance(network, Network) and network.needs_position_pairs and not _mixes_offsets(network):
        return offset_kernel(x1, x2, network, kind)
    side = _block_side(x1, network)
    right = x2.split(side)
    rows = []
    for i, left in enumerate(x1.split(side)):
        blocks = [
            x1.new_zeros((len(left), len(other))) if symmetric and j < i else _block(left, other, network, kind)
            for j, other in enumerate(right)
        ]
        rows.append(torch.cat(blocks, dim=1))
    out = torch.cat(rows)
    return torch.triu(out) + torch.triu(out, 1).T if symmetric else out


def _mixes_offsets(network: Network) -> bool:
    return any(isinstance(layer, AveragePool) for layer in network.layers)


def _block_side(x: Tensor, network: AnyNetwork) -> int:
    """Items on each side of a block."""
    positions = 1
    if isinstance(network, Network) and network.bridge > 0:
        positions = (x.shape[1] * x.shape[2]) ** (2 if network.needs_position_pairs else 1)
    pairs = max(1, _BLOCK_BYTES // (x.element_size() * positions))
    return max(1, int(pairs**0.5))


def _block(x1: Tensor, x2: Tensor, network: AnyNetwork, kind: KernelKind) -> Tensor:
    if isinstance(network, Linear):
        return flat_covariance(x1, x2).K
    if isinstance(network, Rbf):
        gamma = len(x1) / x1.numel() if network.gamma is None else network.gamma
        return torch.exp(-gamma * torch.cdist(x1.flatten(1), x2.flatten(1), compute_mode=_EXACT) ** 2)
    if network.bridge == 0:
        after = propagate(network.layers[1:], flat_covariance(x1, x2))
    else:
        after = propagate(network.layers, input_covariance(x1, x2, network.needs_position_pairs))
    return after.T if kind == "ntk" else after.K


_EXACT = "donot_use_mm_for_euclid_dist"
