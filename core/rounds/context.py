"""What the stages of a round share: the workplace they are given, and what they hand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.config import RoundConfig
from core.kernels.nystrom import KernelFeatures
from core.learning.training import TrainedModel
from core.runtime import Runtime
from core.similarity.graph import SimilarityGraph
from core.types import MediaReader, PoolSnapshot, Report, RowCache, ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmarks:
    """The items that stand for the pool in the kernel's features."""

    names: tuple[str, ...]
    pool_size: int  # of the pool they were drawn from
    key: str  # kernel settings and inputs they belong to


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """What the last finished round left to this one."""

    item_ids: NDArray[np.int64]  # (m,)
    map_points: NDArray[np.float32]  # (m, 2)
    class_names: tuple[str, ...] = ()
    model: TrainedModel | None = None
    landmarks: Landmarks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Everything a stage may use."""

    snapshot: PoolSnapshot
    config: RoundConfig
    read: MediaReader
    cache: RowCache
    runtime: Runtime
    previous: Previous | None = None
    region: NDArray[np.bool_] | None = None  # (n,) rows of a region of interest
    region_share: float = 1.0
    offered: NDArray[np.bool_] | None = None  # (n,) rows that a bounded buffer offers as candidates; None: all
    checkpoints: Path | None = None  # where training keeps its state
    report: Report = ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPredictions:
    """What the model says about rows of the pool."""

    probabilities: NDArray[np.float32]  # (n, C) the human label, one-hot, on labeled rows
    embeddings: NDArray[np.float32]  # (n, e)
    view_probabilities: NDArray[np.float32] | None = None  # (V, n, C)
    has_model: bool = True
    likeness: SimilarityGraph | None = None  # who is like whom, where the guesses have settled on it
    n_changed: int = 0  # items whose first guess is another one since


@dataclass(frozen=True, slots=True, kw_only=True)
class Featured:
    """Kernel features of the candidate rows, and the kernel to make more of them."""

    features: NDArray[np.float32]  # (m, q)
    kernel: KernelFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The rows strategies see."""

    rows: NDArray[np.int64]  # (m,) ascending
    notes: tuple[str, ...] = ()
