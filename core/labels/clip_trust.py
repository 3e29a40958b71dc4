"""The trust in labels of clips: two predictors without the label's fold and the model of an earlier round, in a
logarithmic opinion pool.

    g_i     label propagation over the similarity graph, from equal shares
    h_i     the same, from the predictions of heads on a projection of the network inputs
    p_i     the prediction of an earlier round that did not know the label, if there is one
            (`core.labels.earlier_predictions`)
    q_i     proportional to (g_i^s h_i^(1 - s))^beta p_i^gamma          (Genest and Zidek, 1986)
    fit     beta, e, s and gamma maximize the objective of `core.labels.trust`, with a uniform prior of s and the prior
            of log gamma below; the beliefs and the trust t_i are defined there
    weight  w_i = t_i below 1/2, 2 t_i - 1/2 from there on, but at least FLOOR and at most 1

The graph is precise where an item has a labeled neighbor, and heads compare items that are far apart. Which of the two
predicts the labels better differs between sets, and the labels themselves determine the share s. The model of an
earlier round is better than both, but was trained on fewer labels.

A label with a trust of 3/4 or more has full weight. In small pools of labels, those of unusual items are predicted
badly, and the batches contain such items on purpose: less weight on all of them costs more than it gains.

Departures and details
- SMOOTHING of each prediction is in equal shares. No predictor alone makes a label certainly wrong, and a class without
  labels outside of the fold keeps a probability.
- There are FOLDS folds, because a fifth of a few labels is missed. Items alone in their class are trusted.
- The settings were chosen on pools (docs/wrong_labels.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, softmax

from core.config import HeadConfig
from core.labels.errors import FEWEST
from core.labels.trust import (
    BETA_SPREAD,
    FLOOR,
    RIGHT,
    WRONG,
    Predict,
    Rows,
    Trust,
    beliefs,
    head_predictor,
    out_of_fold_logits,
    trusted,
)
from core.learning.head import prepare
from core.similarity.graph import SimilarityGraph
from core.similarity.propagation import propagated, transition_matrix
from core.types import UNLABELED

FOLDS = 10
SMOOTHING = 0.003
GAMMA, GAMMA_SPREAD = 1.0, 0.5  # median of gamma, and the deviation of its logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFit:
    """The fitted pool."""

    share: float  # s
    beta: float
    e: float
    gamma: float = 0.0

    def logits(self, both: Rows, earlier: Rows | None = None) -> Rows:
        """(m, C) log-probabilities before beta, from those of both predictors (m, 2 C) and, if there are any, of
        earlier rounds (m, C), which are 0 where an item has none."""
        graph, head = np.split(both, 2, axis=1)
        pooled = self.share * graph + (1.0 - self.share) * head
        return np.asarray(pooled if earlier is None else pooled + self.gamma / self.beta * earlier)


def fit_pool(
    both: Rows, labels: NDArray[np.int64], earlier: Rows | None = None, median_gamma: float = GAMMA
) -> PoolFit:
    """The pool fitted to labels (m,) with out-of-fold log-probabilities of both predictors (m, 2 C) and log-
    probabilities of earlier rounds (m, C)."""
    at, n_classes = np.arange(len(labels)), both.shape[1] // 2

    def unpacked(values: Rows) -> PoolFit:
        gamma = float(np.exp(values[3])) if earlier is not None else 0.0
        return PoolFit(share=float(expit(values[2])), beta=float(np.exp(values[0])), e=float(expit(values[1])),
                       gamma=gamma)  # fmt: skip

    def loss(values: Rows) -> float:
        fit = unpacked(values)
        q, e = softmax(fit.beta * fit.logits(both, earlier), axis=1)[at, labels], fit.e
        likelihood = np.log((1 - e) * q + e / (n_classes - 1) * (1 - q) + 1e-300).sum()
        prior = WRONG * np.log(e) + RIGHT * np.log1p(-e) - values[0] ** 2 / (2 * BETA_SPREAD**2)
        uniform = float(log_expit(values[2]) + log_expit(-values[2]))  # the density of the logit of s
        if earlier is not None:
            prior -= (values[3] - np.log(median_gamma)) ** 2 / (2 * GAMMA_SPREAD**2)
        return -float(likelihood + prior + uniform)

    start = np.array([0.0, np.log(WRONG / RIGHT), 0.0])
    if earlier is None:
        options = {"maxiter": 600, "xatol": 1e-4, "fatol": 1e-4}
        return unpacked(minimize(loss, start, method="Nelder-Mead", options=options).x)
    start = np.append(start, np.log(median_gamma))  # the simplex method stops too early in four dimensions
    return unpacked(minimize(loss, start, method="L-BFGS-B").x)


def clip_weights(trust: NDArray[np.floating]) -> NDArray[np.float32]:
    """The weights of labels with this trust."""
    return np.asarray(np.clip(np.maximum(trust, 2.0 * trust - 0.5), FLOOR, 1.0), np.float32)


def clip_trust(
    labels: NDArray[np.int64],
    n_classes: int,
    predict: Predict,
    confirmed: NDArray[np.bool_] | None = None,
    earlier: Rows | None = None,
) -> Trust:
    """The trust in labels (n,), UNLABELED where there is none; `predict` is a `clip_predictor`. `confirmed` (n,) labels
    are trusted. `earlier` (n, C) are log-probabilities of earlier rounds, NaN where there are none."""
    full, given = trusted(labels, n_classes), np.flatnonzero(labels != UNLABELED)
    if n_classes < 2 or len(given) < FEWEST:
        return full
    both = out_of_fold_logits(labels, 2 * n_classes, predict, n_folds=FOLDS)
    rows = given[np.isfinite(both[given]).all(1)]
    if not len(rows):
        return full
    known = None if earlier is None else np.where(np.isfinite(earlier), earlier, 0.0)
    fit = fit_pool(both[rows], labels[rows], None if known is None else known[rows])
    open_ = rows if confirmed is None else rows[~confirmed[rows]]
    weights, belief = full.weights.copy(), full.belief.copy()
    logits = fit.logits(both[open_], None if known is None else known[open_])
    belief[open_] = beliefs(logits, labels[open_], fit.beta, fit.e)
    weights[open_] = clip_weights(belief[open_, labels[open_]])
    return Trust(weights=weights, belief=belief, wrong_share=fit.e, sharpness=fit.beta, n_checked=len(rows))


def clip_predictor(
    graph: SimilarityGraph,
    features: NDArray[np.floating],
    fitted: NDArray[np.int64],
    n_classes: int,
    reach: float,
    config: HeadConfig,
) -> Predict:
    """A function that gives (n, 2 C) log-probabilities by the graph and by heads with the graph, NaN outside of the
    graph. `features` (n, d) are read on the rows of the graph; heads are fitted on its rows `fitted`, which include all
    labeled ones."""
    pool = prepare(features[fitted], n_classes, config)
    head = head_predictor(pool, n_classes, config, pool.space.transform(features[graph.rows]))
    transitions = transition_matrix(graph, reach)
    equal = np.full((len(graph.rows), n_classes), 1.0 / n_classes)

    def smoothed(Q: Rows) -> Rows:
        return np.asarray(np.log((1.0 - SMOOTHING) * Q / Q.sum(1, keepdims=True) + SMOOTHING / n_classes))

    def predict(labels: NDArray[np.int64]) -> Rows:
        found = np.full((len(labels), 2 * n_classes), np.nan)
        own = labels[graph.rows]
        by_head = propagated(transitions, softmax(head(labels[fitted]), axis=1), own)
        found[graph.rows] = np.hstack([smoothed(propagated(transitions, equal, own)), smoothed(by_head)])
        return found

    return predict
