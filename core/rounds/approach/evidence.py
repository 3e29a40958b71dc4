"""The evidence by which the preset `auto` compares its two approaches: progressive validation and cross-validation.

Progressive validation. In some rounds both approaches are trained on the same labels, and both predict every unlabeled
item. When such an item is labeled later, the label shows which approach was right. This is not an estimate of accuracy:
items are labeled in the order of the picks, which are harder than the pool, and hardest for the approach that picked
them.

Cross-validation of heads. The head on the encoder's features and a head on the network's inputs each predict labels
that were hidden from them. The second is a stand-in for training from scratch, which is too slow to be repeated for
every fold; a trained network is usually better than this head.

Both use only training labels. No label of a test item is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.config import HeadConfig
from core.labels.earlier_predictions import positions_of
from core.learning.calibration import FOLDS, fold_of
from core.learning.head import fit_head, prepare
from core.types import UNLABELED, PoolSnapshot

NONE = -1  # no prediction of an item
OTHERS = 1_500  # unlabeled items in cross-validation, evenly spaced over the pool
MOST_LABELS = 1_000  # labels in cross-validation; of more, evenly spaced ones


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRound:
    """A finished round of the preset `auto`."""

    n_labels: int
    encoder: str  # identity of the encoder that was compared
    uses_encoder: bool  # how the round was trained
    class_names: tuple[str, ...] = ()
    item_ids: NDArray[np.int64] | None = None  # (n,) None in rounds that trained only one approach
    classes: NDArray[np.int32] | None = None  # (n, 2) predicted by encoder and from scratch; NONE for labeled items


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How often each approach was right on the same labels."""

    n: int = 0
    encoder: int = 0
    scratch: int = 0
    only_encoder: int = 0
    only_scratch: int = 0

    @property
    def lead(self) -> int:
        """The number of labels that only the encoder predicted correctly, minus that of training from scratch."""
        return self.only_encoder - self.only_scratch


def tally(truth: NDArray[np.int64], encoder: NDArray[np.int64], scratch: NDArray[np.int64]) -> Tally:
    """The tally of labels (n,) and the predictions of both approaches for them."""
    a, b = encoder == truth, scratch == truth
    return Tally(
        n=len(truth),
        encoder=int(a.sum()),
        scratch=int(b.sum()),
        only_encoder=int((a & ~b).sum()),
        only_scratch=int((b & ~a).sum()),
    )


def progressive_validation(snapshot: PoolSnapshot, past: Sequence[PastRound], encoder: str) -> Tally:
    """The tally over labeled items that both approaches predicted before they were labeled. The predictions are those
    of the last such round with at least a quarter of the present labels. `past` is in the order of the rounds."""
    labeled = np.flatnonzero(snapshot.labeled)
    predicted = np.full((len(labeled), 2), NONE, np.int64)
    for one in past:
        if one.classes is None or one.item_ids is None or one.encoder != encoder or 4 * one.n_labels < len(labeled):
            continue
        rows = positions_of(one.item_ids, snapshot.item_ids[labeled])
        known = rows >= 0
        now = np.array([*(_position(snapshot.class_names, name) for name in one.class_names), NONE], np.int64)
        found = now[one.classes[rows]]
        fresh = known & (found != NONE).all(1)
        predicted[fresh] = found[fresh]
    scored = (predicted != NONE).all(1)
    truth = snapshot.labels[labeled[scored]]
    return tally(truth, predicted[scored, 0], predicted[scored, 1])


def _position(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else NONE


def validation_rows(snapshot: PoolSnapshot, readable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rows that cross-validation reads, ascending: labeled ones and some others, but no test items."""
    usable = readable & ~snapshot.held_out
    labeled, others = np.flatnonzero(usable & snapshot.labeled), np.flatnonzero(usable & ~snapshot.labeled)
    return np.union1d(_spaced(labeled, MOST_LABELS), _spaced(others, OTHERS))


def _spaced(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def cross_validated(
    features: NDArray[np.floating], labels: NDArray[np.int64], n_classes: int, config: HeadConfig
) -> NDArray[np.int64]:
    """(n,) the class that a head predicts for each labeled row without its label, NONE elsewhere. Labels that are
    alone in their class are not predicted. The folds depend only on the labels, so different features are compared on
    the same folds."""
    found = np.full(len(labels), NONE, np.int64)
    given = np.flatnonzero(labels != UNLABELED)
    if not len(given):
        return found
    _, positions, counts = np.unique(labels[given], return_inverse=True, return_counts=True)
    folds = fold_of(positions, counts)
    if not (folds >= 0).any():
        return found
    pool = prepare(features, n_classes, config)
    for fold in range(FOLDS):
        hidden = given[folds == fold]
        if len(hidden):
            kept = labels.copy()
            kept[hidden] = UNLABELED
            head = fit_head(features, kept, n_classes, config, pool)
            found[hidden] = head.probabilities(features[hidden]).argmax(1)
    return found
