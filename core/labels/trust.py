"""How far given labels can be trusted: cross-validated predictions under a model of wrong labels.

    q_i     out-of-fold distribution of item i over the classes, softmax(beta l_i): logits l_i of a model that was
            fitted without the labels of the fold of i
    model   the true class is drawn from q_i; the label is the true class with probability 1 - e, else another one
    fit     beta and e maximize  sum_i log[(1 - e) q_iy + e / (C - 1) (1 - q_iy)]  + log prior     (y the label of i)
    belief  b_ik = P(true class k | label, q_i), proportional to (1 - e) q_iy for k = y and e / (C - 1) q_ik elsewhere
    trust   t_i = b_iy, the probability that the label is right
    weight  w_i = max(FLOOR, t_i) in training and propagation; 1 for confirmed labels

beta calibrates the predictions and e is the share of wrong labels; both are estimated from the labels themselves. A
label is never changed. The weight is continuous in the predictions and bounded below, so no label is lost. It is 1 for
labels that someone has confirmed: decided in Review, or given twice.

Departures and details
- Priors: log beta is normal with deviation BETA_SPREAD; e has the distribution Beta(1 + WRONG, 1 + RIGHT), as if RIGHT
  labels had been confirmed and WRONG labels corrected before. A few labels therefore change little.
- Items that are alone in their class are in no fold (`core.labels.errors`) and are trusted.
- With fewer than FEWEST labels in folds, every label is trusted.
- With uninformative features the predictions are calibrated to nearly equal shares, and no label loses trust.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from core.config import HeadConfig
from core.labels.errors import FEWEST, FOLDS, class_folds
from core.learning.head import NEVER, Prepared, fit_weights
from core.similarity.graph import SimilarityGraph
from core.similarity.propagation import propagated, transition_matrix
from core.types import UNLABELED

FLOOR = 0.1  # of the weight of a label
SUSPECTED = 0.5  # a label with less trust is more likely wrong than right
WRONG, RIGHT = 1.0, 19.0
BETA_SPREAD = 0.7
LEAST = 1e-6  # smallest propagated probability before the logarithm

Rows = NDArray[np.float64]
Predict = Callable[[NDArray[np.int64]], Rows]  # labels (n,) -> logits (n, C) of a model fitted on them


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The trust in the labels of a pool; rows without a label have weight 1 and belief 0."""

    weights: NDArray[np.float32]  # (n,)
    belief: NDArray[np.float32]  # (n, C) about the true class of labeled rows
    wrong_share: float  # e
    sharpness: float  # beta
    n_checked: int  # labels in folds

    @property
    def suspects(self) -> NDArray[np.int64]:
        """(m,) rows whose label is more likely wrong than right, the least trusted first."""
        rows = np.flatnonzero(self.weights < SUSPECTED)
        return rows[np.argsort(self.weights[rows], kind="stable")]


def trusted(labels: NDArray[np.int64], n_classes: int) -> Trust:
    """Full trust in every label."""
    belief = np.zeros((len(labels), n_classes), np.float32)
    given = np.flatnonzero(labels != UNLABELED)
    belief[given, labels[given]] = 1.0
    return Trust(weights=np.ones(len(labels), np.float32), belief=belief, wrong_share=0.0, sharpness=1.0, n_checked=0)


def out_of_fold_logits(
    labels: NDArray[np.int64], width: int, predict: Predict, seed: int = 0, n_folds: int = FOLDS
) -> Rows:
    """(n, width) logits of labeled rows by models that were fitted without the labels of their fold; NaN elsewhere.
    `width` is that of the predictions: the number of classes, or a multiple of it."""
    given = np.flatnonzero(labels != UNLABELED)
    folds, found = class_folds(labels[given], seed, n_folds), np.full((len(labels), width), np.nan)
    for fold in range(n_folds):
        inside = given[folds == fold]
        if len(inside):
            without = labels.copy()
            without[inside] = UNLABELED
            if len(np.unique(without[without != UNLABELED])) > 1:
                found[inside] = predict(without)[inside]
    return found


