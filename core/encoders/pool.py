"""The features of a pool: one row per item and encoder in the row cache. Cached items are not encoded again.

A row of NaN means that the item has no features because its bytes cannot be decoded or the network fails on it. An item
whose bytes are missing has no row, and the next round tries it again. Items are decoded here while the network runs in
its own process. Finished blocks survive an interruption, and processes that encode the same pool share the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.encoders.embeddings import table_rows
from core.encoders.folders import Encoder
from core.encoders.runner import EncoderRunner
from core.encoders.windows import Windows, windows_of
from core.errors import InvalidInput, NotFound
from core.types import MediaReader, Progress, Report, RowCache, Rows, ignore

STAGE = "encode"
ABSENT = "absent "  # prefix of the hash: the name of an item whose bytes are missing in this round
NOTED_REASONS = 5
WINDOWS_AT_ONCE = 16  # sent to the network in one request
REPORT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPool:
    """The features of the items behind some hashes."""

    rows: Rows  # (n, width) float32; rows of items without features are NaN
    readable: NDArray[np.bool_]  # (n,) items that have features
    notes: tuple[str, ...]

    def features(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """(len(rows), width), zeros for items without features; all rows by default."""
        found = self.rows.take(np.arange(len(self.readable)) if rows is None else rows)
        return np.asarray(np.nan_to_num(found, nan=0.0, copy=False), np.float32)


def encode_pool(
    hashes: Sequence[str], read: MediaReader, encoder: Encoder, cache: RowCache, report: Report = ignore
) -> EncodedPool:
    """Features for the items behind `hashes`; only items missing from the cache are read and encoded."""
    if not hashes:
        raise InvalidInput("The pool is empty: import some items first.")
    with _Encoding(encoder, read, report) as work:
        names = list(hashes)

        def compute(positions: Sequence[int]) -> NDArray[np.float32]:
            return work.block([names[position] for position in positions])

        def follow(done: int, total: int) -> None:
            work.done, work.total = done, total
            report(Progress(STAGE, done, total, work.pace()))

        work.total = len(names)
        while True:
            try:
                rows = cache.rows(encoder.feature_key, names, compute, follow)
                break
            except _Absent as missing:
                names = [ABSENT + name if name in missing.names else name for name in names]
        readable = _finite(rows)
        return EncodedPool(rows=rows, readable=readable, notes=_notes(hashes, readable, work.reasons, encoder))


def _finite(rows: Rows) -> NDArray[np.bool_]:
    blocks = (rows.take(np.arange(start, min(start + 4_096, len(rows)))) for start in range(0, len(rows), 4_096))
    return np.concatenate([np.isfinite(block[:, 0]) for block in blocks])


class _Absent(Exception):
    """Some items of a block have no bytes to read."""

    def __init__(self, names: set[str]) -> None:
        self.names = names


@dataclass(slots=True)
class _Encoding:
    """One pass over the pool: the network's process, the progress, and the reasons why items have no features."""

    encoder: Encoder
    read: MediaReader
    report: Report
    runner: EncoderRunner | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    _began: float = 0.0
    _reported_at: float = 0.0

    def __enter__(self) -> _Encoding:
        return self

    def __exit__(self, *_: object) -> None:
        if self.runner is not None:
            self.runner.close()

    def block(self, names: Sequence[str]) -> NDArray[np.float32]:
        """(len(names), width) rows to be cached. Raises _Absent if bytes are missing."""
        width = self.encoder.description.output.width
        rows = np.full((len(names), width), np.nan, np.float32)
        present = [place for place, name in enumerate(names) if not name.startswith(ABSENT)]
        if self.encoder.is_table:
            hashes = [names[place] for place in present]
            rows[present] = table_rows(self.encoder, hashes)
            missing = [name for name, row in zip(hashes, rows[present], strict=True) if np.isnan(row[0])]
            self.reasons |= dict.fromkeys(missing, "not in the table of embeddings")
            return rows
        if not self._began:
            self._began = time.monotonic()
        absent: set[str] = set()
        for places, found in self._encoded(names, present, absent):
            for place, features in zip(places, found, strict=True):
                if isinstance(features, str):
                    self.reasons[names[place]] = features
                else:
                    rows[place] = features
            self._tick(places[-1])
        if absent:
            raise _Absent(absent)
        return rows

    def _encoded(
        self, names: Sequence[str], present: Sequence[int], absent: set[str]
    ) -> Iterator[tuple[list[int], list[Any]]]:
        """Positions and features, some items at a time; the next items are decoded while the network runs."""
        if self.runner is None:
            self.runner = EncoderRunner(self.encoder)
        before: list[int] = []
        for places, items in self._decoded(names, present, absent):
            if before:
                yield before, self.runner.collect(self._tick)
            self.runner.submit(items)
            before = places
        if before:
            yield before, self.runner.collect(self._tick)

    def _decoded(
        self, names: Sequence[str], present: Sequence[int], absent: set[str]
    ) -> Iterator[tuple[list[int], list[Windows]]]:
        """Positions and windows of items that can be decoded, about WINDOWS_AT_ONCE windows at a time."""
        to_windows: Callable[[bytes], Windows] = windows_of(self.encoder.description)
        places: list[int] = []
        items: list[Windows] = []
        for place in present:
            try:
                items.append(to_windows(self.read(names[place])))
                places.append(place)
            except InvalidInput as problem:
                self.reasons[names[place]] = str(problem)
            except (NotFound, OSError):
                absent.add(names[place])
            if sum(map(len, items)) >= WINDOWS_AT_ONCE:
                yield places, items
                places, items = [], []
        if items:
            yield places, items

    def _tick(self, in_block: int = 0) -> None:
        """Report at most twice a second; the report may raise Cancelled."""
        now = time.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            self.report(Progress(STAGE, min(self.done + in_block, self.total), self.total, self.pace()))

    def pace(self) -> str:
        """The note of the progress: items per second and the time left."""
        seconds = time.monotonic() - self._began if self._began else 0.0
        if not self.done or seconds < 1:
            return f"encoder {self.encoder.description.shown}"
        speed = self.done / seconds
        return f"{speed:,.0f} items/s" if speed >= 1 else f"{1 / speed:,.0f} s per item"


def _notes(
    hashes: Sequence[str], readable: NDArray[np.bool_], reasons: dict[str, str], encoder: Encoder
) -> tuple[str, ...]:
    without = [name for name, fine in zip(hashes, readable, strict=True) if not fine]
    if not without:
        return ()
    shown = [f"{name[:12]}: {reasons.get(name, 'missing or damaged')}" for name in without[:NOTED_REASONS]]
    more = f" and {len(without) - len(shown):,} more" if len(without) > len(shown) else ""
    return (
        f"{len(without):,} of {len(hashes):,} items have no features of the encoder {encoder.description.shown} and "
        f"are left out ({'; '.join(shown)}{more}).",
    )
