"""The inner loops of the fused path, compiled by numba on first use and kept on disk between runs.

One pair of items at a time, all layers of one offset picture while it is in cache (the tables are explained in
`core.kernels.plan`). Pictures are float32 and flat: a row of w positions is followed by `frame` zeros, which serve as
the right edge of this row and the left edge of the next; `frame` rows of zeros stand above and below. So a box filter
is a sum of shifted flat arrays, which compiles to plain vector code. The loops work on slices that start at zero and
touch few arrays each, because that is what the vectoriser can prove independent.

Arc-cosine without trigonometry. With rho = K / sqrt(v v'), a = |rho|, q = sqrt(1 - a):
    ReLU       K <- max(K, 0) / 2 + sqrt(v v') q^3 R(a)
    derivative     1/2 - q P(a)  for rho >= 0,    q P(a)  for rho < 0
where P(a) = acos(a) / (2 pi q) and R(a) = (sqrt(1 - a^2) - a acos(a)) / (2 pi q^3) are smooth on [0, 1]: polynomials
of degree 6 and 5 are exact to 3e-8. Correlations within 4e-7 of one are taken as one, which is what float32 can tell.

All compiled code stands in this one file: numba's cache notices changes of the file it belongs to, not of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from core.kernels.plan import (
    ADD,
    CODE,
    CONV,
    CONVERT,
    DST,
    FACTOR,
    FIRST,
    HEIGHT,
    RELU,
    SIGN,
    SIZE,
    SLOT,
    SRC,
    STRIDE,
    WIDTH,
)

Function = TypeVar("Function", bound=Callable[..., Any])

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_SAME = np.float32(4e-7)
_P0, _P1, _P2, _P3 = np.float32(0.249999968), np.float32(-0.0341517843), np.float32(0.0141199226), np.float32(-0.00774198606)
_P4, _P5, _P6 = np.float32(0.00423317076), np.float32(-0.00173155328), np.float32(0.000351359364)
_R0, _R1, _R2 = np.float32(0.15915492), np.float32(-0.0112658735), np.float32(0.00297210357)
_R3, _R4, _R5 = np.float32(-0.00113455957), np.float32(0.00040890751), np.float32(-0.0000827927512)


def compiled(function: Function) -> Function:
    """`function` compiled at its first call, outside the interpreter lock; kept on disk where a folder can be written.

    Reordering sums and fused multiply-add are allowed; approximate division and square root are not.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "nsz", "nnan", "ninf"},
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package nor the user's cache folder can be written
        return numba.njit(**options)(function)


@compiled
def _clear_frame(picture, height, width, frame):  # type: ignore[no-untyped-def]
    """Zeros around and between the rows."""
    pitch = width + frame
    first = frame + frame * pitch
    picture[:first] = _ZERO
    picture[first + height * pitch : first + (height + frame) * pitch + frame] = _ZERO
    for y in range(height):
        end = first + y * pitch + width
        for x in range(frame):
            picture[end + x] = _ZERO


@compiled
def _shifted_sum(source, out, start, step, taps):  # type: ignore[no-untyped-def]
    """out[e] = sum over t < taps of source[start + e + t * step]."""
    n = out.size
    a = source[start : start + n]
    if taps == 3:
        b, c = source[start + step : start + step + n], source[start + 2 * step : start + 2 * step + n]
        for e in range(n):
            out[e] = a[e] + b[e] + c[e]
    elif taps == 5:
        b, c = source[start + step : start + step + n], source[start + 2 * step : start + 2 * step + n]
        d, g = source[start + 3 * step : start + 3 * step + n], source[start + 4 * step : start + 4 * step + n]
        for e in range(n):
            out[e] = (a[e] + b[e]) + (c[e] + d[e]) + g[e]
    else:
        for e in range(n):
            out[e] = a[e]
        for t in range(1, taps):
            b = source[start + t * step : start + t * step + n]
            for e in range(n):
                out[e] += b[e]