def fit_noise(logits: Rows, labels: NDArray[np.int64]) -> tuple[float, float]:
    """(beta, e) fitted to labels (m,) with out-of-fold logits (m, C)."""
    at, n_classes = np.arange(len(labels)), logits.shape[1]

    def loss(values: Rows) -> float:
        q = softmax(np.exp(values[0]) * logits, axis=1)[at, labels]
        e = float(expit(values[1]))
        likelihood = np.log((1 - e) * q + e / (n_classes - 1) * (1 - q) + 1e-300).sum()
        prior = WRONG * np.log(e) + RIGHT * np.log1p(-e) - values[0] ** 2 / (2 * BETA_SPREAD**2)
        return -float(likelihood + prior)

    start = np.array([0.0, np.log(WRONG / RIGHT)])
    found = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 300, "xatol": 1e-4, "fatol": 1e-4})
    return float(np.exp(found.x[0])), float(expit(found.x[1]))


def beliefs(logits: Rows, labels: NDArray[np.int64], beta: float, e: float) -> Rows:
    """b (m, C) about the true classes."""
    at, n_classes = np.arange(len(labels)), logits.shape[1]
    joint = log_softmax(beta * logits, axis=1) + np.log(e / (n_classes - 1))
    joint[at, labels] += np.log1p(-e) - np.log(e / (n_classes - 1))
    return np.asarray(softmax(joint, axis=1))


def label_trust(
    labels: NDArray[np.int64],
    n_classes: int,
    predict: Predict,
    confirmed: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Trust:
    """The trust in labels (n,), UNLABELED where there is none. `confirmed` (n,) labels are trusted."""
    full = trusted(labels, n_classes)
    given = np.flatnonzero(labels != UNLABELED)
    if n_classes < 2 or len(given) < FEWEST:
        return full
    logits = out_of_fold_logits(labels, n_classes, predict, seed)
    rows = given[np.isfinite(logits[given]).all(1)]
    if len(rows) < FEWEST:
        return full
    beta, e = fit_noise(logits[rows], labels[rows])
    open_ = rows if confirmed is None else rows[~confirmed[rows]]
    weights, belief = full.weights.copy(), full.belief.copy()
    belief[open_] = beliefs(logits[open_], labels[open_], beta, e)
    weights[open_] = np.maximum(FLOOR, belief[open_, labels[open_]])
    return Trust(weights=weights, belief=belief, wrong_share=e, sharpness=beta, n_checked=len(rows))


def head_predictor(pool: Prepared, n_classes: int, config: HeadConfig, z: Rows | None = None) -> Predict:
    """A function that gives logits of the semi-supervised head (`core.learning.head`), without self-training, for the
    rows of the pool or for other rows `z` (k, r) of its space."""
    quick = HeadConfig(
        dimensions=config.dimensions,
        level=config.level,
        penalty=config.penalty,
        balance=config.balance,
        neighbors=config.neighbors,
        self_training=0,
    )

    def predict(labels: NDArray[np.int64]) -> Rows:
        classes, positions = np.unique(labels[labels != UNLABELED], return_inverse=True)
        targets = np.full(len(labels), UNLABELED)
        targets[labels != UNLABELED] = positions
        rows = pool.z if z is None else z
        found = np.full((len(rows), n_classes), NEVER)
        found[:, classes] = rows @ fit_weights(pool, targets, len(classes), quick).T
        return found

    return predict


def graph_predictor(graph: SimilarityGraph, n_classes: int, n_items: int, reach: float) -> Predict:
    """A function that gives log-probabilities by label propagation over the similarity graph, starting from equal
    shares; NaN outside of the graph."""
    transitions = transition_matrix(graph, reach)
    equal = np.full((len(graph.rows), n_classes), 1.0 / n_classes)

    def predict(labels: NDArray[np.int64]) -> Rows:
        found = np.full((n_items, n_classes), np.nan)
        Q = propagated(transitions, equal, labels[graph.rows])
        found[graph.rows] = np.log(np.maximum(Q / Q.sum(1, keepdims=True), LEAST))
        return found

    return predict
