"""The inner loops of the fused path, compiled by numba at the first call and cached on disk.

The loops process one pair of items at a time, and all layers of one offset picture while it is in cache (the tables are
explained in `core.kernels.plan`). Pictures are float32 and flat: a row of w positions is followed by `frame` zeros,
which are the right edge of this row and the left edge of the next; there are `frame` rows of zeros above and below. A
box filter is therefore a sum of shifted flat arrays, which compiles to plain vector code. The loops use slices that
start at zero and never the same array as input and output, because only these can the vectorizer prove independent.

Arc-cosine without trigonometry. With rho = K / sqrt(v v'), a = |rho|, q = sqrt(1 - a):
    ReLU       K <- max(K, 0) / 2 + sqrt(v v') q^3 R(a)
    derivative     1/2 - q P(a)  for rho >= 0,    q P(a)  for rho < 0
where P(a) = acos(a) / (2 pi q) and R(a) = (sqrt(1 - a^2) - a acos(a)) / (2 pi q^3) are smooth on [0, 1]: polynomials
of degree 6 and 5 are exact to 3e-8. Correlations within 4e-7 of one, the resolution of float32, count as one.

geometry: (height, width, dy, dx, frame) of a picture, cropped to the positions that have a partner at the offset.
All compiled code is in this file (`core.numba_compilation` says why).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.kernels.plan import ADD, CODE, CONV, CONVERT, DST, FACTOR, FIRST, HEIGHT, RELU, SIZE, SLOT, SRC, STRIDE, WIDTH
from core.numba_compilation import compiled

Buffer = Any  # flat or stacked pictures; numba infers the types from the arguments
Geometry = tuple[int, int, int, int, int]

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_SAME = np.float32(4e-7)
_TINY = np.float32(1e-18)  # a standard deviation below this counts as 0: its inverse squared would overflow float32
_P0, _P1, _P2 = np.float32(0.249999968), np.float32(-0.0341517843), np.float32(0.0141199226)
_P3, _P4, _P5 = np.float32(-0.00774198606), np.float32(0.00423317076), np.float32(-0.00173155328)
_P6, _R0, _R1 = np.float32(0.000351359364), np.float32(0.15915492), np.float32(-0.0112658735)
_R2, _R3, _R4 = np.float32(0.00297210357), np.float32(-0.00113455957), np.float32(0.00040890751)
_R5 = np.float32(-0.0000827927512)


# Reordering sums and fused multiply-add are allowed; approximate division and square root are not. Arrays are not
# reference-counted (`_nrt`): no function here makes or returns one, and counting costs as much as a small image.
_loop = compiled(error_model="numpy", fastmath={"reassoc", "contract", "nsz", "nnan", "ninf"}, _nrt=False)


@_loop
def _clear_edges(picture: Buffer, geometry: Geometry) -> None:
    """Write zeros to the rows above and below the picture."""
    frame, pitch = geometry[4], geometry[1] + geometry[4]
    n, end = frame + frame * pitch, frame + (geometry[0] + frame) * pitch
    above, below = picture[:n], picture[end : end + n]
    for e in range(n):
        above[e] = _ZERO
    for e in range(n):
        below[e] = _ZERO


@_loop
def _clear_frame(picture: Buffer, geometry: Geometry) -> None:
    """Write zeros after each row, and above and below the picture."""
    _clear_edges(picture, geometry)
    width, frame = geometry[1], geometry[4]
    pitch = width + frame
    for x in range(frame):
        gap = picture[frame + frame * pitch + width + x :]
        for y in range(geometry[0]):
            gap[y * pitch] = _ZERO


@_loop
def _shifted_sum(source: Buffer, out: Buffer, step: int, taps: int, weights: Any) -> None:
    """out[e] = weight * (sum over t < taps of source[e + t * step]) + bias."""
    weight, bias = weights
    n = out.size
    a = source[:n]
    if taps == 3:
        b, c = source[step : step + n], source[2 * step : 2 * step + n]
        for e in range(n):
            out[e] = weight * (a[e] + b[e] + c[e]) + bias
    elif taps == 5:
        b, c = source[step : step + n], source[2 * step : 2 * step + n]
        d, g = source[3 * step : 3 * step + n], source[4 * step : 4 * step + n]
        for e in range(n):
            out[e] = weight * ((a[e] + b[e]) + (c[e] + d[e]) + g[e]) + bias
    else:
        for e in range(n):
            out[e] = weight * a[e] + bias
        for t in range(1, taps):
            b = source[t * step : t * step + n]
            for e in range(n):
                out[e] += weight * b[e]


@_loop
def _strided_sum(source: Buffer, out: Buffer, stride: int, taps: int, weights: Any) -> None:
    """out[x] = weight * (sum over t < taps of source[x * stride + t]) + bias."""
    weight, bias = weights
    for x in range(out.size):
        out[x] = bias
    for t in range(taps):
        shifted = source[t:]
        if stride == 2:
            for x in range(out.size):
                out[x] += weight * shifted[2 * x]
        else:
            for x in range(out.size):
                out[x] += weight * shifted[x * stride]


@_loop
def _box(source: Buffer, out: Buffer, column: Buffer, op: Buffer, weights: Buffer, geometry: Geometry) -> None:
    """out = weight * (box sum of source, SAME padding) + bias. `column` takes the vertical sums, without edge rows."""
    height, width, dy, dx, frame = geometry
    size, stride = op[SIZE], op[STRIDE]
    out_rows, out_columns = -(-op[HEIGHT] // stride), -(-op[WIDTH] // stride)
    pad_y = max((out_rows - 1) * stride + size - op[HEIGHT], 0) // 2
    pad_x = max((out_columns - 1) * stride + size - op[WIDTH], 0) // 2
    out_height, out_width = out_rows - abs(dy) // stride, out_columns - abs(dx) // stride
    pitch, out_pitch = width + frame, out_width + frame
    first, out_first = frame + frame * pitch, frame + frame * out_pitch
    affine = (weights[0], weights[1])
    for x in range(frame):
        column[x] = _ZERO
        column[frame + out_height * pitch + x] = _ZERO
    if stride == 1:
        n = height * pitch
        _shifted_sum(source[first - pad_y * pitch :], column[frame : frame + n], pitch, size, (_ONE, _ZERO))
        _shifted_sum(column[frame - pad_x :], out[out_first : out_first + n], 1, size, affine)
    else:
        for y in range(out_height):
            begin, line = first + (y * stride - pad_y) * pitch, column[frame + y * pitch :]
            _shifted_sum(source[begin:], line[:pitch], pitch, size, (_ONE, _ZERO))
        for y in range(out_height):
            begin, line = out_first + y * out_pitch, column[frame + y * pitch - pad_x :]
            _strided_sum(line, out[begin : begin + out_width], stride, size, affine)
    _clear_frame(out, (out_height, out_width, dy // stride, dx // stride, frame))


@_loop
def _convolve(buffers: Any, op: Buffer, weights: Buffer, geometry: Geometry, tangent: bool) -> None:
    """Convolution op: K from K, T from U (which equals K while T is zero)."""
    registers, column = buffers[0], buffers[1]
    source, out = registers[op[SRC]], registers[op[DST]]
    _box(source[0], out[0], column, op, weights, geometry)
    if tangent and op[FIRST]:
        _add(out[0], out[1], geometry, True)  # the input's size bounds the output's
    elif tangent:
        _box(source[1], out[1], column, op, weights, geometry)


@_loop
def _add(source: Buffer, out: Buffer, geometry: Geometry, fresh: bool) -> None:
    """out = source if fresh, else out + source."""
    n = 2 * geometry[4] + (geometry[0] + 2 * geometry[4]) * (geometry[1] + geometry[4])
    a, b = source[:n], out[:n]
    if fresh:
        for e in range(n):
            b[e] = a[e]
    else:
        for e in range(n):
            b[e] += a[e]


@_loop
def _convert(registers: Buffer, op: Buffer, geometry: Geometry) -> None:
    """K is unchanged; the second picture becomes itself plus K (T to U) or minus K (U to T)."""
    n = 2 * geometry[4] + (geometry[0] + 2 * geometry[4]) * (geometry[1] + geometry[4])
    source, out = registers[op[SRC]], registers[op[DST]]
    k, t, new_t = source[0, :n], source[1, :n], out[1, :n]
    sign = np.float32(op[SIZE])
    for e in range(n):
        new_t[e] = t[e] + sign * k[e]
    _add(source[0], out[0], geometry, True)


@_loop
def _crop(ops: Buffer, span: tuple[int, int], maps: Buffer, out: Buffer, offset: tuple[int, int, int]) -> None:
    """out = one item's maps without the columns that have no partner at this offset, with contiguous rows.

    offset: (dx, side, frame), side +1 for the first item of the pair and -1 for the second. All rows are kept, so the
    result is valid for every dy.
    """
    frame = offset[2]
    for o in range(span[0], span[1]):
        op = ops[o]
        if op[CODE] == RELU:
            dx = offset[0] // op[FACTOR]
            full_pitch, height, width = op[WIDTH] + frame, op[HEIGHT], op[WIDTH] - abs(dx)
            pitch, skipped = width + frame, max(0, -offset[1] * dx)
            for start in (op[SLOT], op[SLOT] + height * full_pitch):
                for y in range(height):
                    a, c = maps[start + y * full_pitch + skipped :], out[start + y * pitch :]
                    for x in range(width):
                        c[x] = a[x]
                    for x in range(frame):
                        c[width + x] = _ZERO


@_loop
def _arc_cosine(k: Buffer, t: Buffer, roots: Any, out_k: Buffer, out_u: Buffer) -> None:
    """(K, T) to (K, U) for ReLU. roots: sqrt(v) and 1 / sqrt(v) of item 1, then of item 2."""
    root1, inverse1, root2, inverse2 = roots
    for e in range(k.size):
        rho = k[e] * (inverse1[e] * inverse2[e])
        a = abs(rho)
        rest = _ONE - a
        rest = rest if rest > _SAME else _ZERO
        q = math.sqrt(rest)
        P = _P0 + a * (_P1 + a * (_P2 + a * (_P3 + a * (_P4 + a * (_P5 + a * _P6)))))
        R = _R0 + a * (_R1 + a * (_R2 + a * (_R3 + a * (_R4 + a * _R5))))
        qP = q * P
        new = _HALF * max(k[e], _ZERO) + (root1[e] * root2[e]) * (q * rest * R)
        out_k[e] = new
        out_u[e] = new + (_HALF - qP if rho >= _ZERO else qP) * t[e]


@_loop
def _rectify(registers: Buffer, op: Buffer, maps1: Buffer, maps2: Buffer, geometry: Geometry) -> None:
    """ReLU op: (K, T) to (K, U). Maps are cropped to the picture's columns."""
    height, width, dy, _, frame = geometry
    pitch = width + frame
    n, area = height * pitch, op[HEIGHT] * (op[WIDTH] + frame)
    a, b = op[SLOT] + max(0, -dy) * pitch, op[SLOT] + max(0, dy) * pitch
    roots1, inverses1 = maps1[a : a + n], maps1[a + area : a + area + n]
    roots2, inverses2 = maps2[b : b + n], maps2[b + area : b + area + n]
    source, out = registers[op[SRC]], registers[op[DST]]
    first = frame + frame * pitch
    k, t = source[0, first : first + n], source[1, first : first + n]
    new_k, new_u = out[0, first : first + n], out[1, first : first + n]
    _arc_cosine(k, t, (roots1, inverses1, roots2, inverses2), new_k, new_u)
    _clear_edges(out[0], geometry)
    _clear_edges(out[1], geometry)


