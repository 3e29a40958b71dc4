"""Baselines of bilevel coresets for replay memories: each returns rows in order, best first.

    uniform                a random order
    k-means, k-center      k-means++ seeding, in the order drawn; farthest-first traversal: on raw features, on
                           last-layer embeddings, or on gradients
    gradient matching      iCaRL's herding on unit gradients, over all classes together: their mean is followed
    max entropy, hardest   largest entropy of the prediction; largest loss
    iCaRL                  herding: the running mean of the chosen embeddings follows the class mean, classes in turn
    FRCL                   the rows whose kernel columns leave the least trace of variance unexplained (inducing points
                           of a Gaussian process on the embeddings), one by one

`Evidence` is their input; gradients are those of the last layer, (P_i - Y_i) x embedding_i, flattened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from core.errors import InvalidInput

FloatArray = NDArray[np.float64]
RowArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The rows of one task with the trained model's outputs."""

    features: FloatArray  # (n, d) raw inputs, flattened
    embeddings: FloatArray  # (n, e) last layer
    probabilities: FloatArray  # (n, C) predictions
    labels: RowArray  # (n,) class positions
    seed: int = 0

    @property
    def gradients(self) -> FloatArray:
        """(n, C e): of the loss in the last layer's weights."""
        error = self.probabilities - np.eye(self.probabilities.shape[1])[self.labels]
        return (error[:, :, None] * self.embeddings[:, None, :]).reshape(len(error), -1)

    @property
    def losses(self) -> FloatArray:
        """(n,) cross-entropy of every row."""
        return -np.log(np.maximum(self.probabilities[np.arange(len(self.labels)), self.labels], 1e-12))


Summarize = Callable[[Evidence, int], RowArray]


def uniform(evidence: Evidence, size: int) -> RowArray:
    return np.random.default_rng(evidence.seed).permutation(len(evidence.labels))[:size]


def k_means(x: FloatArray, size: int, seed: int) -> RowArray:
    """The rows that k-means++ draws as centers, in that order; if fewer rows are distinct, the others are random."""
    rows = list(dict.fromkeys(int(row) for row in kmeans_plusplus(x, size, random_state=seed)[1]))
    rest = np.setdiff1d(np.arange(len(x)), rows)
    filled = np.random.default_rng(seed).permutation(rest)[: size - len(rows)]
    return np.array([*rows, *filled], dtype=np.int64)


def k_center(x: FloatArray, size: int, seed: int) -> RowArray:
    """Farthest-first traversal from a random row."""
    rows = [int(np.random.default_rng(seed).integers(len(x)))]
    distance = ((x - x[rows[0]]) ** 2).sum(1)
    while len(rows) < size:
        distance[rows] = -1.0
        rows.append(int(distance.argmax()))
        distance = np.minimum(distance, ((x - x[rows[-1]]) ** 2).sum(1))
    return np.array(rows, dtype=np.int64)


def gradient_matching(gradients: FloatArray, size: int) -> RowArray:
    """Herding of all gradients together, at unit length as iCaRL's embeddings: a Hilbert coreset with equal weights."""
    return _herd(gradients / (np.linalg.norm(gradients, axis=1, keepdims=True) + 1e-8), size)


def max_entropy(evidence: Evidence, size: int) -> RowArray:
    p = np.clip(evidence.probabilities, 1e-12, 1)
    return np.argsort((p * np.log(p)).sum(1), kind="stable")[:size]


def hardest(evidence: Evidence, size: int) -> RowArray:
    return np.argsort(-evidence.losses, kind="stable")[:size]


def herding(evidence: Evidence, size: int) -> RowArray:
    """iCaRL: within each class the next row brings the mean of the chosen ones nearest to the class mean."""
    z = evidence.embeddings / (np.linalg.norm(evidence.embeddings, axis=1, keepdims=True) + 1e-12)
    orders = []
    for label in np.unique(evidence.labels):
        rows = np.flatnonzero(evidence.labels == label)
        orders.append(rows[_herd(z[rows], min(size, len(rows)))])
    turns = [order[k] for k in range(max(map(len, orders))) for order in orders if k < len(order)]
    return np.array(turns[:size], dtype=np.int64)


def _herd(x: FloatArray, size: int) -> RowArray:
    """`size` rows one by one: the next brings the mean of the chosen ones nearest to the mean of all rows (n, d)."""
    mean, total, chosen = x.mean(0), np.zeros(x.shape[1]), list[int]()
    for count in range(1, size + 1):
        gap = ((mean - (total + x) / count) ** 2).sum(1)
        gap[chosen] = np.inf
        chosen.append(int(gap.argmin()))
        total = total + x[chosen[-1]]
    return np.array(chosen, dtype=np.int64)


def inducing_points(evidence: Evidence, size: int, noise: float = 1e-3) -> RowArray:
    """FRCL: greedy choice of the row that explains most of the trace of the embeddings' kernel."""
    z = evidence.embeddings - evidence.embeddings.mean(0)
    z = np.concatenate([z / (z.std() + 1e-12), np.ones((len(z), 1))], 1)
    K = z @ z.T
    rest, rows = K.copy(), list[int]()
    for _ in range(size):
        gain = (rest * rest).sum(0) / (np.diag(rest) + noise * np.trace(K) / len(K))
        gain[rows] = -np.inf
        rows.append(int(gain.argmax()))
        column = rest[:, rows[-1]]
        rest = rest - np.outer(column, column) / (column[rows[-1]] + noise * np.trace(K) / len(K))
    return np.array(rows, dtype=np.int64)


SUMMARIES: dict[str, Summarize] = {
    "uniform": uniform,
    "k-means features": lambda e, m: k_means(e.features, m, e.seed),
    "k-means embeddings": lambda e, m: k_means(e.embeddings, m, e.seed),
    "k-means gradients": lambda e, m: k_means(e.gradients, m, e.seed),
    "k-center features": lambda e, m: k_center(e.features, m, e.seed),
    "k-center embeddings": lambda e, m: k_center(e.embeddings, m, e.seed),
    "k-center gradients": lambda e, m: k_center(e.gradients, m, e.seed),
    "gradient matching": lambda e, m: gradient_matching(e.gradients, m),
    "max entropy": max_entropy,
    "hardest": hardest,
    "iCaRL": herding,
    "FRCL": inducing_points,
}


def summarize(name: str, evidence: Evidence, size: int) -> RowArray:
    """`size` distinct rows by the named baseline, best first."""
    if name not in SUMMARIES:
        raise InvalidInput(f"There is no summary called {name!r}. Known: {', '.join(SUMMARIES)}.")
    if not 1 <= size <= len(evidence.labels):
        raise InvalidInput(f"Asked for {size} of {len(evidence.labels)} rows; give at least 1 and at most all.")
    return SUMMARIES[name](evidence, size)
