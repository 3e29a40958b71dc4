"""Decodes a pool through the row cache. An item that cannot be decoded does not stop the others.

An item that cannot be read becomes a blank row (silence, or a black picture), `readable` is False for it and a note
states the reason. A damaged file is cached as unreadable, because its content cannot change; a missing file is read
again in the next round, so its row is cached under a name other than its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput, NotFound
from core.rows import BlockProgress
from core.types import MediaReader, Report, RowCache, Rows

NOTED_REASONS = 5
REPORT_EVERY = 32  # items


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """How one kind of media is decoded under some settings."""

    key: str
    decode: Callable[[bytes], NDArray[Any]]  # raises InvalidInput
    blank: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPool:
    rows: Rows
    names: tuple[str, ...]
    readable: NDArray[np.bool_]
    notes: tuple[str, ...]


class _Absent(Exception):
    """Some items of a block have no bytes to read."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


@dataclass(slots=True)
class _Pass:
    """The result of one pass over the pool: missing names, and why items could not be decoded."""

    read: MediaReader
    decoder: Decoder
    progress: BlockProgress
    blanks: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    def decode(self, name: str) -> NDArray[Any] | None:
        """The item's row, None when its bytes cannot be decoded. NotFound and OSError pass through."""
        try:
            return self.decoder.decode(self.read(name))
        except InvalidInput as error:
            self.reasons[name] = str(error)
            return None

    def decode_block(self, names: Sequence[str]) -> NDArray[Any]:
        rows, absent = [], []
        for count, name in enumerate(names):
            row = None
            if name not in self.blanks:
                try:
                    row = self.decode(name)
                except (NotFound, OSError):
                    absent.append(name)
            rows.append(self.decoder.blank if row is None else row)
            if count % REPORT_EVERY == 0:
                self.progress.within_block(count, "decoding a block")
        if absent:
            raise _Absent(absent)
        return np.stack(rows)

    def is_readable(self, name: str) -> bool:
        """Whether an item could be decoded; it is decoded again when an earlier process stopped before storing that."""
        if name in self.blanks or name in self.reasons:
            return False
        try:
            return self.decode(name) is not None
        except (NotFound, OSError):
            return False


def decode_pool(
    hashes: Sequence[str], read: MediaReader, decoder: Decoder, cache: RowCache, report: Report
) -> DecodedPool:
    """One row per hash, from the cache where it has them."""
    names = list(hashes)
    work = _Pass(read, decoder, BlockProgress("prepare", len(names), report))
    fresh: set[str] = set()

    def compute(positions: Sequence[int]) -> NDArray[Any]:
        block = [names[position] for position in positions]
        rows = work.decode_block(block)
        fresh.update(block)
        return rows

    def readability(positions: Sequence[int]) -> NDArray[np.uint8]:
        asked = [names[position] for position in positions]
        known = [name in fresh and name not in work.reasons and name not in work.blanks for name in asked]
        return np.array([[k or work.is_readable(n)] for k, n in zip(known, asked, strict=True)], np.uint8)

    while True:
        try:
            rows = cache.rows(decoder.key, names, compute, work.progress.follow)
            break
        except _Absent as missing:
            marks = {name: hashlib.sha256(f"absent {name}".encode()).hexdigest() for name in missing.names}
            names = [marks.get(name, name) for name in names]
            work.blanks.update(marks.values())
    status = cache.rows(f"{decoder.key}-readable", names, readability)
    readable = status.take(np.arange(len(names)))[:, 0].astype(bool)
    return DecodedPool(rows=rows, names=tuple(names), readable=readable, notes=_notes(hashes, readable, work))


def _notes(hashes: Sequence[str], readable: NDArray[np.bool_], work: _Pass) -> tuple[str, ...]:
    unreadable = [name for name, fine in zip(hashes, readable, strict=True) if not fine]
    if not unreadable:
        return ()
    shown = [f"{name[:12]}: {work.reasons.get(name, 'missing or damaged')}" for name in unreadable[:NOTED_REASONS]]
    more = f" and {len(unreadable) - len(shown)} more" if len(unreadable) > len(shown) else ""
    return (f"{len(unreadable)} of {len(hashes)} items cannot be read and are left out ({'; '.join(shown)}{more}).",)
