"""The input and output of a simulation as plain values: the labeled pool, the plan of a trial, the record of a round.

This module needs only numpy, so that pages can show results; simulations run in `core.rounds.simulation`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.config import require
from core.errors import InvalidInput
from core.types import MediaKind

INDUCTIVE = "inductive"
EARLIER = "earlier"  # of versions whose test items were in the similarity graph and set the temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledPool:
    """A data set with known labels: the pool to choose from and the test items for evaluation."""

    kind: MediaKind
    class_names: tuple[str, ...]
    hashes: tuple[str, ...]  # (n,)
    truth: NDArray[np.int64]  # (n,) class positions
    test: NDArray[np.bool_]  # (n,)

    def __post_init__(self) -> None:
        n = len(self.hashes)
        if len(self.truth) != n or len(self.test) != n:
            raise InvalidInput(f"{n} items come with {len(self.truth)} labels and {len(self.test)} split marks.")
        if not self.test.any() or self.test.all():
            raise InvalidInput(
                "A simulation needs a pool and a test split; mark test items with split=test, or draw them by group: "
                "python -m app import … --labels hidden --test-share 0.2, then simulate --project."
            )

    def position(self, class_name: str) -> int:
        require(class_name in self.class_names, f"No class {class_name!r}; there are {', '.join(self.class_names)}.")
        return self.class_names.index(class_name)

    @property
    def digest(self) -> str:
        """Equal for equal items, answers and splits."""
        marked = hashlib.sha256("".join(self.hashes).encode() + self.truth.tobytes() + self.test.tobytes())
        return marked.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The protocol of a trial: sizes, and the errors of the simulated annotator."""

    start: int = 10
    batch: int = 10
    rounds: int = 6
    wrong_share: float = 0.0  # share of answers that are wrong
    missing_class: str = ""  # class that has no initial label
    rare_class: str = ""  # class thinned out in the pool ...
    rare_share: float = 0.02  # ... to this share of it
    warm: bool = True  # each round may start from the last round's model, if the preset allows it

    def __post_init__(self) -> None:
        require(self.start >= 0, f"The simulation starts with {self.start} labels; use 0 or more.")
        require(self.batch >= 1, f"The batch is {self.batch}; use at least 1.")
        require(self.rounds >= 0, f"{self.rounds} rounds were requested; use 0 or more.")
        require(0 <= self.wrong_share < 1, f"The share of wrong labels is {self.wrong_share}; use 0 to below 1.")
        require(0 < self.rare_share < 1, f"The rare class's share is {self.rare_share}; use more than 0, below 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One trained model and the batch chosen with it."""

    strategy: str
    seed: int
    round: int
    n_labels: int
    accuracy: float  # inductive: of the network alone on the test items
    wrong_guesses: int  # picks whose pseudo-label was wrong
    seconds: dict[str, float] = field(default_factory=dict)  # per stage
    picks: tuple[str, ...] = ()  # hashes in the order chosen; empty after the last round
    notes: tuple[str, ...] = ()
    accuracy_with_propagation: float | None = None  # of the test items as new items beside the similarity graph
    measure: str = INDUCTIVE  # what `accuracy` is; EARLIER for records of earlier versions
