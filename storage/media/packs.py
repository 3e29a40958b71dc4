"""Packs of small files: `media/packs/<name>.pack` holds the bytes of many items one after the other.

Creating a file costs several times as much as reading and hashing a small one; appending to an open file costs a
fraction of that. Each process of a large import therefore appends small files to a pack of its own and then records
hash, offset and length in the log beside it (`storage.media.pack_index`). Packs only grow and are never changed. A
process that dies leaves at most bytes without a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from storage.media.pack_index import RECORD, PackIndex, Slot

SMALL_BYTES = 256 << 10  # contents up to this size are packed
PACK_BYTES = 256 << 20  # a new pack is started at this size
WRITE_BYTES = 1 << 20  # contents are written together up to this size, at half the cost of one write each
FOLDER = "packs"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Altered(Exception):
    """A pack has a record of the content, but its bytes differ."""


class Packs:
    """Contents of all packs of a media folder, by their SHA-256."""

    def __init__(self, media_root: Path) -> None:
        self.folder = Path(media_root) / FOLDER
        self.index = PackIndex(self.folder)

    def has(self, sha256: str) -> bool:
        return bool(self.slots(sha256))

    def slots(self, sha256: str) -> list[Slot]:
        """Where the bytes should be, including what other processes have packed meanwhile."""
        if found := self.index.find(sha256):
            return found
        self.index.refresh()
        return self.index.find(sha256)

    def read(self, sha256: str) -> bytes:
        """The bytes with this hash, from any place that has them. Raises `OSError` if there is none, `Altered` if the
        bytes differ."""
        known = self.index.find(sha256)
        try:
            return self._right(sha256, known)
        except (OSError, Altered):
            self.index.refresh()
            found = self.index.find(sha256)
            if found == known:
                raise
            return self._right(sha256, found)

    def _right(self, sha256: str, slots: list[Slot]) -> bytes:
        problem: OSError | Altered = FileNotFoundError(2, "no pack holds it")
        for slot in slots:
            try:
                data = self.bytes_at(slot)
            except OSError as error:
                problem = error
                continue
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
            problem = Altered(f"{self.path(slot)} has other bytes at {slot.offset:,} than were put there.")
        raise problem

    def bytes_at(self, slot: Slot) -> bytes:
        """The bytes at this place, cut off at the end of the pack."""
        descriptor = os.open(self.path(slot), os.O_RDONLY | os.O_CLOEXEC)
        try:
            n_bytes = min(slot.n_bytes, os.fstat(descriptor).st_size - slot.offset)
            return os.pread(descriptor, n_bytes, slot.offset) if n_bytes > 0 else b""
        finally:
            os.close(descriptor)

    def path(self, slot: Slot) -> Path:
        return self.folder / f"{slot.pack}.pack"

    def files(self, hashes: list[str]) -> set[Path]:
        """The pack and log files that contain these contents, so that they can be flushed to disk."""
        packs = {self.path(slot) for sha256 in hashes for slot in self.slots(sha256)}
        return packs | {path.with_suffix(".log") for path in packs}


class PackWriter:
    """Appends to packs of its own; not thread-safe. Other processes see the contents after `flush`."""

    def __init__(self, media_root: Path) -> None:
        self.packs = Packs(media_root)
        self._pack = self._log = -1  # descriptors
        self._name, self._end, self._log_end = "", 0, 0  # lengths of the files
        self._contents: list[bytes] = []
        self._n_bytes = 0  # of `_contents`
        self._records: list[bytes] = []
        self._opened = False
        self.failure: OSError | None = None  # of a write; `flush` raises it until it is cleared

    def holds(self, sha256: str, data: bytes) -> bool:
        """Whether a pack has exactly these bytes: they are compared."""
        if not self._opened:
            self._opened = True
            self.packs.index.refresh()
        if found := self.packs.index.find(sha256):
            self._write()
        for slot in found:
            with contextlib.suppress(OSError):
                if self.packs.bytes_at(slot) == data:
                    return True
        return False

    def append(self, sha256: str, data: bytes) -> None:
        """Append the bytes. Raises `OSError` if a write fails, here or in `flush`: then everything appended since the
        last complete `flush` must be treated as not stored."""
        if self._pack < 0 or self._end + self._n_bytes + len(data) > PACK_BYTES:
            self._start()
        slot = Slot(self._name, self._end + self._n_bytes, len(data))
        self._contents.append(data)
        self._n_bytes += len(data)
        self._records.append(RECORD.pack(bytes.fromhex(sha256), 0, len(data), slot.offset))
        self.packs.index.note(sha256, slot)
        if self._n_bytes >= WRITE_BYTES:
            self._write()
        if self.packs.index.crowded:
            self.flush()
            self.packs.index.refresh()

    def flush(self) -> None:
        """Write everything appended to the pack, then to the log."""
        if self.failure is not None:
            raise self.failure
        self._write()
        if self._records:
            self._log_end += self._put(self._log, self._records, self._log_end)

    def _write(self) -> None:
        if self._contents:
            self._end += self._put(self._pack, self._contents, self._end)
            self._n_bytes = 0

    def _put(self, descriptor: int, blocks: list[bytes], offset: int) -> int:
        """Write `blocks` and clear the list. After a failure, the next `append` starts new files."""
        data = b"".join(blocks)
        try:
            written = os.pwrite(descriptor, data, offset)
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], offset + written)
        except OSError as problem:
            self._contents.clear()
            self._records.clear()
            self._n_bytes = 0
            self._close()
            self.failure = problem
            raise
        blocks.clear()
        return len(data)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._close()

    def _close(self) -> None:
        for descriptor in (self._pack, self._log):
            if descriptor >= 0:
                os.close(descriptor)
        self._pack = self._log = -1

    def _start(self) -> None:
        self._write()
        if self._records:
            self._put(self._log, self._records, self._log_end)
        self._close()
        self._name, self._end, self._log_end = os.urandom(16).hex(), 0, 0
        os.makedirs(self.packs.folder, exist_ok=True)
        self._log = os.open(self.packs.folder / f"{self._name}.log", _NEW, 0o644)
        self._pack = os.open(self.packs.folder / f"{self._name}.pack", _NEW, 0o644)
