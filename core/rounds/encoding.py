"""Rounds with an encoder: the stage "encode", its features in place of network inputs, and the head as the model.

The features are computed once per item and encoder; every later stage reads them as inputs of shape (1, 1, d). The
model is a softmax head (`core.learning.head`) in the form of a network, so prediction, calibration and storage are the
same as for any model. Before the first model, embeddings are the principal components that the head is fitted on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.encoders.pool import EncodedPool, encode_pool
from core.errors import InvalidInput
from core.learning.calibration import Calibration, calibrate
from core.learning.head import Prepared, fit_head, fit_space, prepare
from core.learning.models import TrainedModel
from core.learning.networks.head import network_of
from core.learning.networks.layers import to_device
from core.learning.networks.registry import NetworkShape
from core.learning.training import label_notes
from core.media.inputs import Inputs
from core.rounds.context import StageContext
from core.rounds.outputs import EncodedBlock, EncodedFeatures, LabelTrust, NoCommon, TrainingResult
from core.types import UNLABELED, Progress, Rows

MOST_ROWS = 20_000  # that a head is fitted on: labeled items, and evenly spaced ones of a larger pool
ENCODE_ROWS = 2_000  # in one unit of work


def encoder_is_used(context: StageContext) -> bool:
    """Whether the round or its rival has an encoder."""
    return context.encoding is not None


def encode_items(context: StageContext) -> EncodedFeatures:
    """Features of all items; items that are in the cache are not encoded again."""
    assert context.encoding is not None
    hashes = context.snapshot.hashes
    return EncodedFeatures(pool=encode_pool(hashes, context.read, context.encoding, context.cache, context.report))


def encode_rows(context: StageContext, common: NoCommon, start: int, stop: int) -> EncodedBlock:
    """Features of the items from `start` to `stop`."""
    assert context.encoding is not None
    hashes = context.snapshot.hashes[start:stop]
    found = encode_pool(hashes, context.read, context.encoding, context.cache, context.report)
    return EncodedBlock(features=found.rows.take(np.arange(len(hashes))), notes=found.notes)


def join_encoded(context: StageContext, common: NoCommon, blocks: Sequence[EncodedBlock]) -> EncodedFeatures:
    """All features, added to this machine's cache because units may have run on other machines."""
    features = np.concatenate([np.asarray(block.features) for block in blocks])
    return EncodedFeatures(pool=cached_pool(context, features, tuple(note for one in blocks for note in one.notes)))


def cached_pool(context: StageContext, features: NDArray[np.float32], notes: tuple[str, ...]) -> EncodedPool:
    """The pool for known features (n, width), which are added to the cache. Rows without features are not added, so an
    item whose bytes were missing is tried again in the next round."""
    assert context.encoding is not None
    hashes, readable = context.snapshot.hashes, np.isfinite(features[:, 0])
    names = [name if fine else f"without {name}" for name, fine in zip(hashes, readable, strict=True)]
    rows = context.cache.rows(context.encoding.feature_key, names, lambda positions: features[list(positions)])
    return EncodedPool(rows=rows, readable=readable, notes=notes)


class FeatureRows:
    """Features (n, d) as inputs (n, 1, 1, d); items without features are zeros."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.shape: tuple[int, ...] = (rows.shape[0], 1, 1, rows.shape[1])
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        found = np.nan_to_num(self.rows.take(rows), nan=0.0, copy=False)
        return np.asarray(found, np.float32).reshape(len(rows), 1, 1, self.shape[3])


def encoded_inputs(context: StageContext, encoded: EncodedFeatures) -> Inputs:
    """The features in place of network inputs."""
    assert context.encoder is not None
    snapshot, pool, encoder = context.snapshot, encoded.pool, context.encoder
    if not (pool.readable & ~snapshot.held_out).any():
        raise InvalidInput(f"The encoder {encoder.description.shown} gives no features. {' '.join(pool.notes)}".strip())
    rows = FeatureRows(pool.rows)
    return Inputs(
        kind=snapshot.kind, config=context.config.media, clean=rows, sources=rows, mean=np.zeros(1, np.float32),
        scale=np.ones(1, np.float32), names=snapshot.hashes, readable=pool.readable, notes=pool.notes,
        cache=context.cache, key=encoder.feature_key, encoder=encoder.identity,
    )  # fmt: skip


def features_of(inputs: Inputs, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(len(rows), d) features of an encoder."""
    return inputs.clean.take(rows).reshape(len(rows), -1)


def fitted_rows(context: StageContext, inputs: Inputs) -> NDArray[np.int64]:
    """The rows that a head is fitted on, ascending; no test items."""
    usable = np.flatnonzero(inputs.readable & ~context.snapshot.held_out)
    if len(usable) <= MOST_ROWS:
        return usable
    labeled = context.snapshot.labels[usable] != UNLABELED
    others = usable[~labeled]
    n_others = max(MOST_ROWS - int(labeled.sum()), 0)
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)]
    return np.union1d(usable[labeled], spaced)


def train_head(context: StageContext, inputs: Inputs, trust: LabelTrust | None = None) -> TrainingResult:
    """The head trained on the round's labels, weighted by trust, and calibrated by cross-validation on these labels."""
    began = time.perf_counter()
    snapshot, config = context.snapshot, context.config
    rows = fitted_rows(context, inputs)
    features, labels = features_of(inputs, rows), snapshot.labels[rows]
    context.report(Progress("train", 0, 2, "head"))
    pool: Prepared = prepare(features, snapshot.n_classes, config.head)
    weights = None if trust is None else np.asarray(trust.weights)[rows]
    head = fit_head(features, labels, snapshot.n_classes, config.head, pool, weights)
    context.report(Progress("train", 1, 2, "calibration"))
    given = np.flatnonzero(labels != UNLABELED)
    z = pool.z[given]
    found = Calibration(temperature=1.0, source="off")
    if config.training.calibrate:
        found = calibrate(z, z @ head.weights.T + head.offsets, labels[given])
    network = network_of(head)
    notes = label_notes(inputs, snapshot.labels, snapshot.n_classes, rows)
    model = TrainedModel(
        network=to_device(network, context.runtime.device),
        shape=NetworkShape(name=f"head-{network.width}", channels=features.shape[1], n_classes=snapshot.n_classes),
        config=config.training,
        temperature=found.temperature,
        calibration=found.source,
        metrics={"seconds": round(time.perf_counter() - began, 3), "calibration_labels": found.n_labels},
        notes=(*notes, found.note) if found.note else notes,
    )
    return TrainingResult(model=model)


def space_rows(context: StageContext, inputs: Inputs, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(len(rows), r) principal components of the features, with rows of length 1, for distances before the first
    model."""
    fitted, n_classes = features_of(inputs, fitted_rows(context, inputs)), context.snapshot.n_classes
    space = fit_space(fitted, context.config.head.dimensions, n_classes)
    blocks = [space.transform(features_of(inputs, rows[start : start + 4_096])) for start in range(0, len(rows), 4_096)]
    return np.concatenate(blocks).astype(np.float32)