@_loop
def _record(registers: Buffer, op: Buffer, maps: Buffer, geometry: Geometry) -> None:
    """ReLU op on the variances v of one item: stores sqrt(v) and 1 / sqrt(v), and halves v."""
    frame, pitch = geometry[4], geometry[1] + geometry[4]
    n, first, slot = geometry[0] * pitch, frame + frame * pitch, op[SLOT]
    source, out = registers[op[SRC], 0], registers[op[DST], 0]
    for e in range(n):
        v = source[first + e]
        root = math.sqrt(max(v, _ZERO))
        maps[slot + e] = root if root > _TINY else _ZERO
        maps[slot + n + e] = _ONE / root if root > _TINY else _ZERO
        out[first + e] = _HALF * v
    _clear_edges(out, geometry)


@_loop
def _load_inputs(x1: Buffer, x2: Buffer, picture: Buffer, geometry: Geometry) -> None:
    """picture = <x1[p], x2[p + d]> / C. x1, x2: (C, H * (W + frame)) with zeros after each row."""
    height, width, dy, dx, frame = geometry
    pitch, full_pitch = width + frame, width + abs(dx) + frame
    begin1 = max(0, -dy) * full_pitch + max(0, -dx)
    begin2 = max(0, dy) * full_pitch + max(0, dx)
    share = _ONE / np.float32(x1.shape[0])
    for y in range(height):
        row = picture[frame + (frame + y) * pitch : frame + (frame + y) * pitch + width]
        for x in range(width):
            row[x] = _ZERO
        for c in range(x1.shape[0]):
            a, b = x1[c, begin1 + y * full_pitch :], x2[c, begin2 + y * full_pitch :]
            for x in range(width):
                row[x] += share * (a[x] * b[x])
    _clear_frame(picture, geometry)


