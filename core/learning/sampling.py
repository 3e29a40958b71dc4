"""Which rows a step trains on, as a function of its number: a resumed run needs no stored order."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Shuffled:
    """Passes over `rows`, each in a new random order; every pass contains every row once."""

    def __init__(self, rows: NDArray[np.int64], seed: int) -> None:
        self.rows = rows
        self._order = lru_cache(maxsize=4)(lambda number: np.random.default_rng((seed, number)).permutation(len(rows)))

    def batch(self, step: int, size: int) -> NDArray[np.int64]:
        """(size,) rows of step 0, 1, ..."""
        place = np.arange(step * size, (step + 1) * size)
        passes, within = np.divmod(place, len(self.rows))
        chosen = np.empty(size, np.int64)
        for number in np.unique(passes):
            here = passes == number
            chosen[here] = self.rows[self._order(int(number))[within[here]]]
        return chosen


RESOLUTION = 10  # of the trust in a label


def by_trust(trust: NDArray[np.floating] | None, n_labels: int) -> NDArray[np.int64]:
    """Positions of labels, repeated in proportion to `trust` (m,) in steps of 1 / RESOLUTION; each once if None."""
    if trust is None or (trust >= 1).all():
        return np.arange(n_labels)
    return np.repeat(np.arange(n_labels), np.maximum(np.rint(RESOLUTION * trust), 1).astype(np.int64))


def in_shares(labels: NDArray[np.int64], prior: NDArray[np.float32]) -> NDArray[np.int64]:
    """Positions of labels (m,), each at least once, repeated so that the classes have the shares of `prior` (C,).

    With few labels the class counts are arbitrary: a class with two of seventy labels would hardly be trained.
    """
    counts = np.bincount(labels, minlength=len(prior))
    present = np.flatnonzero(counts)
    scale = max(counts[c] / prior[c] for c in present)
    of_class = [np.flatnonzero(labels == c) for c in present]
    return np.concatenate([np.resize(rows, round(prior[c] * scale)) for c, rows in zip(present, of_class, strict=True)])
