"""The live head of one pool: updates predictions for the labels since the last round, in a fraction of a second.

    final = softmax( log P + ( L(labels now) - L(labels of the round) ) / T )

P       the predictions that the round stored for the pool
L       logits of a softmax head on the features of the round (`core.learning.head`), fitted on the labels in brackets
T       the temperature of the round's calibration, which P already includes

Without new labels the predictions are those of the round, so they do not change when the round ends. Everything that
depends only on features is computed once per round. Rows are the items of the round that are not test items.

Details
- For a class that had no label in the round, P is not informative: a head gives the class a probability of almost 0
  everywhere. Its logit is L(labels now) / T plus the mean over the other classes of log P - L(labels of the round) / T.
- If the features are those of an encoder, the model of the round is such a head too, and L is fitted in the same way,
  including self-training (FROZEN). Otherwise the model is a network, and L has no self-training (TRAINED).
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

FROZEN = HeadConfig(level=False)  # stored features are leveled already
TRAINED = HeadConfig(level=False, self_training=0)
MOST_UNLABELED = 1_000  # unlabeled rows in a fit, evenly spaced: a quarter of the number that a round uses
FLOOR = 1e-6  # lower bound of stored probabilities, before the logarithm
LIMIT = 12.0  # differences of logits are clipped to this absolute value


@dataclass(frozen=True, slots=True)
class LivePredictions:
    """The predictions of a fit, and the seconds that it took."""

    probabilities: NDArray[np.float32]  # (n, C)
    seconds: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of fitting the head on a set of labels."""

    logits: NDArray[np.float64]  # (n, C) centered in each row; classes without labels have the lowest logit of the row
    known: NDArray[np.bool_]  # (C,) classes with labels; all false if fewer than two classes have labels


class LiveHead:
    """Predicts the items of one round from its features (n, d), stored probabilities (n, C) and labels (n,)."""

    def __init__(
        self,
        features: NDArray[np.floating],
        stored: NDArray[np.floating],
        labels: NDArray[np.int64],
        config: HeadConfig = TRAINED,
        temperature: float = 1.0,
    ) -> None:
        self.config, self.temperature = config, temperature
        prepared = prepare(features, stored.shape[1], config)
        some = np.unique(np.linspace(0, len(prepared.rows) - 1, MOST_UNLABELED).astype(np.int64))
        self._prepared = replace(prepared, rows=prepared.rows[some])
        self._log_stored = np.log(np.maximum(np.asarray(stored, np.float64), FLOOR))
        self._before = self._fit(labels)

    @property
    def n_bytes(self) -> int:
        return int(self._prepared.z.nbytes + 2 * self._log_stored.nbytes)

    def predict(self, labels: NDArray[np.int64]) -> LivePredictions:
        """Probabilities of all rows, given `labels` (n,): class positions or UNLABELED."""
        began = time.perf_counter()
        logits = self._logits(self._fit(labels))
        logits -= logits.max(1, keepdims=True)
        shares = np.exp(logits)
        shares /= shares.sum(1, keepdims=True)
        return LivePredictions(shares.astype(np.float32), time.perf_counter() - began)

    def cross_validate(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n, C) out-of-fold probabilities: each labeled row is predicted without its own label. NaN elsewhere."""
        rows = np.flatnonzero(labels != UNLABELED)
        found = np.full_like(self._log_stored, np.nan)
        n_classes = self._log_stored.shape[1]
        found[rows] = out_of_fold(self._prepared.z[rows], labels[rows], n_classes, self.config.penalty)
        return found

    def _logits(self, now: Fitted) -> NDArray[np.float64]:
        """(n, C) the argument of the softmax in the module's formula."""
        before = self._before
        change = np.clip((now.logits - before.logits) / self.temperature, -LIMIT, LIMIT)
        logits: NDArray[np.float64] = self._log_stored + change
        new, both = now.known & ~before.known, now.known & before.known
        if new.any():
            others = both if both.any() else np.ones_like(both)
            rest = (self._log_stored - before.logits / self.temperature)[:, others].mean(1, keepdims=True)
            logits[:, new] = now.logits[:, new] / self.temperature + rest
        return logits

    def _fit(self, labels: NDArray[np.int64]) -> Fitted:
        n_classes = self._log_stored.shape[1]
        classes, positions = np.unique(labels[labels != UNLABELED], return_inverse=True)
        found, known = np.zeros((len(labels), n_classes)), np.zeros(n_classes, np.bool_)
        if len(classes) < 2:
            return Fitted(found, known)
        targets = np.full(len(labels), UNLABELED)
        targets[labels != UNLABELED] = positions
        logits = self._prepared.z @ fit_weights(self._prepared, targets, len(classes), self.config).T
        found[:] = logits.min(1, keepdims=True)
        found[:, classes] = logits
        known[classes] = True
        return Fitted(found - found.mean(1, keepdims=True), known)
