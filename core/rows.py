"""Implementations of `core.types.Rows` and `RowCache` in memory; `storage.rounds.row_cache` stores rows on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.types import Progress, Report, Rows


class ArrayRows:
    """`Rows` over an existing array, in memory or memory-mapped."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self.array[rows])


class SomeRows:
    """Some rows of larger `Rows`, in the given order; rows are copied only by `take`."""

    def __init__(self, rows: Rows, positions: NDArray[np.int64]) -> None:
        self.rows, self.positions = rows, positions
        self.shape = (len(positions), *rows.shape[1:])
        self.dtype = rows.dtype

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.rows.take(self.positions[rows])


class LazyRows:
    """`Rows` that the first `take` computes, all at once."""

    def __init__(self, shape: tuple[int, ...], make: Callable[[], NDArray[Any]]) -> None:
        self.shape, self._make = shape, make
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self._made: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._made is None:
            self._made = self._make()
        return np.asarray(self._made[rows])


class MemoryRowCache:
    """`RowCache` in memory, for tests, simulations and scripts."""

    block = 256

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, NDArray[Any]]] = {}

    def rows(
        self,
        key: str,
        names: Sequence[str],
        compute: Callable[[Sequence[int]], NDArray[Any]],
        report: Callable[[int, int], None] | None = None,
    ) -> ArrayRows:
        known = self._rows.setdefault(key, {})
        first_position = {name: position for position, name in reversed(list(enumerate(names)))}
        missing = sorted(position for name, position in first_position.items() if name not in known)
        for start in range(0, len(missing), self.block):
            positions = missing[start : start + self.block]
            for position, row in zip(positions, compute(positions), strict=True):
                known[names[position]] = row
            if report is not None:
                report(min(start + self.block, len(missing)), len(missing))
        return ArrayRows(np.stack([known[name] for name in names]) if names else np.empty((0,), np.float32))


class BlockProgress:
    """Progress of a cache that computes missing rows block by block: one count over the earlier blocks and the current
    one, with one total."""

    def __init__(self, stage: str, total: int, report: Report) -> None:
        self.stage, self.total, self.report = stage, total, report
        self.done = 0

    def within_block(self, n_rows: int, note: str = "") -> None:
        self.report(Progress(self.stage, min(self.done + n_rows, self.total), self.total, note))

    def follow(self, done: int, total: int) -> None:
        """Progress callback of the cache, called after each block."""
        self.done, self.total = done, total
        self.report(Progress(self.stage, done, total))
