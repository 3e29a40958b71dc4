"""Forgetting events (Toneva et al., 2019): how often a row is misclassified after it was classified correctly.

`ForgettingEvents` records the predictions of a row each time it is in a minibatch. Rows that were never learned come
first in `order`, as in the paper, then those that were forgotten most often; ties are in random order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(slots=True)
class ForgettingEvents:
    """Counts over `n_rows` rows."""

    n_rows: int
    times: Tensor = field(init=False)  # (n,) events
    right: Tensor = field(init=False)  # (n,) at the last visit
    learned: Tensor = field(init=False)  # (n,) at any visit

    def __post_init__(self) -> None:
        self.times = torch.zeros(self.n_rows, dtype=torch.int64)
        self.right = torch.zeros(self.n_rows, dtype=torch.bool)
        self.learned = torch.zeros(self.n_rows, dtype=torch.bool)

    def see(self, rows: Tensor, correct: Tensor) -> None:
        """Record the rows (k,) of one minibatch and whether each is predicted correctly, before the step is taken."""
        self.times[rows] += (self.right[rows] & ~correct).long()
        self.right[rows] = correct
        self.learned[rows] |= correct

    def order(self, seed: int) -> NDArray[np.int64]:
        """All rows, most often forgotten first."""
        events = torch.where(self.learned, self.times, int(self.times.max()) + 1).numpy()
        shuffled = np.random.default_rng(seed).permutation(self.n_rows)
        return shuffled[np.argsort(-events[shuffled], kind="stable")]
