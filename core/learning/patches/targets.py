"""Targets of refinement for photographs, which have no similarity graph: two predictions for each picture, combined.

    q = normalize(to_prior(n)^1/2 to_prior(h)),   to_prior(p) = normalize(p * prior / mean of p over the pool)

Symbols: n the network's probabilities; h those of a softmax head (`core.learning.head`) on descriptions by patches
(`core.learning.patches.descriptions`), its logits times SHARPENING; prior the class prior of distribution alignment.

The head is fitted on the labels and at most MOST_FITTED pictures of the pool. Pools of more than MOST_DESCRIBED
pictures have targets for evenly spaced ones and for all labeled ones; the others have no weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from core.config import HeadConfig
from core.learning.head import SHARPENING, fit_head, prepare
from core.learning.learner import PoolTargets
from core.learning.methods.alignment import class_prior
from core.learning.models import TrainedModel
from core.learning.patches.descriptions import describe_pool
from core.learning.prediction import predict
from core.media.inputs import Inputs
from core.runtime import Runtime
from core.types import UNLABELED, Report, ignore

MOST_FITTED, MOST_DESCRIBED = 4_000, 20_000
DESCRIBED_AT_ONCE = 2_000
SMALLEST = 1e-3  # probability


def has_patch_targets(inputs: Inputs) -> bool:
    """Whether the settings describe pictures by patches."""
    return inputs.kind == "image" and inputs.config.patches > 0 and not inputs.encoder


def patch_targets(
    model: TrainedModel,
    inputs: Inputs,
    labels: NDArray[np.int64],
    *,
    runtime: Runtime,
    trust: NDArray[np.floating] | None = None,
    report: Report = ignore,
) -> PoolTargets:
    """Targets of the readable rows by the module's docstring. A label (n,) is the target of its item, weighted by its
    `trust` (n,). Test items must be unreadable ones in `inputs`."""
    n_classes = model.shape.n_classes
    rows = described_rows(np.flatnonzero(inputs.readable), labels, MOST_DESCRIBED)
    prior = class_prior(labels[rows][labels[rows] != UNLABELED], n_classes, model.config.align)
    n_views = model.config.predict_views
    n = predict(model, inputs, rows, runtime=runtime, n_views=n_views, report=report).probabilities
    h = head_probabilities(inputs, labels, rows, n_classes, runtime, trust)
    q = _normalized(np.sqrt(to_prior(n, prior)) * to_prior(h, prior))
    one_hot = np.eye(n_classes, dtype=np.float32)
    probabilities = np.full((len(inputs), n_classes), 1.0 / n_classes, np.float32)
    weights = np.zeros(len(inputs), np.float32)
    probabilities[rows], weights[rows] = q, 1.0
    labeled = rows[labels[rows] != UNLABELED]
    probabilities[labeled] = one_hot[labels[labeled]]
    if trust is not None:
        weights[labeled] = trust[labeled]
    return PoolTargets(probabilities=probabilities, weights=weights)


def head_probabilities(
    inputs: Inputs,
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    n_classes: int,
    runtime: Runtime,
    trust: NDArray[np.floating] | None = None,
) -> NDArray[np.float32]:
    """(len(rows), C) of the head on descriptions by patches."""
    fitted, config = described_rows(rows, labels, MOST_FITTED), HeadConfig()
    described = describe_pool(inputs, fitted, inputs.config.patches, runtime)
    pool = prepare(described.x, n_classes, config)
    head = fit_head(
        described.x, labels[fitted], n_classes, config, pool, None if trust is None else np.asarray(trust)[fitted]
    )
    logits = np.empty((len(rows), n_classes))
    logits[np.searchsorted(rows, fitted)] = head.logits(described.x)
    others = np.flatnonzero(~np.isin(rows, fitted))
    for start in range(0, len(others), DESCRIBED_AT_ONCE):
        part = others[start : start + DESCRIBED_AT_ONCE]
        logits[part] = head.logits(described.of(inputs, rows[part], runtime))
    return np.asarray(softmax(SHARPENING * logits, axis=1), np.float32)


def described_rows(rows: NDArray[np.int64], labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """`rows`, or at most about `most` of them: all labeled ones and evenly spaced others; ascending."""
    if len(rows) <= most:
        return rows
    labeled, others = rows[labels[rows] != UNLABELED], rows[labels[rows] == UNLABELED]
    n_others = min(max(most - len(labeled), 1), len(others))
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)] if n_others else others
    return np.union1d(labeled, spaced)


def to_prior(probabilities: NDArray[np.floating], prior: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities (n, C), at least about SMALLEST, moved towards class shares `prior` (C,)."""
    p = np.asarray(probabilities, np.float64) + SMALLEST
    return _normalized(p * (prior / p.mean(0)))


def _normalized(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(p / p.sum(1, keepdims=True))