@_loop
def _load_pooled(pooled: Buffer, stage: Buffer, picture: Buffer, geometry: Geometry) -> None:
    """picture = one offset of a pooled covariance (2H-1, 2W-1, H, W), whose pictures are cropped in the same way."""
    height, width, dy, dx, frame = geometry
    pitch = width + frame
    begin = stage[9] + ((dy + stage[2] - 1) * (2 * stage[3] - 1) + dx + stage[3] - 1) * stage[2] * stage[3]
    for y in range(height):
        for x in range(width):
            picture[frame + (frame + y) * pitch + x] = pooled[begin + y * stage[3] + x]
    _clear_frame(picture, geometry)


@_loop
def _pool(picture: Buffer, pooled: Buffer, stage: Buffer, geometry: Geometry, block: int) -> None:
    """Add an offset's picture to the block means that the following stage, `stage`, reads."""
    height, width, dy, dx, frame = geometry
    pitch, rows, columns = width + frame, stage[2], stage[3]
    share = _ONE / np.float32(block**4)
    for y in range(height):
        y1, y2 = (y + max(0, -dy)) // block, (y + max(0, dy)) // block
        if max(y1, y2) >= rows:
            continue
        begin = stage[9] + (y2 - y1 + rows - 1) * (2 * columns - 1) * rows * columns
        for x in range(width):
            x1, x2 = (x + max(0, -dx)) // block, (x + max(0, dx)) // block
            if max(x1, x2) < columns:
                # a cropped picture starts at the first position whose partner exists: the smaller of the two
                at = (x2 - x1 + columns - 1) * rows * columns + min(y1, y2) * columns + min(x1, x2)
                pooled[begin + at] += share * picture[frame + (frame + y) * pitch + x]


