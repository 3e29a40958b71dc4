"""Labels that may be wrong, by confident learning (Northcutt, Jiang and Chuang, 2021, section 3.1).

    p_i   out-of-fold probabilities of item i: a head that was fitted without the fold of i
    t_k   mean of p_ik over the items labeled k: how confident the head is about class k on average
    item i is suspected if some class k other than its label has p_ik >= t_k; k* is the one with the largest p_ik
    rank  by p_i(label) - p_ik*, lowest first (normalized margin)

The thresholds make the rule independent of the head's calibration: a class about which the head is seldom confident
requires less probability. Labels are only ranked for review; none is changed.

Departures and details
- Items that are alone in their class are in no fold, because a head trained without them does not have the class. They
  are not suspected.
- The features must not have been trained on the labels; otherwise every label would agree with itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.learning.head import fit_softmax, label_weights

FOLDS = 5
FEWEST = 20  # labels before any is suspected


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Suspected labels, most suspicious first."""

    rows: NDArray[np.int64]  # (m,) positions in the labels
    predicted: NDArray[np.int64]  # (m,) k*
    given: NDArray[np.float64]  # (m,) probability of the label
    probability: NDArray[np.float64]  # (m,) of k*


def suspect_labels(probabilities: NDArray[np.floating], labels: NDArray[np.int64]) -> Suspects:
    """The suspects among labels (n,) with out-of-fold probabilities (n, C); rows that are not finite are left out."""
    p = np.asarray(probabilities, np.float64)
    usable = np.asarray(np.isfinite(p).all(axis=1), np.bool_)
    n_classes, at = p.shape[1], np.arange(len(p))
    own = np.where(usable, p[at, labels], np.nan)
    members = [np.flatnonzero(usable & np.equal(labels, k)) for k in range(n_classes)]
    thresholds = np.array([own[rows].mean() if len(rows) else np.inf for rows in members])
    others = np.where((p >= thresholds) & usable[:, None], p, -np.inf)
    others[at, labels] = -np.inf
    best = others.argmax(1)
    highest = others[at, best]
    found = np.flatnonzero(np.isfinite(highest) & (p[at, best] > own))
    order = found[np.argsort(own[found] - highest[found], kind="stable")]
    return Suspects(rows=order, predicted=best[order], given=own[order], probability=highest[order])


def out_of_fold(
    z: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int, penalty: float, seed: int = 0
) -> NDArray[np.float64]:
    """(n, C) probabilities of each row of z (n, r) by the head that was fitted without its label; NaN for items that
    are alone in their class. Folds have the same share of each class."""
    found = np.full((len(labels), n_classes), np.nan)
    folds = class_folds(labels, seed)
    for fold in range(FOLDS):
        inside, outside = folds == fold, folds != fold
        classes = np.unique(labels[outside])
        if not inside.any() or len(classes) < 2:
            continue
        positions = np.searchsorted(classes, labels[outside])
        weights = label_weights(positions, balance=True)
        W = fit_softmax(z[outside], np.eye(len(classes))[positions], weights, penalty)
        logits = z[inside] @ W.T
        shares = np.exp(logits - logits.max(1, keepdims=True))
        rows = np.zeros((int(inside.sum()), n_classes))
        rows[:, classes] = shares / shares.sum(1, keepdims=True)
        found[inside] = rows
    return found


def class_folds(labels: NDArray[np.int64], seed: int, n_folds: int = FOLDS) -> NDArray[np.int64]:
    """(n,) the fold of each item; `n_folds`, which is never a fold, for items that are alone in their class."""
    rng, folds, dealt = np.random.default_rng(seed), np.full(len(labels), n_folds), 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) >= 2:
            folds[rng.permutation(rows)] = (dealt + np.arange(len(rows))) % n_folds
            dealt += len(rows)
    return folds
