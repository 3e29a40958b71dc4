"""Softmax regression on the features of a frozen encoder, semi-supervised by the pool.

    z = unit(S V^T (x - mean)),   S = diag(min(1, (v_m / v_j)^1/2)),   m = C/2
    W = argmin  sum_i w_i CE(y_i, softmax(W z_i)) / sum_i w_i  +  penalty/2 |W|^2

1. labeled rows i with weights w_i = t_i / (sum of t of its class), the sum of all being 1; t_i = 1, or the trust in
   the label
2. all rows: unlabeled ones enter with targets from label spreading over nearest neighbors
   (`core.similarity.spreading`), together with SPREAD_WEIGHT times the weight of the labels, each in proportion to its
   certainty
3. `self_training` times: unlabeled targets are the head's own predictions, sharpened (logits times SHARPENING) and
   moved towards equal class shares by `alignment`, together with the weight of the labels

Symbols: x features (n, d); mean, V (d, r) and v (r,) the principal components of the pool's features and their
variances, largest first; z (n, r), rows of length 1; W weights (C, r); y targets (n, C).

Departures and details
- There is no bias and labels are weighted by class: with a bias, classes that happen to have more labels are predicted
  more often, which costs up to 40 points while there are few labels (docs/benchmark.md).
- Classes without labels are excluded: otherwise, an item that differs from all labeled ones would be assigned to one
  of these classes.
- The variances of the leading C/2 components are leveled, the others are kept: a few dominant directions would
  otherwise decide all distances (general sounds), while full whitening amplifies directions that no label supports
  (speech, photographs). In the last layer of a trained network the leading components are the classes themselves, and
  `HeadConfig.level` is off. Neighbors of label spreading are found with the leading C components leveled.
- Alignment multiplies a class's probabilities by (equal share / predicted share)^alignment. The shares of
  a pool with rare classes are moved only halfway.
- Above MAX_UNLABELED unlabeled rows, evenly spaced ones represent all in steps 2 and 3.
- All steps are deterministic. Test items must not be among the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import log_softmax, softmax

from core.config import HeadConfig
from core.errors import InvalidInput
from core.similarity.spreading import certainty, neighbor_affinity, spread_labels
from core.types import UNLABELED

SPREAD = 0.95  # alpha of label spreading
SPREAD_WEIGHT = 3.0
SHARPENING = 2.0
MAX_UNLABELED = 4_000
NEVER = -30.0  # logit of a class without labels: its probability is below 1e-9
MAX_STEPS, GRADIENT = 200, 1e-7  # of L-BFGS

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeadSpace:
    """Leveled principal components, rows scaled to length 1. It depends on features alone, not on labels."""

    mean: Rows  # (d,)
    components: Rows  # V S (d, r)

    def transform(self, features: NDArray[np.floating]) -> Rows:
        """z (n, r), rows of length 1, of features x (n, d)."""
        z = (np.asarray(features, np.float64) - self.mean) @ self.components
        return np.asarray(z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12))


def principal_components(features: NDArray[np.floating], n_dimensions: int) -> tuple[Rows, Rows, Rows]:
    """mean (d,), V (d, r) and v (r,) of features (n, d), largest variance first; r is at most the rank."""
    x = np.asarray(features, np.float64)
    mean = x.mean(0)
    centered = x - mean
    n, d = x.shape
    size = min(n, d)
    gram = centered.T @ centered if d <= n else centered @ centered.T
    top = min(n_dimensions, size)
    values, vectors = eigh(gram, subset_by_index=[size - top, size - 1])
    kept = values > 1e-10 * max(float(values[-1]), 1e-300)
    values, vectors = values[kept][::-1], vectors[:, kept][:, ::-1]
    V = vectors if d <= n else centered.T @ vectors / np.sqrt(values)
    return mean, np.ascontiguousarray(V), values / n


def leveled(V: Rows, variances: Rows, n_leading: int) -> Rows:
    """V S: components whose variance exceeds that of component `n_leading` (from 0) are scaled down to it."""
    if not len(variances):
        return V
    level = variances[min(n_leading, len(variances) - 1)]
    return np.asarray(V * np.sqrt(np.minimum(1.0, level / variances)))


def fit_space(features: NDArray[np.floating], n_dimensions: int, n_classes: int) -> HeadSpace:
    """The space of the head of a project with `n_classes` classes, from its pool's features (n, d)."""
    mean, V, variances = principal_components(features, n_dimensions)
    return HeadSpace(mean, leveled(V, variances, n_classes // 2))


@dataclass(frozen=True, slots=True)
class Head:
    """A fitted head: its space, its weights, and the classes that have labels."""

    space: HeadSpace
    weights: Rows  # W (C, r), zero for classes without labels
    offsets: Rows  # (C,) 0, or NEVER for classes without labels

    def logits(self, features: NDArray[np.floating]) -> Rows:
        """(n, C) logits of features (n, d); NEVER for classes without labels."""
        return np.asarray(self.space.transform(features) @ self.weights.T + self.offsets)

    def probabilities(self, features: NDArray[np.floating]) -> NDArray[np.float32]:
        """(n, C) probabilities of features (n, d)."""
        return np.asarray(softmax(self.logits(features), axis=1), np.float32)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The inputs of a fit that depend only on the pool's features: computed once per pool, used by every fit."""

    space: HeadSpace
    z: Rows  # (n, r)
    rows: NDArray[np.int64]  # (u,) rows that may be used without a label
    affinity: csr_matrix | None  # (n, n) of label spreading; None: labels alone


def prepare(features: NDArray[np.floating], n_classes: int, config: HeadConfig) -> Prepared:
    """The space, the rows and the neighbor graph of a pool's features (n, d) in a project with `n_classes` classes."""
    if features.ndim != 2 or not len(features):
        raise InvalidInput(f"A head needs features of at least one item; there are {features.shape}.")
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features).all(1)).sum())
        raise InvalidInput(f"The features of {bad} of {len(features)} items are not finite. Encode these items again.")
    mean, V, variances = principal_components(features, config.dimensions)
    space = HeadSpace(mean, leveled(V, variances, n_classes // 2 if config.level else 0))
    n = len(features)
    rows = np.unique(np.linspace(0, n - 1, min(n, MAX_UNLABELED)).astype(np.int64))
    affinity = None
    if config.neighbors:
        near = HeadSpace(mean, leveled(V, variances, n_classes if config.level else 0)).transform(features)
        affinity = neighbor_affinity(near, config.neighbors)
    return Prepared(space, space.transform(features), rows, affinity)


def fit_softmax(
    z: Rows, targets: Rows, weights: Rows, penalty: float, start: Rows | None = None, tolerance: float = 1e-12
) -> NDArray[np.float64]:
    """W (C, r) minimizing  sum_i w_i CE(Y_i, softmax(W z_i)) / sum_i w_i + penalty/2 |W|^2  by L-BFGS.

    It stops when the relative decrease of the value is less than `tolerance`.
    """
    n_classes, r = targets.shape[1], z.shape[1]
    shares = (weights / weights.sum())[:, None]

    def objective(flat: Rows) -> tuple[float, Rows]:
        W = flat.reshape(n_classes, r)
        log_p = log_softmax(z @ W.T, axis=1)
        value = -float((shares * targets * log_p).sum()) + penalty / 2 * float((W * W).sum())
        return value, ((shares * (np.exp(log_p) - targets)).T @ z + penalty * W).ravel()

    first = np.zeros(n_classes * r) if start is None else start.ravel()
    options = {"maxiter": MAX_STEPS, "gtol": GRADIENT, "ftol": tolerance}
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x).reshape(n_classes, r)


def label_weights(labels: NDArray[np.int64], balance: bool, trust: Rows | None = None) -> Rows:
    """(L,) weights of labeled rows with sum 1, in proportion to `trust` (L,) (`core.labels.trust`); with `balance`
    every class that has labels gets the same share."""
    own = np.ones(len(labels)) if trust is None else trust
    weights = own / np.bincount(labels, own)[labels] if balance else own
    return np.asarray(weights / weights.sum())


def aligned(P: Rows, power: float) -> Rows:
    """Rows of P (n, C) moved towards equal class shares: P_ic (1/C / share of c)^power, normalized."""
    moved = P * (1.0 / P.shape[1] / np.maximum(P.mean(0), 1e-12)) ** power
    return np.asarray(moved / moved.sum(1, keepdims=True))


def fit_head(
    features: NDArray[np.floating],
    labels: NDArray[np.int64],
    n_classes: int,
    config: HeadConfig | None = None,
    prepared: Prepared | None = None,
    trust: NDArray[np.floating] | None = None,
) -> Head:
    """The head of a pool: features (n, d), labels (n,) class positions, UNLABELED where there is none.

    `prepared` is `prepare(features, n_classes, config)` of the same features if it is already computed; `trust` (n,)
    are the weights of labels among those of their class (`core.labels.trust`), equal ones by default.
    """
    config = config or HeadConfig()
    labeled = labels != UNLABELED
    if not labeled.any():
        raise InvalidInput("A head needs at least one label.")
    pool = prepared or prepare(features, n_classes, config)
    classes, positions = np.unique(labels[labeled], return_inverse=True)
    targets = np.full(len(labels), UNLABELED)
    targets[labeled] = positions
    W = np.zeros((n_classes, pool.z.shape[1]))
    W[classes] = fit_weights(pool, targets, len(classes), config, trust)
    offsets = np.full(n_classes, NEVER)
    offsets[classes] = 0.0
    return Head(pool.space, W, offsets)


def fit_weights(
    pool: Prepared,
    labels: NDArray[np.int64],
    n_classes: int,
    config: HeadConfig,
    trust: NDArray[np.floating] | None = None,
) -> Rows:
    """W (C, r) by the three steps of the module's docstring; every class has a label."""
    given = np.flatnonzero(labels != UNLABELED)
    trusted = None if trust is None else np.asarray(trust, np.float64)[given]
    one_hot, own = np.eye(n_classes)[labels[given]], label_weights(labels[given], config.balance, trusted)
    W = fit_softmax(pool.z[given], one_hot, own, config.penalty)
    others = pool.rows[labels[pool.rows] == UNLABELED]
    if pool.affinity is None or not len(others):
        return W
    z = pool.z[np.concatenate([given, others])]

    def fit(targets: Rows, share: float, start: Rows) -> Rows:
        certain = certainty(targets)
        weights = np.concatenate([own, share * certain / max(float(certain.sum()), 1e-12)])
        return fit_softmax(z, np.concatenate([one_hot, targets]), weights, config.penalty, start, 1e-7)

    W = fit(spread_labels(pool.affinity, labels, n_classes, SPREAD, trust)[others], SPREAD_WEIGHT, W)
    for _ in range(config.self_training):
        P = softmax(SHARPENING * (pool.z[others] @ W.T), axis=1)
        W = fit(aligned(P, config.alignment), 1.0, W)
    return W
