"""Index from a hash to its place in a pack: a log beside each pack, and one sorted table of all logs.

packs/<name>.log   one record for each content of packs/<name>.pack, in the order of writing; only its writer appends
packs/table        all records of the logs sorted by hash, with the count taken from each log; searched in a memory map

The logs are authoritative. The table can be deleted at any time and is rebuilt. Records that the table lacks are held
in memory; above `UNSORTED` records they are merged into a new table, which replaces the old one atomically, so memory
does not grow with the number of items. A record only says where to look: readers compare the bytes with the hash.

record   sha256 (32 bytes), number of the pack in the table (4; 0 in a log), n_bytes (4), offset (8), big-endian
table    mark, number of packs, number of records; for each pack its name (16) and its number of records (8); records
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct(">32sIIQ")
UNSORTED = 16_384  # records held in memory before they are merged into the table
_HEADER, _COVERED, _MARK = struct.Struct(">8sQQ"), struct.Struct(">16sQ"), b"winnow01"
_KEY = 32
_NAME = re.compile(r"[0-9a-f]{32}\Z")
_ABANDONED_SECONDS = 3600.0


class Slot(NamedTuple):
    """A byte range of a pack."""

    pack: str
    offset: int
    n_bytes: int


class _Table:
    """The sorted records in a memory map; empty when the file is missing or incomplete."""

    def __init__(self, path: Path | None) -> None:
        self.packs: list[str] = []
        self.covered: dict[str, int] = {}
        self.n_records, self._start = 0, 0
        self._data: mmap.mmap | bytes = b""
        if path is not None:
            with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
                self._read(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def _read(self, data: mmap.mmap) -> None:
        mark, n_packs, n_records = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (b"", 0, 0)
        start = _HEADER.size + n_packs * _COVERED.size
        if mark != _MARK or len(data) != start + n_records * RECORD.size:
            return
        for place in range(n_packs):
            name, n_covered = _COVERED.unpack_from(data, _HEADER.size + place * _COVERED.size)
            self.packs.append(name.hex())
            self.covered[name.hex()] = n_covered
        self._data, self._start, self.n_records = data, start, n_records

    def key(self, row: int) -> bytes:
        at = self._start + row * RECORD.size
        return self._data[at : at + _KEY]

    def first(self, key: bytes) -> int:
        """The first row whose hash is not below `key`."""
        return bisect_left(range(self.n_records), key, key=self.key)

    def rows(self, first: int, last: int) -> bytes:
        return self._data[self._start + first * RECORD.size : self._start + last * RECORD.size]

    def slots(self, key: bytes) -> Iterator[Slot]:
        for row in range(self.first(key), self.n_records):
            found, number, n_bytes, offset = RECORD.unpack_from(self._data, self._start + row * RECORD.size)
            if found != key:
                return
            if number < len(self.packs):
                yield Slot(self.packs[number], offset, n_bytes)


class PackIndex:
    """Finds contents by their hash. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "table"
        self._lock = threading.RLock()
        self._version: tuple[int, ...] | None = None
        self._table = _Table(None)
        self._recent: dict[bytes, tuple[Slot, ...]] = {}
        self._n_read: dict[str, int] = {}
        self._room = UNSORTED

    def find(self, sha256: str) -> list[Slot]:
        """Every place where the bytes may be, newest first, as of the last `refresh`."""
        key = bytes.fromhex(sha256)
        with self._lock:
            known = [*self._recent.get(key, ())]
            return [*known, *self._table.slots(key)] if self._table.n_records else known

    def note(self, sha256: str, slot: Slot) -> None:
        """Record a content of a pack that this process writes. Calls are made in the order of the log."""
        with self._lock:
            self._add(bytes.fromhex(sha256), slot)
            self._n_read[slot.pack] = self._n_read.get(slot.pack, 0) + 1

    @property
    def crowded(self) -> bool:
        """Whether so many records are in memory that `refresh` should write a new table."""
        return len(self._recent) > self._room

    def refresh(self) -> None:
        """Read what other processes have written since the last call."""
        with self._lock:
            self._reload()
            try:
                logs = [entry for entry in os.scandir(self.folder) if entry.name.endswith(".log")]
            except OSError:
                return  # nothing was ever packed here
            for entry in logs:
                with contextlib.suppress(OSError):
                    self._read_log(entry)
            if self.crowded:
                self._merge()

    def hashes(self) -> Iterator[str]:
        """Every recorded hash once, in bounded memory."""
        self.refresh()
        with self._lock:
            table, recent = self._table, sorted(self._recent)
        yield from (key.hex() for key in recent)
        last = b""
        for row in range(table.n_records):
            key = table.key(row)
            place = bisect_left(recent, key)
            if key != last and (place == len(recent) or recent[place] != key):
                yield key.hex()
            last = key

    def _reload(self) -> None:
        """Reload the table, and drop the records in memory that it contains."""
        version = _version(self._path)
        if version != self._version:
            self._table, self._version = _Table(self._path), version
            self._recent, self._n_read = {}, dict(self._table.covered)

    def _read_log(self, entry: os.DirEntry[str]) -> None:
        """Read the new records of a log. An incomplete record at its end is ignored."""
        pack = entry.name.removesuffix(".log")
        n_known = self._n_read.get(pack, 0)
        if not _NAME.match(pack) or os.stat(entry.path).st_size < (n_known + 1) * RECORD.size:
            return
        with open(entry.path, "rb") as file:
            file.seek(n_known * RECORD.size)
            while len(block := file.read(RECORD.size * UNSORTED)) >= RECORD.size:
                whole = len(block) - len(block) % RECORD.size
                for key, _, n_bytes, offset in RECORD.iter_unpack(memoryview(block)[:whole]):
                    self._add(key, Slot(pack, offset, n_bytes))
                self._n_read[pack] = self._n_read.get(pack, 0) + whole // RECORD.size
                if self.crowded:
                    self._merge()

    def _add(self, key: bytes, slot: Slot) -> None:
        self._recent[key] = (slot, *self._recent.get(key, ()))

    def _merge(self) -> None:
        """Write a table of the old one and the records since. The last writer wins; the logs stay complete."""
        packs = list(dict.fromkeys((*self._table.packs, *self._n_read)))
        partial = self.folder / f"table-{os.urandom(8).hex()}.part"
        try:
            with open(partial, "xb") as file:
                n_records = self._table.n_records + sum(map(len, self._recent.values()))
                file.write(_HEADER.pack(_MARK, len(packs), n_records))
                for pack in packs:
                    file.write(_COVERED.pack(bytes.fromhex(pack), self._n_read.get(pack, 0)))
                for block in self._merged({pack: number for number, pack in enumerate(packs)}):
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            table, version = _Table(partial), _version(partial)
            os.replace(partial, self._path)
        except OSError:  # read-only folder or full disk: the logs are enough
            self._room = 2 * len(self._recent)
            return
        finally:
            partial.unlink(missing_ok=True)
            self._clear_abandoned()
        self._table, self._version, self._recent, self._room = table, version, {}, UNSORTED

    def _merged(self, numbers: dict[str, int]) -> Iterator[bytes]:
        done = 0
        for key in sorted(self._recent):
            place = self._table.first(key)
            yield self._table.rows(done, place)
            done = place
            for slot in self._recent[key]:
                yield RECORD.pack(key, numbers[slot.pack], slot.n_bytes, slot.offset)
        yield self._table.rows(done, self._table.n_records)

    def _clear_abandoned(self) -> None:
        """Remove unfinished tables of processes that have ended."""
        for part in self.folder.glob("table-*.part"):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > _ABANDONED_SECONDS:
                    part.unlink()


def _version(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