@_loop
def _total(picture: Buffer, geometry: Geometry) -> float:
    part = picture[: 2 * geometry[4] + (geometry[0] + 2 * geometry[4]) * (geometry[1] + geometry[4])]
    total = _ZERO
    for e in range(part.size):
        total += part[e]
    return np.float64(total)


@_loop
def _run_ops(tables: Any, buffers: Any, maps: Any, index: int, offset: tuple[int, int, int], flags: Any) -> None:
    """The ops of one stage on one offset (dy, dx, frame). flags: whether T is computed; whether this is an item with
    itself at offset zero."""
    ops, weights, stage = tables[0], tables[1], tables[2][index]
    registers = buffers[0]
    for o in range(stage[0], stage[1]):
        op = ops[o]
        dy, dx = offset[0] // op[FACTOR], offset[1] // op[FACTOR]
        geometry = (op[HEIGHT] - abs(dy), op[WIDTH] - abs(dx), dy, dx, offset[2])
        if op[CODE] == CONV:
            _convolve(buffers, op, weights[o], geometry, flags[0])
        elif op[CODE] == RELU and flags[1]:
            _record(registers, op, maps[0], geometry)
        elif op[CODE] == RELU:
            _rectify(registers, op, maps[0], maps[1], geometry)
        elif op[CODE] == ADD:
            for c in range(2):
                _add(registers[op[SRC], c], registers[op[DST], c], geometry, False)
        elif op[CODE] == CONVERT:
            _convert(registers, op, geometry)


