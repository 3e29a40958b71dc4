"""The fused CPU path: float32, all layers of a pair while it is in cache, on several threads.

The variances that ReLU needs at every layer are computed first, once per item. Pairs are then computed in tiles that
are small enough for the second item's maps to stay in cache; threads take tiles from one queue. The few dense layers
after flattening are applied to whole blocks in float64.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.kernels import loops
from core.kernels.networks import Dense, Layer, Network
from core.kernels.plan import Plan, plan_for

KernelKind = Literal["ntk", "nngp"]
OnProgress = Callable[[int, int], None]
Matrix = NDArray[np.float64]

_CACHE_FLOATS = 48 * 1024  # maps and inputs of the items on one side of a tile: 192 KB, half of a typical L2 cache
_LARGEST = 1e9  # products of inputs stay far inside float32
_TILE_WORK = 3e8  # position updates in one tile: well below a second, for prompt progress and cancellation


@dataclass(frozen=True, slots=True)
class Side:
    """Items prepared for pairing."""

    size: tuple[int, int]  # (H, W)
    inputs: NDArray[Any]  # (n, C, H * (W + frame)) float32; the images themselves for networks that flatten them first
    maps: NDArray[np.float32]  # (n, maps_size)
    own: NDArray[np.float64]  # (n,) variance after the bridge layer


def default_threads() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fused_kernel(
    x1: NDArray[Any] | Side,
    x2: NDArray[Any] | Side | None,
    network: Network,
    kind: KernelKind = "ntk",
    n_threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> NDArray[np.float32]:
    """(n1, n2) kernel of images (n, H, W, C). With x2 None it is that of x1 with itself, of which one half is computed.

    Either may be a `Side` from `prepare_side` with the same network. `on_progress(done, total)` is called from this
    thread, tile by tile, and may raise an exception to stop the work.
    """
    if network.bridge == 0:
        return _dense_kernel(x1, x1 if x2 is None else x2, network, kind)
    side1 = x1 if isinstance(x1, Side) else prepare_side(x1, network, n_threads)
    side2 = side1 if x2 is None else x2 if isinstance(x2, Side) else prepare_side(x2, network, n_threads)
    plan = plan_for(network, *side1.size)
    out = np.zeros((len(side1.own), len(side2.own)), np.float32)
    tiles = list(_tiles(plan, side1, side2, symmetric=x2 is None))
    work = (functools.partial(_fill, out, tile, (side1, side2), plan, kind) for tile in tiles)
    with ThreadPoolExecutor(n_threads or default_threads(), thread_name_prefix="kernel") as pool:
        _run(pool, work, len(tiles), on_progress)
    if x2 is None:
        below = np.tril_indices(len(out), -1)
        out[below] = out.T[below]
    return out


def prepare_side(x: NDArray[Any], network: Network, n_threads: int | None = None) -> Side:
    """Prepare items to be paired many times: their variances at every layer, computed once."""
    if network.bridge == 0:
        return Side(x.shape[1:3], np.asarray(x), np.empty((0, 0), np.float32), np.empty(len(x)))
    plan = plan_for(network, x.shape[1], x.shape[2])
    with ThreadPoolExecutor(n_threads or default_threads(), thread_name_prefix="kernel") as pool:
        return _prepare(x, plan, pool)


def _prepare(x: NDArray[Any], plan: Plan, pool: ThreadPoolExecutor) -> Side:
    n, height, width, channels = x.shape
    largest = float(np.abs(x).max(initial=0.0))
    if not largest <= _LARGEST:  # true also for NaN
        raise InvalidInput(f"Images contain values that are not finite, or above {_LARGEST:g} (largest: {largest}).")
    inputs = np.zeros((n, channels, height, width + plan.frame), np.float32)
    inputs[..., :width] = np.moveaxis(x, 3, 1)
    flat = inputs.reshape(n, channels, -1)
    maps = np.zeros((n, plan.maps_size), np.float32)
    own = np.zeros(n)
    tables = (plan.ops, plan.weights, plan.stages, plan.self_offsets, plan.self_shares)

    def run(begin: int) -> None:
        rows = slice(begin, begin + 16)
        side = (flat[rows], maps[rows])
        sums = np.zeros((2, len(side[0]), len(side[0])))
        loops.run_tile((*side, *side), tables, _buffers(plan, 2), (plan.frame, 0), (False, True), sums)
        own[rows] = np.diagonal(sums[0])

    list(pool.map(run, range(0, n, 16)))
    return Side((height, width), flat, maps, own / _own_averaged(plan))


def _own_averaged(plan: Plan) -> int:
    """Position pairs in the sum of an item's own variances."""
    last = plan.stages[-1]
    positions = int(last[6] * last[7])
    whole = len(plan.self_offsets) == len(plan.offsets) and plan.n_averaged > positions
    return plan.n_averaged if whole else positions


def _buffers(plan: Plan, n_items: int) -> tuple[NDArray[np.float32], ...]:
    """Registers, a column of sums, cropped maps of `n_items` and pooled covariances: the work space of a tile."""
    frame, height, width = plan.frame, int(plan.stages[0][2]), int(plan.stages[0][3])
    size = 2 * frame + (height + 2 * frame) * (width + frame)
    return (
        np.zeros((plan.n_registers, 2, size), np.float32),
        np.zeros(size, np.float32),
        np.zeros((max(n_items, 2), plan.maps_size if len(plan.offsets) > 1 else 1), np.float32),
        np.zeros((2, plan.pooled_size), np.float32),
    )