@compiled
def _strided_row(source, out, stride, taps, weight, bias):  # type: ignore[no-untyped-def]
    """out[x] = weight * sum over t < taps of source[x * stride + t] + bias."""
    n = out.size
    for x in range(n):
        out[x] = _ZERO
    for t in range(taps):
        shifted = source[t:]
        if stride == 2:
            for x in range(n):
                out[x] += shifted[2 * x]
        else:
            for x in range(n):
                out[x] += shifted[x * stride]
    for x in range(n):
        out[x] = weight * out[x] + bias


@compiled
def _box(source, out, column, size, shape, weights):  # type: ignore[no-untyped-def]
    """out = weight * (size x size box sum of source, SAME) + bias. shape: (h, w, stride, pad_y, pad_x, frame, ho, wo).

    `column` takes the vertical sums: rows of the input's pitch, `frame` zeros before and after.
    """
    height, width, stride, pad_y, pad_x, frame, out_height, out_width = shape
    pitch, out_pitch = width + frame, out_width + frame
    first, out_first = frame + frame * pitch, frame + frame * out_pitch
    column[:frame] = _ZERO
    column[frame + out_height * pitch : 2 * frame + out_height * pitch] = _ZERO
    if stride == 1:
        n = height * pitch
        _shifted_sum(source, column[frame : frame + n], first - pad_y * pitch, pitch, size)
        inner = out[out_first : out_first + n]
        _shifted_sum(column, inner, frame - pad_x, 1, size)
        weight, bias = weights[0], weights[1]
        for e in range(n):
            inner[e] = weight * inner[e] + bias
    else:
        for y in range(out_height):
            begin = frame + y * pitch
            row = column[begin : begin + pitch]
            _shifted_sum(source, row, first + (y * stride - pad_y) * pitch, pitch, size)
        for y in range(out_height):
            begin = out_first + y * out_pitch
            _strided_row(
                column[frame + y * pitch - pad_x :], out[begin : begin + out_width], stride, size, weights[0], weights[1]
            )
    _clear_frame(out, out_height, out_width, frame)


