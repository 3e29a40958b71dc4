"""A reader of untrusted zip archives, in constant memory per entry.

The central directory is walked entry by entry from the file, so an archive with ten million names costs no more memory
than one with ten. Before anything is unpacked, the number of entries, their sizes and their overlaps are checked.
During unpacking, bytes are counted, and sizes and CRC are compared with the declared ones. Nothing is ever written
under a name from the archive.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from core.errors import InvalidInput
from core.limits import MIB, Limits

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _UTF8 = 1, 0x800
_STORED, _DEFLATED = 0, 8
_CHUNK = 1 << 20
_UNIX = 3


class BadEntry(Exception):
    """One entry that is not imported; the text is the reason. The other entries are still read."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One line of the central directory."""

    name: str
    position: int  # of this line in the file: its identity
    header: int  # where its data begins, with a local header
    packed: int
    size: int
    crc: int
    method: int
    flags: int
    mode: int  # Unix mode, 0 if the archive has none
    n_name: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/") and self.size == 0


class ZipReader:
    """`entries()` in the order of the directory; `read(entry)` gives its bytes in blocks."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        try:
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 (closed by close)
        except OSError as problem:
            raise InvalidInput(f"The archive {path} cannot be read: {problem.strerror}.") from problem
        try:
            self._n_bytes = os.fstat(self._file.fileno()).st_size
            self._start, self._end, self._shift = self._directory()
            self._check_all()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def entries(self) -> Iterator[ZipEntry]:
        position = self._start
        while position < self._end:
            entry, position = self._entry(position)
            yield entry

    def entry_at(self, position: int) -> ZipEntry:
        return self._entry(position)[0]

    def read(self, entry: ZipEntry) -> Iterator[bytes]:
        """The entry's bytes, at most as many as declared. Raises `BadEntry` if they are more, fewer or damaged."""
        at, left = self._data_of(entry), entry.packed
        decompress = zlib.decompressobj(-15) if entry.method == _DEFLATED else None
        n_bytes = crc = 0
        pending = b""
        while left or pending:
            if not pending:
                pending = self._read_at(at, min(left, _CHUNK))
                if not pending:
                    raise BadEntry("The archive ends before this entry does.")
                at, left = at + len(pending), left - len(pending)
            block, pending = self._unpacked(decompress, pending)
            n_bytes, crc = n_bytes + len(block), zlib.crc32(block, crc)
            if n_bytes > entry.size:
                raise BadEntry(f"It unpacks to more than the {entry.size:,} bytes that it declares.")
            if block:
                yield block
            if decompress is not None and decompress.eof:
                break
        if n_bytes != entry.size or crc != entry.crc:
            raise BadEntry(f"It is damaged: {n_bytes:,} bytes of {entry.size:,}, or a wrong checksum.")

    def _unpacked(self, decompress: zlib._Decompress | None, packed: bytes) -> tuple[bytes, bytes]:
        if decompress is None:
            return packed, b""
        try:
            return decompress.decompress(packed, _CHUNK), decompress.unconsumed_tail
        except zlib.error as problem:
            raise BadEntry(f"It is damaged: {problem}.") from problem

    def _data_of(self, entry: ZipEntry) -> int:
        if entry.flags & _ENCRYPTED:
            raise BadEntry("It is encrypted. Unpack it and import the folder.")
        if entry.method not in (_STORED, _DEFLATED):
            raise BadEntry(f"Its compression method {entry.method} is not supported; use deflate.")
        local = self._read_at(entry.header, _LOCAL.size)
        if len(local) < _LOCAL.size or local[:4] != b"PK\x03\x04":
            raise BadEntry("Its local header is missing.")
        *_, n_name, n_extra = _LOCAL.unpack(local)
        central_name = self._read_at(entry.position + _CENTRAL.size, entry.n_name)
        if self._read_at(entry.header + _LOCAL.size, n_name) != central_name:
            raise BadEntry("Its local header and the directory have different names.")
        return int(entry.header + _LOCAL.size + n_name + n_extra)

    def _read_at(self, offset: int, n_bytes: int) -> bytes:
        return os.pread(self._file.fileno(), n_bytes, offset)

    def _directory(self) -> tuple[int, int, int]:
        """(start, end, shift) of the central directory; `shift` is the position at which the archive begins."""
        tail_at = max(0, self._n_bytes - _END.size - 65_535)
        tail = self._read_at(tail_at, self._n_bytes - tail_at)
        found = tail.rfind(b"PK\x05\x06")
        if found < 0 or found + _END.size > len(tail):
            raise InvalidInput(f"{self.path.name} is not a complete zip archive: its directory is missing.")
        _, _, _, _, count, size, offset, _ = _END.unpack_from(tail, found)
        end = tail_at + found
        locator = self._read_at(max(0, end - _END64_LOCATOR.size), _END64_LOCATOR.size)
        if locator[:4] == b"PK\x06\x07":
            record = self._read_at(_END64_LOCATOR.unpack(locator)[2], _END64.size)
            if len(record) == _END64.size and record[:4] == b"PK\x06\x06":
                *_, count, size, offset = _END64.unpack(record)
                end = _END64_LOCATOR.unpack(locator)[2]
        if count > self.limits.max_zip_entries:
            raise self._too_many(count)
        start = end - size
        if start < 0 or offset > start:
            raise InvalidInput(f"{self.path.name} is damaged: its directory is not at the stated position.")
        return start, end, start - offset

    def _too_many(self, count: int) -> InvalidInput:
        return InvalidInput(
            f"{self.path.name} holds {count:,} entries or more; the limit is {self.limits.max_zip_entries:,} "
            "(max_zip_entries). Split it, or raise the limit."
        )

    def _check_all(self) -> None:
        """One pass over the directory: counts, sums and overlaps (16 bytes of memory per entry)."""
        spans, total = array("Q"), 0
        for n_entries, entry in enumerate(self.entries(), 1):
            if n_entries > self.limits.max_zip_entries:
                raise self._too_many(n_entries)
            total += entry.size
            spans.append(entry.header)
            spans.append(entry.header + _LOCAL.size + entry.n_name + entry.packed)
        if total > self.limits.max_zip_bytes:
            raise InvalidInput(
                f"{self.path.name} unpacks to {total:,} bytes; the limit is {self.limits.max_zip_bytes:,} "
                "(max_zip_bytes). Split it, or raise the limit."
            )
        if total > 64 * MIB and total > self.limits.max_zip_ratio * self._n_bytes:
            raise InvalidInput(
                f"{self.path.name} unpacks to {total / self._n_bytes:,.0f} times its size; the limit is "
                f"{self.limits.max_zip_ratio:g} (max_zip_ratio). Such an archive can fill the disk."
            )
        if _overlap(spans):
            raise InvalidInput(
                f"{self.path.name} has entries that share the same bytes, which is a way to fill a disk. "
                "Nothing was imported; pack it again with a standard tool."
            )

    def _entry(self, position: int) -> tuple[ZipEntry, int]:
        line = self._read_at(position, _CENTRAL.size)
        if len(line) < _CENTRAL.size or line[:4] != b"PK\x01\x02":
            raise InvalidInput(f"{self.path.name} is damaged: its directory is truncated at byte {position:,}.")
        (_, made_by, _, flags, method, _, _, crc, packed, size, n_name, n_extra, n_comment, _, _, outside, header) = (
            _CENTRAL.unpack(line)
        )
        rest = self._read_at(position + _CENTRAL.size, n_name + n_extra)
        size, packed, header = _wide(rest[n_name:], size, packed, header)
        name = _decode_name(rest[:n_name], flags)
        mode = outside >> 16 if made_by >> 8 == _UNIX else 0
        entry = ZipEntry(name, position, header + self._shift, packed, size, crc, method, flags, mode, n_name)
        return entry, position + _CENTRAL.size + n_name + n_extra + n_comment


def _overlap(spans: array[int]) -> bool:
    import numpy as np

    pairs = np.frombuffer(spans, np.uint64).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return bool(np.any(pairs[1:, 0] < pairs[:-1, 1]))


def _wide(extra: bytes, *values: int) -> tuple[int, int, int]:
    """Sizes and offset; those that do not fit into 32 bits are in the zip64 field, in this order."""
    at, found = 0, list(values)
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            field, used = extra[at + 4 : at + 4 + size], 0
            for place, value in enumerate(found):
                if value == 0xFFFFFFFF and used + 8 <= len(field):
                    found[place] = int.from_bytes(field[used : used + 8], "little")
                    used += 8
            break
        at += 4 + size
    return found[0], found[1], found[2]


def _decode_name(raw: bytes, flags: int) -> str:
    """The name, decoded as UTF-8 if possible (many tools omit the flag for it), else in the format's code page."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace") if flags & _UTF8 else raw.decode("cp437")