def _tiles(plan: Plan, side1: Side, side2: Side, symmetric: bool) -> Iterator[tuple[int, int, int, int, int]]:
    """(begin1, end1, begin2, end2, diagonal); pairs below the diagonal are left out if both sides are the same."""
    per_item = side2.inputs[0].size + side2.maps.shape[1]
    columns = int(np.clip(_CACHE_FLOATS // per_item, 4 if len(plan.offsets) == 1 else 8, 64))
    positions = side2.inputs.shape[2] if len(plan.offsets) == 1 else side2.inputs.shape[2] * len(plan.offsets) // 4
    pairs = max(1, int(_TILE_WORK / (positions * max(len(plan.ops), 1))))
    columns = min(columns, pairs)
    rows = int(
        np.clip(pairs // columns, 1, 256 if len(plan.offsets) == 1 else 2 * columns)
    )  # cropped maps stay in cache
    n1, n2 = len(side1.own), len(side2.own)
    for begin1, begin2 in itertools.product(range(0, n1, rows), range(0, n2, columns)):
        end1, end2 = min(begin1 + rows, n1), min(begin2 + columns, n2)
        if symmetric and end2 <= begin1:
            continue
        yield begin1, end1, begin2, end2, begin1 - begin2 if symmetric else -n1


def _fill(
    out: NDArray[np.float32],
    tile: tuple[int, int, int, int, int],
    sides: tuple[Side, Side],
    plan: Plan,
    kind: KernelKind,
) -> None:
    begin1, end1, begin2, end2, diagonal = tile
    part1, part2 = _part(sides[0], begin1, end1), _part(sides[1], begin2, end2)
    sums = np.zeros((2, end1 - begin1, end2 - begin2))
    flags = (kind == "ntk", False)
    tables = (plan.ops, plan.weights, plan.stages, plan.offsets, plan.shares)
    both = (part1.inputs, part1.maps, part2.inputs, part2.maps)
    buffers = _buffers(plan, len(part1.own) + len(part2.own))
    loops.run_tile(both, tables, buffers, (plan.frame, diagonal), flags, sums)
    sums /= plan.n_averaged
    if plan.ends_as_sum and kind == "ntk":
        sums[1] -= sums[0]
    out[begin1:end1, begin2:end2] = _tail(plan.tail, (sums[0], sums[1]), (part1.own, part2.own))[kind]


def _part(side: Side, begin: int, end: int) -> Side:
    return Side(side.size, side.inputs[begin:end], side.maps[begin:end], side.own[begin:end])


def _run(
    pool: ThreadPoolExecutor, work: Iterator[Callable[[], None]], n_tiles: int, on_progress: OnProgress | None
) -> None:
    """Run all tiles with a few queued per thread, so that an error or a cancellation takes effect within two tiles."""
    pending: set[Future[None]] = set()
    done_count = 0
    try:
        for piece in work:
            pending.add(pool.submit(piece))
            if len(pending) < 2 * pool._max_workers:
                continue
            done_count += _collect(pending)
            if on_progress is not None:
                on_progress(done_count, n_tiles)
        while pending:
            done_count += _collect(pending)
            if on_progress is not None:
                on_progress(done_count, n_tiles)
    finally:
        for future in pending:
            future.cancel()


def _collect(pending: set[Future[None]]) -> int:
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    pending -= done
    for future in done:
        future.result()
    return len(done)


def _dense_kernel(
    x1: NDArray[Any] | Side, x2: NDArray[Any] | Side, network: Network, kind: KernelKind
) -> NDArray[np.float32]:
    """The kernel of a network that flattens its input: one matrix product, then the dense layers, in blocks of rows."""
    x1, x2 = (x.inputs if isinstance(x, Side) else x for x in (x1, x2))
    right = np.asarray(x2, np.float64).reshape(len(x2), -1)
    size = right.shape[1]
    own2 = (right * right).sum(1) / size
    out = np.empty((len(x1), len(x2)), np.float32)
    for begin in range(0, len(x1), 256):
        left = np.asarray(x1[begin : begin + 256], np.float64).reshape(-1, size)
        K = left @ right.T / size
        own = ((left * left).sum(1) / size, own2)
        out[begin : begin + 256] = _tail(network.layers[1:], (K, np.zeros_like(K)), own)[kind]
    return out


def _tail(layers: tuple[Layer, ...], pair: tuple[Matrix, Matrix], own: tuple[Matrix, Matrix]) -> dict[str, Matrix]:
    """The layers after flattening, on K, T (n1, n2) and variances (n1,), (n2,); see `core.kernels.covariance`.

    In numpy, one thread: the tiles already share the cores, and torch would start threads of its own for each.
    """
    (K, T), (v1, v2) = pair, own
    for layer in layers:
        if isinstance(layer, Dense):
            W2, b2 = layer.W_std**2, layer.b_std**2
            K = W2 * K + b2
            T = K + W2 * T
            v1, v2 = W2 * v1 + b2, W2 * v2 + b2
        else:
            sine = np.sqrt(np.maximum(np.multiply.outer(v1, v2) - K * K, 0.0))
            rest = np.pi - np.arctan2(sine, K)
            K = (sine + rest * K) / (2 * np.pi)
            T = T * (rest / (2 * np.pi))
            v1, v2 = v1 / 2, v2 / 2
    return {"ntk": T, "nngp": K}
