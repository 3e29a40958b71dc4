"""The live head of one pool: what the labels since the last round change, within a fraction of a second.

    final = softmax( log P + L(labels now) - L(labels of the round) )

P       the predictions that the round stored for the pool
L       logits of a softmax head on the features of the round (`core.learning.head`: labels and label spreading, without
        self-training), fitted on the labels in brackets

Without new labels the predictions are those of the round, so nothing jumps when it ends. What depends on features alone
is computed once per round; a fit reads the labels. Rows: the items of the round that are not test items.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.config import HeadConfig
from core.labels.errors import out_of_fold
from core.learning.head import fit_weights, prepare
from core.types import UNLABELED

LIVE = HeadConfig(self_training=0, level=False)
MOST_UNLABELED = 1_000  # unlabeled rows in a fit, evenly spaced: a quarter of those of a round
FLOOR = 1e-6  # of stored probabilities, before the logarithm
LIMIT = 12.0  # of the difference of logits: beyond it nothing changes


@dataclass(frozen=True, slots=True)
class LivePredictions:
    probabilities: NDArray[np.float32]  # (n, C)
    seconds: float


class LiveHead:
    """Features (n, d) and stored probabilities (n, C) of a round, with the labels that it used (n,)."""

    def __init__(
        self,
        features: NDArray[np.floating],
        stored: NDArray[np.floating],
        labels: NDArray[np.int64],
        config: HeadConfig = LIVE,
    ) -> None:
        self.config = config
        prepared = prepare(features, stored.shape[1], config)
        some = np.unique(np.linspace(0, len(prepared.rows) - 1, MOST_UNLABELED).astype(np.int64))
        self._prepared = replace(prepared, rows=prepared.rows[some])
        self._log_stored = np.log(np.maximum(np.asarray(stored, np.float64), FLOOR))
        self._before = self._logits(labels)

    @property
    def n_bytes(self) -> int:
        return int(self._prepared.z.nbytes + 2 * self._log_stored.nbytes)

    def predict(self, labels: NDArray[np.int64]) -> LivePredictions:
        """Probabilities of all rows from labels (n,), class positions or UNLABELED."""
        began = time.perf_counter()
        change = np.clip(self._logits(labels) - self._before, -LIMIT, LIMIT)
        logits = self._log_stored + change
        logits -= logits.max(1, keepdims=True)
        shares = np.exp(logits)
        shares /= shares.sum(1, keepdims=True)
        return LivePredictions(shares.astype(np.float32), time.perf_counter() - began)

    def cross_validate(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n, C) probabilities of labeled rows by heads that were fitted without their labels; NaN for the others."""
        rows = np.flatnonzero(labels != UNLABELED)
        found = np.full_like(self._log_stored, np.nan)
        n_classes = self._log_stored.shape[1]
        found[rows] = out_of_fold(self._prepared.z[rows], labels[rows], n_classes, self.config.penalty)
        return found

    def _logits(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n, C) centered in each row; classes without labels have the lowest logit of the row. Zero with labels of
        fewer than two classes."""
        n_classes = self._log_stored.shape[1]
        classes, positions = np.unique(labels[labels != UNLABELED], return_inverse=True)
        found = np.zeros((len(labels), n_classes))
        if len(classes) < 2:
            return found
        targets = np.full(len(labels), UNLABELED)
        targets[labels != UNLABELED] = positions
        logits = self._prepared.z @ fit_weights(self._prepared, targets, len(classes), self.config).T
        found[:] = logits.min(1, keepdims=True)
        found[:, classes] = logits
        centered: NDArray[np.float64] = found - found.mean(1, keepdims=True)
        return centered
