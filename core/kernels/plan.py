"""The tables that drive the fused path, for a network and an image size.

Position pairs by offset. Write a pair of positions as (p, p + d). A convolution shifts both positions together, so the
covariance of each offset d is a separate picture of (H - |dy|) x (W - |dx|) positions, and a convolution is a box
filter on that picture. ReLU is applied entry by entry. For offset d, a convolution of stride s reads only the offset
s*d. Only average pooling mixes offsets: with blocks of b positions it reads b*d - (b-1) ... b*d + (b-1).

A network is divided into stages at its average pooling layers; within a stage, each offset is processed from start to
end while it is in cache. The required offsets are found backwards from the output: only d = 0 after `Flatten`, all
offsets after `GlobalAveragePool`. A network that flattens therefore has one stage and one offset, and a network with
strides never computes the offsets that its strides skip.

Quadrature over offsets. The mean of a covariance's picture changes smoothly with the offset, except near offset zero,
where similar items have a peak. `QuadratureAveragePool` computes the offsets that `core.kernels.quadrature` chooses;
the sum over all offsets is then a weighted sum of the pictures' sums.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.kernels.networks import (
    AveragePool,
    Conv,
    GlobalAveragePool,
    Layer,
    Network,
    QuadratureAveragePool,
    Relu,
    Residual,
)
from core.kernels.quadrature import nodes

CONV, RELU, ADD, CONVERT = range(4)
CODE, SRC, DST, SIZE, STRIDE, SLOT, HEIGHT, WIDTH, FACTOR, FIRST = range(10)
OP_FIELDS = 10


@dataclass(frozen=True)
class Plan:
    """Tables for one network at one image size.

    A register holds two pictures: K and either the tangent part T or the sum U = K + T. Convolution reads (K, U) and
    writes (K, T), as T_new = W^2 mean(K + T) + b^2; ReLU reads (K, T) and writes (K, U); CONVERT changes the form.

    ops (n_ops, 10): the columns named above. HEIGHT and WIDTH are those of the op's input without cropping; FACTOR is
    the product of strides since the start of the stage; SLOT is the start of the ReLU's scale maps in an item's `maps`;
    FIRST is whether T is zero on input; SIZE is the window's side, or the sign of CONVERT (+1: T to U, -1: U to T).
    weights (n_ops, 2): W_std^2 / size^2 and b_std^2 of convolutions.
    stages (n_stages, 10): first op, end of ops, input height and width, block of the pooling that ends the stage (0 =
    last stage), register, height, width and FACTOR of its result, start of its input among the pooled covariances (-1:
    it reads the images).
    offsets and self_offsets: (n, 3) rows (stage, dy, dx), stage by stage, offset zero first, then grouped by dx;
    `offsets` for a pair of different items, `self_offsets` for the variances of one item. shares and self_shares: the
    factor of each offset's picture in the sum of the last stage, 1 unless the bridge is a `QuadratureAveragePool`.
    """

    ops: NDArray[np.int64]
    weights: NDArray[np.float32]
    stages: NDArray[np.int64]
    offsets: NDArray[np.int64]
    self_offsets: NDArray[np.int64]
    shares: NDArray[np.float64]
    self_shares: NDArray[np.float64]
    frame: int  # zero rows and columns around each picture
    n_registers: int
    maps_size: int  # floats in one item's scale maps
    pooled_size: int  # floats in the pooled covariances of all stages
    n_averaged: int  # position pairs that the bridge layer averages over
    ends_as_sum: bool  # whether the last register holds U rather than T
    tail: tuple[Layer, ...]


@dataclass
class _Tables:
    ops: list[list[int]] = field(default_factory=list)
    weights: list[tuple[float, float]] = field(default_factory=list)
    n_registers: int = 1
    maps_size: int = 0
    frame: int = 0


@dataclass(frozen=True)
class _Cursor:
    """The current covariance: its register, its size, and the product of strides since the start of the stage."""

    register: int
    height: int
    width: int
    factor: int
    tangent_is_zero: bool
    is_sum: bool  # holds (K, U) rather than (K, T)


@functools.lru_cache(maxsize=64)
def plan_for(network: Network, height: int, width: int) -> Plan:
    """The tables of `network` for (height, width) images; raises InvalidInput if pooling would leave no position."""
    spatial, bridge = network.layers[: network.bridge], network.layers[network.bridge]
    frame = max([_padding_reach(layer) for layer in spatial], default=0)
    tables = _Tables(frame=max(frame, 1))
    stages, pooled_size, cursor = _stages((*spatial, bridge), (height, width), tables, network.name)
    last = (cursor.height, cursor.width)
    everywhere = isinstance(bridge, GlobalAveragePool)
    tail = network.layers[network.bridge + 1 :]
    tail_variance = everywhere and any(isinstance(layer, Relu) for layer in tail)
    offsets, shares = _weighted_offsets(stages, last, bridge if everywhere else None)
    self_offsets, self_shares = _weighted_offsets(stages, last, bridge if tail_variance else None)
    return Plan(
        ops=np.array(tables.ops, np.int64).reshape(-1, OP_FIELDS),
        weights=np.array(tables.weights, np.float32).reshape(-1, 2),
        stages=np.array(stages, np.int64),
        offsets=offsets,
        self_offsets=self_offsets,
        shares=shares,
        self_shares=self_shares,
        frame=tables.frame,
        n_registers=tables.n_registers,
        maps_size=max(tables.maps_size, 1),
        pooled_size=max(pooled_size, 1),
        n_averaged=(last[0] * last[1]) ** (2 if everywhere else 1),
        ends_as_sum=cursor.is_sum,
        tail=tail,
    )


def _stages(
    layers: Sequence[Layer], size: tuple[int, int], tables: _Tables, name: str
) -> tuple[list[list[int]], int, _Cursor]:
    """The rows of `Plan.stages`, the floats in all pooled covariances, and the cursor at the bridge layer, which is the
    last of `layers`. The ops are appended to `tables`."""
    stages: list[list[int]] = []
    pooled_size, begin, (height, width) = 0, 0, size
    cursor = _Cursor(0, height, width, 1, True, True)
    for layer in layers:
        if isinstance(layer, Conv | Relu | Residual):
            cursor = _compile(layer, cursor, tables, frozenset())
            continue
        block = layer.size if isinstance(layer, AveragePool) else 0
        result = (cursor.register, cursor.height, cursor.width, cursor.factor)
        stages.append([begin, len(tables.ops), *size, block, *result, pooled_size if stages else -1])
        pooled_size += _pooled_size(*size) if len(stages) > 1 else 0
        if block:
            size = (cursor.height // block, cursor.width // block)
            if min(size) < 1:
                raise InvalidInput(f"{height}x{width} images are too small for the pooling of {name!r}.")
            cursor = _Cursor(0, *size, 1, cursor.tangent_is_zero, cursor.is_sum)
            begin = len(tables.ops)
    return stages, pooled_size, cursor


def same_padding(length: int, size: int, stride: int) -> tuple[int, int]:
    """(before, after) so that the output has ceil(length / stride) positions; of an odd total, more is after."""
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def _padding_reach(layer: Layer) -> int:
    if isinstance(layer, Residual):
        return max([_padding_reach(inner) for inner in layer.main + layer.shortcut], default=0)
    return layer.size - 1 - (layer.size - 1) // 2 if isinstance(layer, Conv) else 0


def _compile(layer: Layer, cursor: _Cursor, tables: _Tables, kept: frozenset[int]) -> _Cursor:
    """Append the ops of `layer` on `cursor` and return the cursor of its result; registers in `kept` are not
    overwritten."""
    if isinstance(layer, Residual):
        return _compile_residual(layer, cursor, tables, kept)
    cursor = _converted(cursor, isinstance(layer, Conv), tables, kept)
    row = _row_at(cursor)
    if isinstance(layer, Conv):
        row[CODE], row[SIZE], row[STRIDE] = CONV, layer.size, layer.stride
        row[DST] = _free_register(tables, kept | {cursor.register})
        height, width = -(-cursor.height // layer.stride), -(-cursor.width // layer.stride)
        tables.ops.append(row)
        tables.weights.append((layer.W_std**2 / layer.size**2, layer.b_std**2))
        return _Cursor(row[DST], height, width, cursor.factor * layer.stride, False, False)
    row[CODE], row[SLOT] = RELU, tables.maps_size
    tables.maps_size += 2 * cursor.height * (cursor.width + tables.frame)
    row[DST] = _free_register(tables, kept | {cursor.register})
    _append(tables, row)
    return dataclasses.replace(cursor, register=row[DST], is_sum=True)


def _compile_residual(layer: Residual, cursor: _Cursor, tables: _Tables, kept: frozenset[int]) -> _Cursor:
    main = cursor
    for inner in layer.main:
        main = _compile(inner, main, tables, kept | {cursor.register})
    main = _converted(main, False, tables, kept | {cursor.register})
    shortcut, taken = cursor, kept | {cursor.register, main.register}
    for inner in layer.shortcut:
        shortcut = _compile(inner, shortcut, tables, taken)
    shortcut = _converted(shortcut, False, tables, taken)
    row = _row_at(main)
    row[CODE], row[SRC], row[DST] = ADD, shortcut.register, main.register
    _append(tables, row)
    return dataclasses.replace(main, tangent_is_zero=main.tangent_is_zero and shortcut.tangent_is_zero)


def _converted(cursor: _Cursor, to_sum: bool, tables: _Tables, kept: frozenset[int]) -> _Cursor:
    """The covariance in the requested form."""
    if cursor.is_sum == to_sum:
        return cursor
    row = _row_at(cursor)
    row[CODE], row[SIZE] = CONVERT, 1 if to_sum else -1
    row[DST] = _free_register(tables, kept | {cursor.register})
    _append(tables, row)
    return dataclasses.replace(cursor, register=row[DST], is_sum=to_sum)


def _row_at(cursor: _Cursor) -> list[int]:
    row = [0] * OP_FIELDS
    row[SRC], row[HEIGHT], row[WIDTH], row[FACTOR] = cursor.register, cursor.height, cursor.width, cursor.factor
    row[FIRST] = int(cursor.tangent_is_zero)
    return row


def _append(tables: _Tables, row: list[int]) -> None:
    tables.ops.append(row)
    tables.weights.append((0.0, 0.0))


def _free_register(tables: _Tables, taken: frozenset[int]) -> int:
    register = next(r for r in range(len(taken) + 1) if r not in taken)
    tables.n_registers = max(tables.n_registers, register + 1)
    return register


def _pooled_size(height: int, width: int) -> int:
    return (2 * height - 1) * (2 * width - 1) * height * width


def _weighted_offsets(
    stages: list[list[int]], last: tuple[int, int], pool: Layer | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Offsets and their shares. `pool` averages over all pairs of positions; None: the mean is over equal positions."""
    if not isinstance(pool, QuadratureAveragePool) or min(last) <= pool.exact_below:
        reach = [side - 1 if pool is not None else 0 for side in last]
        rows = _offsets(stages, [set(range(-r, r + 1)) for r in reach])
        return rows, np.ones(len(rows))
    chosen, weights = nodes(*last, pool.share)
    shares = weights * (last[0] * last[1]) ** 2 / np.prod(np.array(last) - np.abs(chosen), axis=1)
    order = np.lexsort((chosen[:, 0], chosen[:, 1], np.any(chosen != 0, axis=1)))
    rows = np.concatenate([np.zeros((len(chosen), 1), np.int64), stages[-1][8] * chosen], 1)
    return rows[order], shares[order]


def _offsets(stages: list[list[int]], needed: list[set[int]]) -> NDArray[np.int64]:
    """Rows (stage, dy, dx) that are needed for the offsets `needed` of rows and columns at the bridge layer, from the
    last stage back to the first."""
    rows: list[tuple[int, int, int]] = []
    for stage in reversed(range(len(stages))):
        height, width, block = stages[stage][2:5]
        if block:
            spread = range(1 - block, block)
            needed = [{block * d + e for d in axis for e in spread} for axis in needed]
        needed = [{stages[stage][8] * d for d in axis} for axis in needed]
        needed = [{d for d in axis if abs(d) < side} for axis, side in zip(needed, (height, width), strict=True)]
        here = sorted(((dy, dx) for dy in needed[0] for dx in needed[1]), key=lambda d: (d != (0, 0), d[1], d[0]))
        rows = [(stage, dy, dx) for dy, dx in here] + rows
    return np.array(rows, np.int64).reshape(-1, 3)
