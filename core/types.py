"""The types that all packages share. They need numpy only, so that the web process loads no torch.

Rows and identities: an `item_id` names an item in the store; a `row` is a position in a snapshot's arrays. They are
translated through `PoolSnapshot.item_ids` and nowhere else. A score is always "higher = wanted more".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput

MediaKind = Literal["audio", "image"]
UNLABELED = -1


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a long computation. The worker stores it, screens poll it, tests collect it."""

    stage: str
    done: int
    total: int
    note: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


Report = Callable[[Progress], None]
"""Progress callback. It may raise `core.errors.Cancelled`; long computations call it at least once a second."""


def ignore(progress: Progress) -> None:
    """No-op progress callback."""


MediaReader = Callable[[str], bytes]
"""A function that returns the bytes of an item, given its SHA-256 (hex)."""


class Rows(Protocol):
    """A large (n, ...) array that may be stored on disk. `take` copies rows in the order of its argument."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]: ...


class RowCache(Protocol):
    """Caches one computed row per (key, name), so that each is computed once."""

    def rows(
        self,
        key: str,
        names: Sequence[str],
        compute: Callable[[Sequence[int]], NDArray[Any]],
        report: Callable[[int, int], None] | None = None,
    ) -> Rows:
        """Rows for `names`, in order. `compute(positions)` returns the rows for `names[positions]`. It is called block
        by block for missing rows, and finished blocks survive an interruption. `report(done, total)` is called after
        each block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """The pool at the time when a round was requested. Labels given later belong to the next round."""

    kind: MediaKind
    class_names: tuple[str, ...]
    item_ids: NDArray[np.int64]  # (n,)
    hashes: tuple[str, ...]  # (n,) SHA-256 of each item's bytes, hex
    labels: NDArray[np.int64]  # (n,) class position given by people, UNLABELED where there is none
    held_out: NDArray[np.bool_]  # (n,) test items: never trained on, never chosen
    held_out_labels: NDArray[np.int64]  # (n,) class position of held-out items, UNLABELED elsewhere
    eligible: NDArray[np.bool_]  # (n,) rows that may be chosen now; decided by storage, once
    label_sequence: int = 0  # the newest label event in the snapshot
    groups: NDArray[np.int64] | None = None  # (n,) one number per group that splits keep together, -1: none
    windows: NDArray[np.float64] | None = None  # (n, 3) number of the recording (-1: none), start and end in seconds
    confirmed: NDArray[np.bool_] | None = None  # (n,) labels that were decided in review, or given twice; None: none

    def __post_init__(self) -> None:
        n = len(self.item_ids)
        for name in ("hashes", "labels", "held_out", "held_out_labels", "eligible"):
            if len(getattr(self, name)) != n:
                raise InvalidInput(f"Snapshot field {name} has {len(getattr(self, name))} entries for {n} items.")
        if np.any(self.held_out & (self.eligible | (self.labels != UNLABELED))):
            raise InvalidInput("A test item is marked as eligible or labeled for training.")

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """(n,) rows with a training label."""
        labeled: NDArray[np.bool_] = self.labels != UNLABELED
        return labeled


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRequest:
    """The input of every strategy. Strategies differ in the fields they read, not in their signature."""

    item_ids: NDArray[np.int64]  # (n,)
    labeled: NDArray[np.bool_]  # (n,) rows the model was trained on
    eligible: NDArray[np.bool_]  # (n,) rows that may be chosen
    probabilities: NDArray[np.float32]  # (n, C) pseudo-labels; the human label, one-hot, on labeled rows
    embeddings: NDArray[np.float32]  # (n, e) last layer
    features: NDArray[np.float32]  # (n, q) Nyström features of the kernel; (n, 0) where the round did not compute them
    batch_size: int
    seed: int
    view_features: Callable[[int], NDArray[np.float32]] | None = None  # row -> (A, q) features of augmented views
    view_probabilities: NDArray[np.float32] | None = None  # (V, n, C) predictions on V augmented views
    similarity_features: Callable[[], NDArray[np.float32]] | None = None  # (n, q) diffusion features
    inputs: Callable[[], NDArray[np.float32]] | None = None  # (n, d) network inputs as vectors
    picture_vectors: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None = None  # rows -> (len(rows), d) gradient
    # histograms of the pictures, before the first model of a round with an encoder
    region: NDArray[np.bool_] | None = None  # (n,) rows of a region of interest
    region_share: float = 1.0  # share of the batch that must come from `region`; 1.0 = only from it
    windows: NDArray[np.float64] | None = None  # (n, 3) of windows of recordings (`PoolSnapshot.windows`)
    has_model: bool = True  # False before the first label: probabilities and embeddings are uninformative
    temperature: float = 1.0  # of the calibration that is in the probabilities

    def __post_init__(self) -> None:
        n = len(self.item_ids)
        for name in ("labeled", "eligible", "probabilities", "embeddings", "features"):
            if len(getattr(self, name)) != n:
                raise InvalidInput(f"Request field {name} has {len(getattr(self, name))} rows for {n} items.")
        if self.batch_size < 1:
            raise InvalidInput(f"The batch size is {self.batch_size}; use at least 1.")
        if not 0.0 < self.region_share <= 1.0:
            raise InvalidInput(f"The region's share of the batch is {self.region_share}; use more than 0, at most 1.")

    @property
    def n_classes(self) -> int:
        return int(self.probabilities.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PickReason:
    """Why one item was chosen, as data: stored with the pick, exported, and shown beside the item."""

    order: int  # 1 = chosen first
    score: float  # the strategy's own score when it was chosen
    guess: int | None = None  # pseudo-label, class position
    confidence: float | None = None
    entropy: float | None = None  # nats
    outer_before: float | None = None  # the proxy's mean loss on the whole pool before this pick is added
    outer_after: float | None = None  # the same after it is added
    gradient_rank: int | None = None  # rank of its implicit gradient among candidates at that step, 1 = best (bico)
    first_gradient_rank: int | None = None  # the same before the batch's first pick (bico)
    nearest_labeled: int | None = None  # item_id
    nearest_distance: float | None = None  # in embedding space (kernel features before the first model)
    stands_for: int | None = None  # pool items nearer to this pick than to any other pick of the batch
    second_look: bool = False  # the item has a label, which may be wrong (`core.labels.second_looks`)
    trust: float | None = None  # probability that this label is right
    influence: float | None = None  # of this label; negative: more weight on it raises the loss of the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The next batch, in the order chosen."""

    item_ids: NDArray[np.int64]  # (batch_size,)
    scores: NDArray[np.float32]  # higher = wanted more, when it was chosen
    strategy: str
    reasons: tuple[PickReason, ...] = ()
    notes: tuple[str, ...] = ()  # e.g. "CG stopped at 100 steps for 2 of 10 picks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The output of a round. Arrays have one row per row of the snapshot."""

    selection: Selection
    probabilities: NDArray[np.float32]  # (n, C)
    embeddings: NDArray[np.float32]  # (n, e)
    map_points: NDArray[np.float32]  # (n, 2)
    metrics: Mapping[str, Any]  # test accuracy with n, confusion counts, losses, seconds per stage
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMeasures:
    """The measurements of a pool's items at import; items without a measure are left out."""

    seconds: NDArray[np.float64]  # (n,) of clips
    sample_rates: NDArray[np.int64]  # (n,)
    widths: NDArray[np.int64]  # (n,) of upright pictures
    heights: NDArray[np.int64]  # (n,)
