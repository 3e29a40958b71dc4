"""What the labels say about items that are like labeled ones, before any network has learned anything.

A walker starts at an item and steps to one of its k most alike items; before each step it is lost with probability
1 - reach; at a labeled item it stops. With W the steps (rows sum to 1) and F the share that stops at each class:

    F = reach W F   on unlabeled items,   F = y   on labeled ones
    hint = F + (1 - sum_c F) / C          lost walkers say nothing

So an item far from every label has an even hint, and one in a crowd around a label a clear one. The hint is a second
opinion beside the network's guess: FixMatch multiplies its guesses with hint^power (`core.learning.fixmatch`).

Alike: clips by warped cepstra (`core.media.warping`). Weights of a step: exp(-d^2 / (s_i s_j)), s_i the distance to the
k-th (Zelnik-Manor and Perona, 2004), either way round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from core.config import TrainingConfig
from core.media.inputs import Inputs
from core.media.warping import alike
from core.types import UNLABELED, Report, ignore

MOST_STEPS = 500
ENOUGH = 1e-4  # change of any share at which the walk has settled
LEAST = 1e-6  # a hint never forbids a class
MOST_ITEMS = 30_000  # that take part in a walk: the labeled ones and others, evenly spaced; the rest have even hints


def steps(neighbors: NDArray[np.int64], distances: NDArray[np.float32]) -> csr_matrix:
    """(m, m) where a walker goes next; rows sum to 1."""
    m, k = neighbors.shape
    scale = distances[:, -1].astype(np.float64)
    scale = np.maximum(scale, 1e-6 * (scale.mean() + 1e-12))
    weights = np.exp(-np.square(distances.astype(np.float64)) / (scale[:, None] * scale[neighbors]))
    one_way = csr_matrix((weights.ravel(), (np.repeat(np.arange(m), k), neighbors.ravel())), shape=(m, m))
    both = one_way.maximum(one_way.T)
    return csr_matrix(both.multiply(1.0 / np.maximum(both.sum(1), 1e-300)))


def absorbed(walk: csr_matrix, labels: NDArray[np.int64], n_classes: int, reach: float) -> NDArray[np.float64]:
    """(m, C) the share of walkers from each item that stops at each class."""
    given = np.flatnonzero(labels != UNLABELED)
    own = np.eye(n_classes)[labels[given]]
    shares = np.zeros((len(labels), n_classes))
    shares[given] = own
    for _ in range(MOST_STEPS):
        before = shares
        shares = reach * (walk @ before)
        shares[given] = own
        if np.abs(shares - before).max() < ENOUGH:
            break
    return shares


def taking_part(rows: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most MOST_ITEMS of the rows, however large the pool: labeled ones first, then evenly spaced ones."""
    if len(rows) <= MOST_ITEMS:
        return rows
    given, others = rows[labels[rows] != UNLABELED], rows[labels[rows] == UNLABELED]
    n_others = max(MOST_ITEMS - len(given), 0)
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)]
    return np.sort(np.concatenate([given[:MOST_ITEMS], spaced]))


def hints_for(
    inputs: Inputs,
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    n_classes: int,
    config: TrainingConfig,
    report: Report = ignore,
) -> NDArray[np.float32] | None:
    """(n, C) hint^power of each of `rows`, even elsewhere; None where the settings ask for none. Pictures have none:
    no likeness of theirs is known that would hold for photographs and drawings alike."""
    if not config.hint_neighbors or config.method != "fixmatch" or inputs.kind != "audio" or len(rows) < 2:
        return None
    rows = taking_part(rows, labels)
    walk = steps(*alike(inputs.clean, rows, config.hint_neighbors, report))
    shares = absorbed(walk, labels[rows], n_classes, config.hint_reach)
    hints = np.full((len(inputs), n_classes), n_classes**-config.hint_power, np.float32)
    hints[rows] = (shares + (1.0 - shares.sum(1, keepdims=True)) / n_classes) ** config.hint_power
    return np.maximum(hints, LEAST)
