"""The context in which the stages of a round run: the pool, the settings, and the results of the previous round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.config import RoundConfig
from core.encoders.folders import Encoder
from core.labels.earlier_predictions import EarlierRound
from core.learning.training import TrainedModel
from core.rounds.approach.evidence import PastRound
from core.rounds.embedding_map import PreviousMap
from core.runtime import Runtime
from core.similarity.graph import NewItems, SimilarityGraph
from core.types import MediaReader, PoolSnapshot, Report, RowCache, ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmarks:
    """The items whose kernel values are the Nyström features of all others."""

    names: tuple[str, ...]
    pool_size: int  # of the pool they were drawn from
    key: str  # kernel settings and inputs they belong to


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The results of the last finished round. Each part is loaded only by the stage that reads it."""

    class_names: tuple[str, ...] = ()
    load_model: Callable[[], TrainedModel | None] = _nothing
    load_landmarks: Callable[[], Landmarks | None] = _nothing
    load_map: Callable[[], PreviousMap | None] = _nothing
    load_past: Callable[[], tuple[PastRound, ...]] = tuple  # rounds of the preset `auto`, in their order
    load_predictions: Callable[[], Iterable[EarlierRound]] = tuple  # of finished rounds, from the newest on


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The approach that the round does not use but trains for comparison (`core.rounds.approach`)."""

    config: RoundConfig
    encoder: Encoder | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Everything a stage may use besides the outputs of earlier stages."""

    snapshot: PoolSnapshot
    config: RoundConfig
    read: MediaReader
    cache: RowCache
    runtime: Runtime
    previous: Previous = Previous()
    region: NDArray[np.bool_] | None = None  # (n,) rows of a region of interest
    region_share: float = 1.0
    offered: NDArray[np.bool_] | None = None  # (n,) rows that a bounded buffer offers as candidates; None: all
    graph: SimilarityGraph | None = None  # of an earlier round on the same items; None: it is built
    test_items: NewItems | None = None  # of `graph`
    encoder: Encoder | None = None  # whose features the round uses; None: a network is trained from scratch
    rival: Rival | None = None
    checkpoints: Path | None = None  # folder of training checkpoints
    explain: bool = True  # False: picks without reasons, where nothing reads them
    report: Report = ignore

    @property
    def encoding(self) -> Encoder | None:
        """The encoder whose features are computed for the round or for its rival."""
        return self.encoder or (self.rival.encoder if self.rival is not None else None)
