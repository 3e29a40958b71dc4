"""PoolPredictions that agree with what is alike: a walk over alike items asks the model, and the people, on its way.

A walker starts at an item. It heads for one of the alike items j with probability w_ij (`SimilarityGraph.weights`, rows
scaled to sum 1), and gets there with probability exp(-(d_ij / (reach typical))^4): short steps are safe, steps about as
long as the pool's typical distance never are. Where it gives up it takes the model's guess P_i of the item it is at; at
an item that people labeled it takes the label. The settled guess Q_i is what walkers from i bring home, on average:

    Q = T Q + (1 - T 1) P   on unlabeled items,     Q = y   on labeled ones
    T_ij = w_ij exp(-(d_ij / (reach typical))^4)

So single wrong guesses in a crowd of right ones, and whole crowds around a label, are put right; where nothing is near,
the model's guess stays as it is. Zhou et al. (2004) and Iscen et al. (2019) spread labels with a constant loss per
step; the loss that grows with distance is what leaves pools alone in which being alike proves little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags

from core.similarity.graph import SimilarityGraph
from core.types import UNLABELED

MOST_STEPS = 500
ENOUGH = 1e-4  # change of any probability at which a walk has settled
STEEPNESS = 4


def steps(likeness: SimilarityGraph, reach: float) -> csr_matrix:
    """T (m, m): where a walker arrives after one step; rows sum to 1 less the share that gives up."""
    weights, far = likeness.weights(), likeness.shares_of_typical()
    far.data = np.exp(-np.power(far.data / reach, STEEPNESS))
    totals = np.asarray(weights.sum(1)).ravel()
    return csr_matrix(diags(1.0 / np.maximum(totals, 1e-300)) @ weights.multiply(far))


def settled(walk: csr_matrix, guesses: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """(m, C) Q, from P (m, C) `guesses` and the labels (m,), UNLABELED where there is none."""
    given = np.flatnonzero(labels != UNLABELED)
    own = np.eye(guesses.shape[1])[labels[given]]
    giving_up = 1.0 - np.asarray(walk.sum(1)).ravel()
    asked = giving_up[:, None] * guesses
    found = np.array(guesses, np.float64)
    found[given] = own
    for _ in range(MOST_STEPS):
        before = found
        found = walk @ before + asked
        found[given] = own
        if np.abs(found - before).max() < ENOUGH:
            break
    return found


def propagate_labels(
    likeness: SimilarityGraph, probabilities: NDArray[np.float32], labels: NDArray[np.int64], reach: float
) -> NDArray[np.float32]:
    """(n, C) for the whole pool: settled where an item takes part in the likeness, as they were elsewhere."""
    rows = likeness.rows
    settled_rows = settled(steps(likeness, reach), probabilities[rows], labels[rows])
    result = np.array(probabilities, np.float32)
    result[rows] = settled_rows / settled_rows.sum(1, keepdims=True)
    return result
