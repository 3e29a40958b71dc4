"""The outputs of the stages of a round: one frozen dataclass each, of arrays, scalars and types that have a file format
in `app.rounds.stage_outputs`. The output of "prepare" is `core.media.inputs.Inputs`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.config import RoundConfig
from core.encoders.pool import EncodedPool
from core.kernels.nystrom import KernelFeatures
from core.learning.training import TrainedModel
from core.rounds.context import Landmarks
from core.similarity.graph import NewItems, SimilarityGraph
from core.types import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFeatures:
    """The features of an encoder for all items of the pool."""

    pool: EncodedPool


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """Features of some items: the output of one unit."""

    features: NDArray[np.float32]  # (k, width); rows of items without features are NaN
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """How a round of the preset `auto` is trained: with its encoder or from scratch."""

    config: RoundConfig  # the settings of the round from here on
    rival: RoundConfig | None  # of the other approach, if it is trained too
    note: str  # the reason, for display


@dataclass(frozen=True, slots=True, kw_only=True)
class BothPredictions:
    """The classes that both approaches predict, in rounds that train both."""

    classes: NDArray[np.int32]  # (n, 2) by the encoder and from scratch; -1 for labeled and unreadable items


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTrust:
    """How far the labels of the round can be trusted (`core.labels.trust`)."""

    weights: NDArray[np.float32]  # (n,) of labels in training and propagation; 1 on rows without a label
    belief: NDArray[np.float32]  # (n, C) about the true classes of labeled rows; 0 on others
    wrong_share: float  # estimated
    n_checked: int  # labels that were predicted by models not trained on them
    graph: SimilarityGraph | None = None  # that propagation reuses


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """The model of the round, or a sentence that says why there is none yet."""

    model: TrainedModel | None
    why_no_model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedModel:
    """The network after further steps on targets of the pool. It replaces that of `TrainingResult`."""

    model: TrainedModel
    graph: SimilarityGraph | None = None  # that propagation reuses; None for photographs


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The model's own predictions for rows of the pool; before the first model, equal probabilities."""

    probabilities: NDArray[np.float32]  # (n, C) the human label, one-hot, on labeled rows
    embeddings: NDArray[np.float32]  # (n, e)
    view_probabilities: NDArray[np.float32] | None = None  # (V, n, C)
    has_model: bool = True
    temperature: float = 1.0  # of the calibration that is in the probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagatedLabels:
    """The pseudo-labels of the round: predictions after label propagation over the similarity graph. Without a graph
    or a model they are the predictions. Test items are not in the graph and keep their predictions; the propagated
    predictions for them as new items are in `test_probabilities`, which no stage reads."""

    probabilities: NDArray[np.float32]  # (n, C) the human label, one-hot, on labeled rows
    graph: SimilarityGraph | None = None
    n_changed: int = 0  # items whose most probable class was changed by propagation
    test_items: NewItems | None = None  # the readable test items, which are not in the graph
    test_probabilities: NDArray[np.float32] | None = None  # (b, C) of `test_items`, by label propagation


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedKernel:
    """The feature map of the landmarks."""

    kernel: KernelFeatures
    landmarks: Landmarks


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFeatures:
    """Kernel features of the candidate rows, and the feature map for more of them."""

    features: NDArray[np.float32]  # (m, q)
    fitted: FittedKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureBlock:
    """Kernel features of some of the candidate rows: the output of one unit."""

    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCommon:
    """The common input of a stage's units if they have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The next batch, and the rows it was chosen from."""

    selection: Selection
    candidate_rows: NDArray[np.int64]  # (m,) ascending
    notes: tuple[str, ...] = ()  # about the candidates, and about labels that may be wrong
    label_influence: NDArray[np.float32] | None = None  # (m,) of suspected labels, NaN elsewhere; None: no suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPoints:
    """The two-dimensional map of the pool."""

    points: NDArray[np.float32]  # (n, 2)