@_loop
def _run_offset(inputs: Any, maps: Any, tables: Any, buffers: Any, at: tuple[int, int], flags: Any) -> Any:
    """All layers of one stage on one offset of a pair; returns the geometry of the result. at: (offset's number,
    frame)."""
    offset, stage = tables[3][at[0]], tables[2][tables[3][at[0], 0]]
    registers, pooled = buffers[0], buffers[3]
    dy, dx, frame = offset[1], offset[2], at[1]
    geometry = (stage[2] - abs(dy), stage[3] - abs(dx), dy, dx, frame)
    if offset[0] == 0:
        _load_inputs(inputs[0], inputs[1], registers[0, 0], geometry)
        _add(registers[0, 0], registers[0, 1], geometry, True)
    else:
        for c in range(2):
            _load_pooled(pooled[c], stage, registers[0, c], geometry)
    itself = flags[1] and dy == 0 and dx == 0
    _run_ops(tables, buffers, maps, offset[0], (dy, dx, frame), (flags[0], itself))
    dy, dx = dy // stage[8], dx // stage[8]
    return stage[6] - abs(dy), stage[7] - abs(dx), dy, dx, frame


@_loop
def _run_block(sides: Any, tables: Any, buffers: Any, geometries: tuple[int, int], flags: Any, out: Buffer) -> None:
    """Like `run_tile`, offset by offset: the maps of an item are cropped once for all its pairs. With several stages,
    a block is one pair, because the pooled covariances are those of one pair."""
    inputs1, maps1, inputs2, maps2 = sides
    stages, offsets, shares, cropped = tables[2], tables[3], tables[4], buffers[2]
    n1, frame = out.shape[1], geometries[0]
    for o in range(offsets.shape[0]):
        index, dx = offsets[o, 0], offsets[o, 2]
        stage, result = stages[index], buffers[0][stages[index, 5]]
        if dx != 0 and dx != offsets[o - 1, 2]:
            for i in range(n1):
                _crop(tables[0], (stage[0], stage[1]), maps1[i], cropped[i], (dx, 1, frame))
            for j in range(out.shape[2]):
                _crop(tables[0], (stage[0], stage[1]), maps2[j], cropped[n1 + j], (dx, -1, frame))
        for i in range(n1):
            for j in range(max(0, i + geometries[1]), out.shape[2]):
                maps = (maps1[i], maps2[j]) if dx == 0 else (cropped[i], cropped[n1 + j])
                geometry = _run_offset((inputs1[i], inputs2[j]), maps, tables, buffers, (o, frame), flags)
                for c in range(2):
                    if stage[4] == 0:
                        out[c, i, j] += shares[o] * _total(result[c], geometry)
                    else:
                        _pool(result[c], buffers[3][c], stages[index + 1], geometry, stage[4])


@_loop
def run_tile(sides: Any, tables: Any, buffers: Any, geometries: tuple[int, int], flags: Any, out: Buffer) -> None:
    """out[0, i, j], out[1, i, j] = sums of K and of the second picture for items i of side 1 and j of side 2.

    sides: inputs (n1, C, H * (W + frame)) and maps (n1, maps_size) of side 1, then of side 2. geometries: (frame,
    diagonal); entries with j < i + diagonal are not changed. flags: whether the second picture is computed; whether to
    pair each item only with itself and fill its maps. `out` must be zero at the start.
    """
    inputs1, maps1, inputs2, maps2 = sides
    if tables[2].shape[0] == 1 and not flags[1]:
        _run_block(sides, tables, buffers, geometries, flags, out)
        return
    for i in range(out.shape[1]):
        for j in range(max(0, i + geometries[1]), i + 1 if flags[1] else out.shape[2]):
            pair = (inputs1[i : i + 1], maps1[i : i + 1], inputs2[j : j + 1], maps2[j : j + 1])
            buffers[3][:] = _ZERO
            _run_block(pair, tables, buffers, (geometries[0], 0), flags, out[:, i : i + 1, j : j + 1])
