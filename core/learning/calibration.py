"""Temperature scaling (Guo et al., 2017): probabilities are softmax(logits / temperature), so the predicted class does
not change. The temperature is estimated from the training labels alone; no test label is read.

With few labels the temperature is PRIOR_TEMPERATURE. With at least MIN_LABELS labels in classes of two or more, it is
estimated by cross-validation and shrunk towards the prior:

    heads        a softmax head is fitted on the network's embeddings of all folds but one, for each of FOLDS folds
    logits       those of the fold that was left out, times the ratio of the lengths of the network's own logits and of
                 those of a head that was fitted on all folds: the temperature belongs to the network's own head
    temperature  the minimum over T of   n * cross-entropy(logits / T) + STRENGTH / 2 * log(T / PRIOR_TEMPERATURE)^2
                 and at least PRIOR_TEMPERATURE

Bias: the network itself was trained on the labels of the fold that is left out; only the head was not. Embeddings of
labeled items are therefore separated better than those of other items, and the estimate is too low. An estimate above
the prior is evidence of overconfidence; one below it is not evidence of the opposite, and the prior is kept.

The prior is 1, the unchanged network: no value other than 1 is justified before it is measured, and it may not be
measured on test items. `experiments.calibration_prior` measures it on pool items whose labels were not used in
training. With few labels a network is usually overconfident, and the round says that its confidence is not corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

PRIOR_TEMPERATURE = 1.0
STRENGTH = 10.0  # of the prior: a deviation of 0.32 in log T costs as much as half a nat over all labels
MIN_LABELS = 30  # in classes with at least two labels
MAX_LABELS = 2_000  # of more, an even sample is used
FOLDS = 5
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.25, 10.0

Source = Literal["off", "prior", "cross-validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A temperature and how it was determined."""

    temperature: float
    source: Source
    n_labels: int = 0  # labels it was estimated on

    @property
    def note(self) -> str:
        """A sentence for users; empty if the temperature was estimated from the labels."""
        if self.source == "off":
            return "Confidence is not calibrated: calibration is switched off in the settings."
        if self.source == "prior":
            return (
                f"Confidence is not corrected yet and is often too high: this takes {MIN_LABELS} labels in classes "
                "that have at least two labels."
            )
        return ""


def mean_cross_entropy(logits: NDArray[np.floating], labels: NDArray[np.int64], temperature: float) -> float:
    """Mean cross-entropy in nats of softmax(logits / temperature), logits (n, C), at labels (n,)."""
    scaled = logits / temperature
    return float(np.mean(logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]))


def fitted_temperature(logits: NDArray[np.floating], labels: NDArray[np.int64], strength: float = 0.0) -> float:
    """The temperature in [0.25, 10] under which `labels` (n,) are most likely given `logits` (n, C); `strength` is the
    weight of the prior."""
    wide = np.asarray(logits, np.float64)

    def objective(log_t: float) -> float:
        penalty = strength / 2 * (log_t - np.log(PRIOR_TEMPERATURE)) ** 2
        return mean_cross_entropy(wide, labels, float(np.exp(log_t))) + float(penalty) / len(labels)

    found = minimize_scalar(objective, bounds=(np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)), method="bounded")
    return float(np.exp(found.x))


def calibrate(embeddings: NDArray[np.floating], logits: NDArray[np.floating], labels: NDArray[np.int64]) -> Calibration:
    """The calibration of a network from its embeddings (n, e) and logits (n, C) of the n labeled items; labels (n,)
    are class positions."""
    labels = np.asarray(labels, np.int64)
    scored = np.isin(labels, np.flatnonzero(np.bincount(labels) >= 2))
    if int(scored.sum()) < MIN_LABELS:
        return Calibration(temperature=PRIOR_TEMPERATURE, source="prior")
    if len(labels) > MAX_LABELS:
        order = np.argsort(labels, kind="stable")
        some = order[np.linspace(0, len(order) - 1, MAX_LABELS).round().astype(np.int64)]
        return calibrate(embeddings[some], logits[some], labels[some])
    left_out = out_of_fold_logits(embeddings, logits, labels)
    positions = np.unique(labels, return_inverse=True)[1]
    estimate = fitted_temperature(left_out[scored], positions[scored], STRENGTH)
    return Calibration(
        temperature=max(estimate, PRIOR_TEMPERATURE), source="cross-validation", n_labels=int(scored.sum())
    )


def out_of_fold_logits(
    embeddings: NDArray[np.floating], logits: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(n, K) logits of the K classes that have labels, in ascending order: of each item by the head that was fitted
    without its label, on the scale of the network's own logits. Items of classes with one label are in no fold; their
    rows are those of the head of all items."""
    x = np.asarray(embeddings, np.float64)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    classes, positions, counts = np.unique(labels, return_inverse=True, return_counts=True)
    found = _head_logits(x, positions, x)
    scale = _length(np.asarray(logits, np.float64)[:, classes]) / max(_length(found), 1e-12)
    folds = fold_of(positions, counts)
    for fold in range(FOLDS):
        inside = folds == fold
        if inside.any():
            found[inside] = _head_logits(x[~inside], positions[~inside], x[inside])
    return scale * found


def fold_of(positions: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the fold of each item, -1 for items that are alone in their class. The items of a class are distributed
    evenly over the folds, so no fold contains all of them."""
    folds = np.full(len(positions), -1)
    dealt = 0
    for position in np.flatnonzero(counts >= 2):
        rows = np.flatnonzero(positions == position)
        folds[rows] = (dealt + np.arange(len(rows))) % FOLDS
        dealt += len(rows)
    return folds


def _head_logits(x: NDArray[np.float64], positions: NDArray[np.int64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """(len(at), K) logits at `at` of a softmax head that was fitted on x (n, e) with classes `positions` (n,)."""
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(C=1.0, max_iter=300).fit(x, positions)
    scores = head.decision_function(at)
    return np.stack([-scores / 2, scores / 2], 1) if scores.ndim == 1 else np.asarray(scores)


def _length(logits: NDArray[np.float64]) -> float:
    """Root mean square of logits that are centered in each row."""
    return float(np.sqrt(np.square(logits - logits.mean(1, keepdims=True)).mean()))
