"""Bounded summaries of a stream: merge-reduce over slots (Borsos et al., Algorithm 3), reservoir, balanced reservoir.

Merge-reduce: every batch of the stream is reduced to a slot of `slot_size` rows that represents 1 batch and is
appended. If there is one slot too many, two neighbors are merged and reduced to one that represents the sum:

    the two newest    when the slot before the new one represents fewer batches than the one before it, or s = 1
    else              the first two neighbors that represent equally many (`rule="printed"`, the algorithm's
                      select_index), or the first of those that represent the fewest (`rule="fewest"`)

so the numbers of batches never increase along the buffer. Up to 3 slots the rules agree: the numbers after 1, 2, 3 ...
7 batches are 1 | 1 1 | 1 1 1 | 2 1 1 | 2 2 1 | 2 2 2 | 4 2 1 (Fig. 13). From 4 slots on, "printed" merges old slots
early, so that one slot represents most of the stream after a while; "fewest" keeps the numbers close to each other.

`reduce` is any selection that respects row weights; for bilevel coresets the weights enter the outer loss. Rows are
identities of the caller's choice (int64): this module does not access data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput

Rule = Literal["printed", "fewest"]
Reduce = Callable[[NDArray[np.int64], NDArray[np.float64], int], NDArray[np.int64]]
"""(rows (k,), the number each represents (k,), size) -> positions (size,) in `rows` of those to keep."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A summary of `batches` consecutive batches of the stream."""

    rows: NDArray[np.int64]
    batches: int


@dataclass(slots=True)
class MergeReduce:
    """A buffer of at most n_slots * slot_size rows over a stream of any length."""

    n_slots: int
    slot_size: int
    reduce: Reduce
    slots: list[Slot] = field(default_factory=list)
    rule: Rule = "printed"

    def __post_init__(self) -> None:
        if self.n_slots < 1 or self.slot_size < 1:
            raise InvalidInput(f"A buffer of {self.n_slots} slots of {self.slot_size} rows has no capacity.")

    def add(self, rows: NDArray[np.int64]) -> None:
        """The next batch of the stream, of any size above 0."""
        if len(rows) == 0:
            return
        self.slots.append(Slot(self._reduced(rows, np.ones(len(rows))), 1))
        if len(self.slots) > self.n_slots:
            at = self._where_to_merge()
            self.slots[at : at + 2] = [self._merged(self.slots[at], self.slots[at + 1])]

    def _where_to_merge(self) -> int:
        counts = [slot.batches for slot in self.slots]
        if self.n_slots == 1 or counts[-2] < counts[-3]:
            return len(counts) - 2
        pairs = [(count, at) for at, count in enumerate(counts[:-1]) if count == counts[at + 1]]
        return pairs[0][1] if self.rule == "printed" else min(pairs)[1]

    def _merged(self, older: Slot, newer: Slot) -> Slot:
        rows = np.concatenate([older.rows, newer.rows])
        weights = np.repeat([float(older.batches), float(newer.batches)], [len(older.rows), len(newer.rows)])
        return Slot(self._reduced(rows, weights), older.batches + newer.batches)

    def _reduced(self, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> NDArray[np.int64]:
        if len(rows) <= self.slot_size:
            return np.asarray(rows, dtype=np.int64)
        return np.asarray(rows)[self.reduce(rows, weights, self.slot_size)]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Everything in the buffer, oldest slot first."""
        return np.concatenate([slot.rows for slot in self.slots]) if self.slots else np.zeros(0, np.int64)

    @property
    def weights(self) -> NDArray[np.float64]:
        """The number of batches that each of `rows` represents."""
        return np.concatenate([np.full(len(slot.rows), float(slot.batches)) for slot in self.slots] or [np.zeros(0)])

    @property
    def stands_for(self) -> list[int]:
        """Batches per slot, oldest first."""
        return [slot.batches for slot in self.slots]


@dataclass(slots=True)
class Reservoir:
    """A uniform sample of the stream so far (Vitter's algorithm R)."""

    capacity: int
    generator: np.random.Generator
    kept: list[int] = field(default_factory=list)
    seen: int = 0

    def add(self, rows: NDArray[np.int64]) -> None:
        for row in rows:
            self.seen += 1
            if len(self.kept) < self.capacity:
                self.kept.append(int(row))
            elif (at := int(self.generator.integers(self.seen))) < self.capacity:
                self.kept[at] = int(row)

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.array(self.kept, dtype=np.int64)


@dataclass(slots=True)
class ClassBalancedReservoir:
    """As many rows of every class as possible (Chrysakis and Moens, 2020).

    A class becomes full once it was the largest in a full memory. A row of a class that is not full replaces a random
    row of the largest class; a row of a full class replaces one of its own with the probability kept / seen.
    """

    capacity: int
    generator: np.random.Generator
    kept: list[tuple[int, int]] = field(default_factory=list)  # (row, class)
    seen: dict[int, int] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)

    def add(self, rows: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            self.seen[label] = self.seen.get(label, 0) + 1
            if len(self.kept) < self.capacity:
                self.kept.append((row, label))
            elif label not in self.full:
                self._replace_one_of(self._largest(), row, label)
            elif self.generator.random() < self._count(label) / self.seen[label]:
                self._replace_one_of(label, row, label)
            if len(self.kept) == self.capacity:
                self.full.add(self._largest())

    def _count(self, label: int) -> int:
        return sum(kept == label for _, kept in self.kept)

    def _largest(self) -> int:
        return max(sorted({label for _, label in self.kept}), key=self._count)

    def _replace_one_of(self, victim: int, row: int, label: int) -> None:
        places = [at for at, (_, kept) in enumerate(self.kept) if kept == victim]
        self.kept[places[int(self.generator.integers(len(places)))]] = (row, label)

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.array([row for row, _ in self.kept], dtype=np.int64)
