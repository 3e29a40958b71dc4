"""WAV and RF64 files with plain samples: where the samples are, so that any range of them is one read.

The sizes in a header are not trusted. A data chunk that is cut off, or whose size was never filled in (0, or 2^32 - 1),
ends where the bytes end.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
UNKNOWN_SIZE = 0xFFFFFFFF
MAX_CHUNKS = 64  # before the samples; a longer list is left to a decoder
_BITS = {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}


class Sliceable(Protocol):
    """Bytes, or a file that is read where it is sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class WavLayout(NamedTuple):
    """Plain samples in a file: integers of 8 to 32 bits, or floats of 32 or 64 bits."""

    offset: int  # of the first sample
    n_frames: int  # that exist
    stated_frames: int  # that the header states
    sample_rate: int
    channels: int
    code: int  # PCM or FLOAT
    bits: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


def wav_layout(data: Sliceable) -> WavLayout | None:
    """The layout; None when the file is no WAV, or its samples need a decoder."""
    head = data[0:12]
    if head[:4] not in (b"RIFF", b"RF64") or head[8:12] != b"WAVE":
        return None
    offset, n_bytes, form, long_size = 12, len(data), None, None
    for _ in range(MAX_CHUNKS):
        chunk = data[offset : offset + 8]
        if len(chunk) < 8:
            return None
        name, size = struct.unpack("<4sI", chunk)
        if name == b"ds64":
            sizes = data[offset + 8 : offset + 32]
            long_size = struct.unpack("<QQQ", sizes)[1] if len(sizes) == 24 else None
        elif name == b"fmt ":
            form = _form(data[offset + 8 : offset + 8 + min(size, 40)])
        elif name == b"data":
            stated = long_size if long_size is not None and size == UNKNOWN_SIZE else size
            return _layout(form, offset + 8, stated, n_bytes - offset - 8)
        offset += 8 + size + (size & 1)
    return None


def _form(data: bytes) -> tuple[int, ...] | None:
    if len(data) < 16:
        return None
    form = struct.unpack_from("<HHIIHH", data)
    if form[0] == EXTENSIBLE and len(data) >= 26:
        form = (int.from_bytes(data[24:26], "little"), *form[1:])
    return form


def _layout(form: tuple[int, ...] | None, offset: int, stated: int, left: int) -> WavLayout | None:
    if form is None:
        return None
    code, channels, sample_rate, _, block, bits = form
    if bits not in _BITS.get(code, ()) or block != channels * bits // 8 or block == 0 or sample_rate == 0:
        return None
    n_bytes = min(stated, left) if stated else left
    return WavLayout(offset, n_bytes // block, stated // block, sample_rate, channels, code, bits)


def wav_header(n_bytes: int, layout: WavLayout) -> bytes:
    """The header of a WAV of `n_bytes` of samples; the same for the same arguments."""
    block = layout.frame_bytes
    form = struct.pack(
        "<HHIIHH", layout.code, layout.channels, layout.sample_rate, layout.sample_rate * block, block, layout.bits
    )
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    if layout.code == FLOAT:
        chunks += b"fact" + struct.pack("<II", 4, n_bytes // block)
    size = 4 + len(chunks) + 8 + n_bytes + (n_bytes & 1)
    return b"RIFF" + struct.pack("<I", size) + b"WAVE" + chunks + b"data" + struct.pack("<I", n_bytes)


def header_bytes(code: int) -> int:
    """The length of `wav_header`."""
    return 44 if code == PCM else 56
