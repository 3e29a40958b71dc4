"""Label spreading over the nearest neighbors of feature vectors (Zhou et al., 2004; Iscen et al., 2019).

    A_ij = max(0, x_i . x_j)^3   if j is among the k nearest rows of i, or i among those of j;   0 otherwise
    S    = D^-1/2 A D^-1/2,   D = diag(A 1)
    F    = (I - alpha S)^-1 Y

Symbols: x rows of length 1 (n, r); Y one column per class (n, C), in which the labeled rows have equal shares of their
class, or shares in proportion to their trust; alpha the share of mass that moves on at each step.

Departures and details
- Class mass normalization (Zhu et al., 2003): each column of F is divided by its sum before rows are normalized, so
  a class whose labels lie in a dense region does not absorb the others.
- I - alpha S is symmetric positive definite with condition (1 + alpha) / (1 - alpha), so conjugate gradients replace
  the inverse. All columns share the loop; each has its own step length.
- A row that no label reaches has no mass; its distribution is uniform, and `certainty` gives it weight 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags

from core.types import UNLABELED

BLOCK = 1_024
EDGE_POWER = 3
TOLERANCE, MAX_STEPS = 1e-6, 300

Rows = NDArray[np.float64]


def neighbor_affinity(x: NDArray[np.floating], k: int) -> csr_matrix:
    """S (n, n) of rows x (n, r) of length 1, with k neighbors per row."""
    n = len(x)
    k = min(k, n - 1)
    if k < 1:
        return csr_matrix((n, n))
    vectors = np.asarray(x, np.float32)
    columns, values = np.empty((n, k), np.int64), np.empty((n, k))
    for start in range(0, n, BLOCK):
        near = vectors[start : start + BLOCK] @ vectors.T
        inside = np.arange(len(near))
        near[inside, start + inside] = -np.inf
        found = np.argpartition(-near, k - 1, axis=1)[:, :k]
        columns[start : start + BLOCK] = found
        values[start : start + BLOCK] = np.take_along_axis(near, found, 1)
    values = np.maximum(values, 0.0) ** EDGE_POWER
    one_way = csr_matrix((values.ravel(), (np.repeat(np.arange(n), k), columns.ravel())), shape=(n, n))
    A = one_way.maximum(one_way.T)
    degree = np.asarray(A.sum(1)).ravel()
    scale = diags(1.0 / np.sqrt(np.maximum(degree, 1e-12)))
    return csr_matrix(scale @ A @ scale)


def solve_spreading(S: csr_matrix, Y: Rows, alpha: float) -> Rows:
    """F (n, C) with (I - alpha S) F = Y, by conjugate gradients on all columns to a relative residual of TOLERANCE."""
    F, residual = np.zeros_like(Y), Y.copy()
    direction, rho = residual.copy(), np.square(residual).sum(0)
    goal = TOLERANCE**2 * np.maximum(rho, 1e-300)
    for _ in range(MAX_STEPS):
        if (rho <= goal).all():
            break
        image = direction - alpha * (S @ direction)
        curvature = (direction * image).sum(0)
        length = np.divide(rho, curvature, out=np.zeros_like(rho), where=curvature > 0)
        F += length * direction
        residual -= length * image
        rho_next = np.square(residual).sum(0)
        direction = residual + np.divide(rho_next, rho, out=np.zeros_like(rho), where=rho > 0) * direction
        rho = rho_next
    return F


def spread_labels(
    S: csr_matrix,
    labels: NDArray[np.int64],
    n_classes: int,
    alpha: float,
    trust: NDArray[np.floating] | None = None,
) -> Rows:
    """(n, C) distributions over classes: the given label on labeled rows, spread labels elsewhere.

    `labels` (n,) are class positions, UNLABELED where there is none. With `trust` (n,), a label has this share of the
    mass of a fully trusted one.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    given = labels[labeled]
    mass = np.ones(len(labeled)) if trust is None else np.asarray(trust, np.float64)[labeled]
    counts = np.bincount(given, mass, minlength=n_classes)
    Y = np.zeros((len(labels), n_classes))
    Y[labeled, given] = mass / counts[given]
    F = np.maximum(solve_spreading(S, Y, alpha), 0.0)
    F /= np.maximum(F.sum(0), 1e-300)
    reached = F.sum(1, keepdims=True)
    spread: Rows = np.where(reached > 0, F / np.maximum(reached, 1e-300), 1.0 / n_classes)
    spread[labeled] = np.eye(n_classes)[given]
    return spread


def certainty(P: Rows) -> Rows:
    """(n,) 1 - entropy / log(C) of distributions P (n, C): 1 for one class, 0 for equal shares."""
    if P.shape[1] < 2:
        return np.ones(len(P))
    entropy = -(P * np.log(np.maximum(P, 1e-300))).sum(1)
    return np.asarray(np.clip(1.0 - entropy / np.log(P.shape[1]), 0.0, 1.0))
