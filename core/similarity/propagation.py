"""Label propagation by an absorbing random walk; unabsorbed mass keeps the model's prediction.

From item i a walk moves to neighbor j with probability T_ij and stops at i otherwise. It is absorbed at labeled items.
A walk that stops at an unlabeled item contributes the model's prediction for that item; an absorbed one contributes
the label. The propagated prediction Q_i is the expected contribution of walks from i:

    T_ij = w_ij exp(-(d_ij / (reach * typical))^4)
    Q    = T Q + (1 - T 1) P   on unlabeled items,     Q = y   on labeled items

A label with trust t (`core.labels.trust`) absorbs a walk only with probability t; otherwise the walk continues to a
neighbor: Q = t y + (1 - t) T Q / T 1.

The edge weights w_ij are those of `SimilarityGraph.weights`, with rows scaled to sum 1. Short edges are followed almost
surely; edges about as long as the pool's typical distance are almost never followed. Isolated wrong predictions in a
cluster of right ones are corrected, labels spread over their clusters, and items without near neighbors keep the
model's prediction.

From an item x outside of the graph, such as a test item, the first step leads to its nearest items in the graph; from
there the walk continues like theirs (`extended`). The results for the items of the graph do not change:

    Q_x = sum_j T_xj Q_j + (1 - sum_j T_xj) P_x

Departures and details: Zhou et al. (2004) and Iscen et al. (2019) spread labels with a constant loss per step. Here the
loss grows with distance, so predictions hardly change in pools where neighbors are far apart and often differ in class.

Symbols: P model predictions (m, C); y one-hot labels; T transitions (m, m); Q propagated predictions (m, C).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags

from core.similarity.graph import NewItems, SimilarityGraph
from core.types import UNLABELED

MAX_ITERATIONS = 500
TOLERANCE = 1e-4  # largest change of a probability at which the iteration stops
DISTANCE_POWER = 4


def transition_matrix(graph: SimilarityGraph, reach: float) -> csr_matrix:
    """T (m, m); a row sums to 1 minus the probability that the walk stops there."""
    weights, far = graph.weights(), graph.relative_distances()
    far.data = np.exp(-np.power(far.data / reach, DISTANCE_POWER))
    totals = np.asarray(weights.sum(1)).ravel()
    return csr_matrix(diags(1.0 / np.maximum(totals, 1e-300)) @ weights.multiply(far))


def propagated(
    transitions: csr_matrix,
    predictions: NDArray[np.floating],
    labels: NDArray[np.int64],
    trust: NDArray[np.floating] | None = None,
) -> NDArray[np.float64]:
    """(m, C) Q from T (m, m), P (m, C) and class positions (m,), UNLABELED where there is none; by fixed-point
    iteration until no probability changes by TOLERANCE. `trust` (m,) is the probability that a label absorbs a walk."""
    labeled = np.flatnonzero(labels != UNLABELED)
    one_hot = np.eye(predictions.shape[1])[labels[labeled]]
    leaving = np.asarray(transitions.sum(1)).ravel()
    stopped = (1.0 - leaving)[:, None] * predictions
    absorbing = np.ones(len(labeled)) if trust is None else np.asarray(trust, np.float64)[labeled]
    absorbing = np.where(leaving[labeled] > 0, absorbing, 1.0)[:, None]  # a walk without a next step ends at the label
    passing = (1.0 - absorbing) / np.maximum(leaving[labeled], 1e-300)[:, None]
    Q = np.array(predictions, np.float64)
    Q[labeled] = one_hot
    for _ in range(MAX_ITERATIONS):
        before = Q
        walked = transitions @ before
        Q = walked + stopped
        Q[labeled] = absorbing * one_hot + passing * walked[labeled]
        if np.abs(Q - before).max() < TOLERANCE:
            break
    return Q


def propagate_labels(
    graph: SimilarityGraph,
    probabilities: NDArray[np.float32],
    labels: NDArray[np.int64],
    reach: float,
    trust: NDArray[np.floating] | None = None,
) -> NDArray[np.float32]:
    """(n, C) predictions of the whole pool: propagated on the rows of the graph, unchanged elsewhere and on labeled
    rows. `trust` (n,) as in `propagated`."""
    rows = graph.rows
    own = None if trust is None else trust[rows]
    Q = propagated(transition_matrix(graph, reach), probabilities[rows], labels[rows], own)
    result = np.array(probabilities, np.float32)
    result[rows] = Q / Q.sum(1, keepdims=True)
    given = rows[labels[rows] != UNLABELED]
    result[given] = np.eye(probabilities.shape[1], dtype=np.float32)[labels[given]]
    return result


def extended(
    graph: SimilarityGraph,
    new: NewItems,
    own: NDArray[np.float32],
    propagated_rows: NDArray[np.floating],
    reach: float,
) -> NDArray[np.float32]:
    """(b, C) propagated predictions of items outside of the graph, from the model's predictions `own` (b, C) and the
    propagated ones of the graph, `propagated_rows` (m, C)."""
    d = new.distances.astype(np.float64)
    scale, own_scale = graph.distances[:, -1].astype(np.float64), d[:, -1]
    least = 1e-6 * (scale.mean() + 1e-12)
    scale, own_scale = np.maximum(scale, least), np.maximum(own_scale, least)
    w = np.exp(-np.square(d) / (own_scale[:, None] * scale[new.neighbors]))
    relative = np.maximum(d / max(graph.typical, 1e-12), 1e-12)
    T = w / np.maximum(w.sum(1, keepdims=True), 1e-300) * np.exp(-np.power(relative / reach, DISTANCE_POWER))
    reached = np.einsum("bk,bkc->bc", T, np.asarray(propagated_rows, np.float64)[new.neighbors])
    Q = reached + (1.0 - T.sum(1, keepdims=True)) * own
    return np.asarray(Q / Q.sum(1, keepdims=True), np.float32)