@compiled
def _convolve(registers, column, op, weights, place, frame, tangent):  # type: ignore[no-untyped-def]
    """Convolution op: K from K, T from U. place: the op's input (height, width) after cropping, and (dy, dx) there."""
    height, width = place[0], place[1]
    size, stride = op[SIZE], op[STRIDE]
    full_height, full_width = op[HEIGHT], op[WIDTH]
    total_y = max((-(-full_height // stride) - 1) * stride + size - full_height, 0)
    total_x = max((-(-full_width // stride) - 1) * stride + size - full_width, 0)
    out_height = -(-full_height // stride) - abs(place[2]) // stride
    out_width = -(-full_width // stride) - abs(place[3]) // stride
    shape = (height, width, stride, total_y // 2, total_x // 2, frame, out_height, out_width)
    source, out = registers[op[SRC]], registers[op[DST]]
    _box(source[0], out[0], column, size, shape, weights)
    if tangent:
        if op[FIRST]:
            n = 2 * frame + (out_height + 2 * frame) * (out_width + frame)
            k, t = out[0, :n], out[1, :n]
            for e in range(n):
                t[e] = k[e]
        else:
            _box(source[1], out[1], column, size, shape, weights)


@compiled
def _scale(map1, map2, out, place, full_width, frame):  # type: ignore[no-untyped-def]
    """out = map1[p] * map2[p + d] in the layout of the offset's picture, without its frame rows."""
    height, width, dy, dx = place
    pitch, full_pitch = width + frame, full_width + frame
    if dy == 0 and dx == 0:
        n = height * pitch
        a, b, c = map1[:n], map2[:n], out[:n]
        for e in range(n):
            c[e] = a[e] * b[e]
        return
    begin1 = max(0, -dy) * full_pitch + max(0, -dx)
    begin2 = max(0, dy) * full_pitch + max(0, dx)
    for y in range(height):
        a, b = map1[begin1 + y * full_pitch :], map2[begin2 + y * full_pitch :]
        c = out[y * pitch :]
        for x in range(width):
            c[x] = a[x] * b[x]
        for x in range(frame):
            c[width + x] = _ZERO


@compiled
def _arc_cosine(k, scale, inverse, out):  # type: ignore[no-untyped-def]
    """out = ReLU covariance of k; `scale` (sqrt(v v')) is replaced by the derivative's factor. inverse = 1 / scale."""
    for e in range(k.size):
        rho = k[e] * inverse[e]
        a = abs(rho)
        rest = _ONE - a
        rest = rest if rest > _SAME else _ZERO
        q = math.sqrt(rest)
        P = _P0 + a * (_P1 + a * (_P2 + a * (_P3 + a * (_P4 + a * (_P5 + a * _P6)))))
        R = _R0 + a * (_R1 + a * (_R2 + a * (_R3 + a * (_R4 + a * _R5))))
        qP = q * P
        out[e] = _HALF * max(k[e], _ZERO) + scale[e] * (q * rest * R)
        scale[e] = _HALF - qP if rho >= _ZERO else qP


@compiled
def _rectify(registers, scratch, op, maps1, maps2, place, frame, tangent):  # type: ignore[no-untyped-def]
    """ReLU op: (K, T) to (K, U)."""
    height, width = place[0], place[1]
    full_width = op[WIDTH]
    pitch = width + frame
    n, area, slot = height * pitch, op[HEIGHT] * (full_width + frame), op[SLOT]
    scale, inverse = scratch[0, :n], scratch[1, :n]
    _scale(maps1[slot:], maps2[slot:], scale, place, full_width, frame)
    _scale(maps1[slot + area :], maps2[slot + area :], inverse, place, full_width, frame)
    first = frame + frame * pitch
    source, out = registers[op[SRC]], registers[op[DST]]
    k, t = source[0, first : first + n], source[1, first : first + n]
    new_k, new_u = out[0, first : first + n], out[1, first : first + n]
    _arc_cosine(k, scale, inverse, new_k)
    if tangent:
        if op[FIRST]:
            for e in range(n):
                new_u[e] = new_k[e]
        else:
            for e in range(n):
                new_u[e] = new_k[e] + scale[e] * t[e]
    if op[SRC] != op[DST]:
        _clear_frame(out[0], height, width, frame)
        if tangent:
            _clear_frame(out[1], height, width, frame)


@compiled
def _record(registers, op, maps, frame):  # type: ignore[no-untyped-def]
    """ReLU op on the variance of an item itself: keeps sqrt(v) and 1 / sqrt(v), and halves v."""
    height, width = op[HEIGHT], op[WIDTH]
    pitch = width + frame
    n, first, slot = height * pitch, frame + frame * pitch, op[SLOT]
    source, out = registers[op[SRC], 0], registers[op[DST], 0]
    for e in range(n):
        v = source[first + e]
        root = math.sqrt(max(v, _ZERO))
        maps[slot + e] = root
        maps[slot + n + e] = _ONE / root if root > _ZERO else _ZERO
        out[first + e] = _HALF * v
    if op[SRC] != op[DST]:
        _clear_frame(out, height, width, frame)


@compiled
def _load_inputs(x1, x2, picture, place, frame):  # type: ignore[no-untyped-def]
    """picture = <x1[p], x2[p + d]> / C. x1, x2: (C, H * (W + frame)) with zeros after each row."""
    height, width, dy, dx = place
    full_pitch = width + abs(dx) + frame
    pitch = width + frame
    first = frame + frame * pitch
    begin1 = max(0, -dy) * full_pitch + max(0, -dx)
    begin2 = max(0, dy) * full_pitch + max(0, dx)
    channels = x1.shape[0]
    share = _ONE / np.float32(channels)
    for y in range(height):
        row = picture[first + y * pitch : first + y * pitch + width]
        for x in range(width):
            row[x] = _ZERO
        for c in range(channels):
            a, b = x1[c, begin1 + y * full_pitch :], x2[c, begin2 + y * full_pitch :]
            for x in range(width):
                row[x] += a[x] * b[x]
        for x in range(width):
            row[x] *= share
    _clear_frame(picture, height, width, frame)


@compiled
def _load_pooled(pooled, picture, place, frame):  # type: ignore[no-untyped-def]
    """picture = the offset's picture out of a pooled covariance (2H-1, 2W-1, H, W)."""
    height, width, dy, dx = place
    full_height, full_width = pooled.shape[2], pooled.shape[3]
    pitch = width + frame
    first = frame + frame * pitch
    source = pooled[dy + full_height - 1, dx + full_width - 1]
    for y in range(height):
        for x in range(width):
            picture[first + y * pitch + x] = source[y, x]
    _clear_frame(picture, height, width, frame)


@compiled
def _pool(picture, pooled, place, block, frame):  # type: ignore[no-untyped-def]
    """Adds an offset's picture to the block means. pooled: (2H-1, 2W-1, H, W), positions cropped as in pictures."""
    height, width, dy, dx = place
    full_height, full_width = pooled.shape[2], pooled.shape[3]
    pitch = width + frame
    first = frame + frame * pitch
    share = _ONE / np.float32(block**4)
    for y in range(height):
        y1 = (y + max(0, -dy)) // block
        y2 = (y + max(0, dy)) // block
        if y1 >= full_height or y2 >= full_height:
            continue
        for x in range(width):
            x1 = (x + max(0, -dx)) // block
            x2 = (x + max(0, dx)) // block
            if x1 >= full_width or x2 >= full_width:
                continue
            # the cropped picture of offset d starts at the first position whose partner exists
            row, column = min(y1, y2), min(x1, x2)
            pooled[y2 - y1 + full_height - 1, x2 - x1 + full_width - 1, row, column] += (
                share * picture[first + y * pitch + x]
            )


@compiled
def _convert(registers, op, place, frame):  # type: ignore[no-untyped-def]
    """Second picture plus (T to U) or minus (U to T) the first; also copies K when the register changes."""
    n = 2 * frame + (place[0] + 2 * frame) * (place[1] + frame)
    source, out = registers[op[SRC]], registers[op[DST]]
    k, t, new_k, new_t = source[0, :n], source[1, :n], out[0, :n], out[1, :n]
    sign = np.float32(op[SIGN])
    for e in range(n):
        new_t[e] = t[e] + sign * k[e]
    if op[SRC] != op[DST]:
        for e in range(n):
            new_k[e] = k[e]


@compiled
def _copy(source, out, place, frame):  # type: ignore[no-untyped-def]
    n = 2 * frame + (place[0] + 2 * frame) * (place[1] + frame)
    a, b = source[:n], out[:n]
    for e in range(n):
        b[e] = a[e]


@compiled
def _add(source, out, place, frame):  # type: ignore[no-untyped-def]
    n = 2 * frame + (place[0] + 2 * frame) * (place[1] + frame)
    a, b = source[:n], out[:n]
    for e in range(n):
        b[e] += a[e]


@compiled
def _total(picture, place, frame):  # type: ignore[no-untyped-def]
    n = 2 * frame + (place[0] + 2 * frame) * (place[1] + frame)
    part = picture[:n]
    total = _ZERO
    for e in range(n):
        total += part[e]
    return np.float64(total)


@compiled
def _run_ops(tables, buffers, maps1, maps2, span, offset, frame, tangent, alone):  # type: ignore[no-untyped-def]
    """The ops of one stage on one offset. alone: the pair is an item with itself at offset zero."""
    ops, weights = tables[0], tables[1]
    registers, column, scratch = buffers[0], buffers[1], buffers[2]
    for o in range(span[0], span[1]):
        op = ops[o]
        factor = op[FACTOR]
        dy, dx = offset[0] // factor, offset[1] // factor
        place = (op[HEIGHT] - abs(dy), op[WIDTH] - abs(dx), dy, dx)
        if op[CODE] == CONV:
            _convolve(registers, column, op, weights[o], place, frame, tangent)
        elif op[CODE] == RELU:
            if alone:
                _record(registers, op, maps1, frame)
            else:
                _rectify(registers, scratch, op, maps1, maps2, place, frame, tangent)
        elif op[CODE] == ADD:
            _add(registers[op[SRC], 0], registers[op[DST], 0], place, frame)
            if tangent:
                _add(registers[op[SRC], 1], registers[op[DST], 1], place, frame)
        elif op[CODE] == CONVERT:
            _convert(registers, op, place, frame)


@compiled
def _run_pair(x1, x2, maps1, maps2, tables, buffers, frame, tangent, same):  # type: ignore[no-untyped-def]
    """Sums of K and of the second picture over all needed position pairs after the last spatial layer."""
    stages, offsets = tables[2], tables[3]
    registers, pooled_k, pooled_t = buffers[0], buffers[3], buffers[4]
    total_k = total_t = 0.0
    pooled_k[:] = _ZERO
    pooled_t[:] = _ZERO
    for o in range(offsets.shape[0]):
        index, dy, dx = np.int64(offsets[o, 0]), np.int64(offsets[o, 1]), np.int64(offsets[o, 2])
        stage = stages[index]
        height, width = np.int64(stage[2]), np.int64(stage[3])
        place = (height - abs(dy), width - abs(dx), dy, dx)
        if index == 0:
            _load_inputs(x1, x2, registers[0, 0], place, frame)
            if tangent:
                _copy(registers[0, 0], registers[0, 1], place, frame)
        else:
            area = (2 * height - 1) * (2 * width - 1) * height * width
            shape = (2 * height - 1, 2 * width - 1, height, width)
            _load_pooled(pooled_k[stage[9] : stage[9] + area].reshape(shape), registers[0, 0], place, frame)
            if tangent:
                _load_pooled(pooled_t[stage[9] : stage[9] + area].reshape(shape), registers[0, 1], place, frame)
        alone = same and dy == 0 and dx == 0
        _run_ops(tables, buffers, maps1, maps2, (stage[0], stage[1]), (dy, dx), frame, tangent, alone)
        dy, dx = dy // stage[8], dx // stage[8]
        place = (np.int64(stage[6]) - abs(dy), np.int64(stage[7]) - abs(dx), dy, dx)
        result = registers[stage[5]]
        if stage[4] == 0:
            total_k += _total(result[0], place, frame)
            total_t += _total(result[1], place, frame) if tangent else 0.0
        else:
            following = stages[index + 1]
            height, width = np.int64(following[2]), np.int64(following[3])
            area = (2 * height - 1) * (2 * width - 1) * height * width
            shape = (2 * height - 1, 2 * width - 1, height, width)
            begin = following[9]
            _pool(result[0], pooled_k[begin : begin + area].reshape(shape), place, stage[4], frame)
            if tangent:
                _pool(result[1], pooled_t[begin : begin + area].reshape(shape), place, stage[4], frame)
    return total_k, total_t


@compiled
def run_tile(side1, side2, tables, buffers, frame, diagonal, out):  # type: ignore[no-untyped-def]
    """out[c, i, j] = sums for items i of side1 and j of side2; c = 0 for K, c = 1 for the second picture (if asked).

    A side is (inputs (n, C, H * (W + frame)), maps (n, maps_size)). Entries with j < i + diagonal are left alone.
    """
    tangent = out.shape[0] == 2
    for i in range(out.shape[1]):
        for j in range(max(0, i + diagonal), out.shape[2]):
            k, t = _run_pair(
                side1[0][i], side2[0][j], side1[1][i], side2[1][j], tables, buffers, frame, tangent, False
            )
            out[0, i, j] = k
            if tangent:
                out[1, i, j] = t


@compiled
def run_items(inputs, maps, tables, buffers, frame, out):  # type: ignore[no-untyped-def]
    """Fills `maps` (n, maps_size) with each item's scales; out[i] = sum of its variances after the last layer."""
    for i in range(inputs.shape[0]):
        k, _ = _run_pair(inputs[i], inputs[i], maps[i], maps[i], tables, buffers, frame, False, True)
        out[i] = k
