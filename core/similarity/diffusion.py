"""Features of a diffusion kernel: items are close when many short steps over alike items lead from one to the other.

    S = D^-1/2 A D^-1/2,   K = (I - reach S)^-1,   phi = U (1 - reach Lambda)^-1/2   from   S = U Lambda U^T

A the weights of alike items (`SimilarityGraph.weights`), D their sums. K sums walks of all lengths, each step leaving a
share `reach` of the walkers (the resolvent kernel of a graph, Smola and Kondor, 2003). The largest eigenvalues carry
it: the first N_FEATURES are kept, and rows are scaled to the same length. Linear in phi, a model of a few labeled rows
extends their labels over their own crowds and no further.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import LinearOperator, eigsh

from core.similarity.graph import SimilarityGraph
from core.types import Progress, Report, ignore

REACH = 0.99
N_FEATURES = 256
DENSE_ROWS = 600  # up to this many rows all eigenvectors cost less than a few by Lanczos
TOLERANCE = 1e-4


def diffusion_features(
    likeness: SimilarityGraph, n_features: int = N_FEATURES, reach: float = REACH, report: Report = ignore
) -> NDArray[np.float32]:
    """(m, q) of length 1, q at most `n_features`."""
    values, vectors = leading(normalized(likeness.weights()), n_features, report)
    phi = vectors / np.sqrt(1.0 - reach * np.minimum(values, 1.0))
    lengths = np.linalg.norm(phi, axis=1, keepdims=True)
    return (phi / np.maximum(lengths, 1e-12)).astype(np.float32)


def normalized(weights: csr_matrix) -> csr_matrix:
    """S."""
    roots = diags(1.0 / np.sqrt(np.maximum(np.asarray(weights.sum(1)).ravel(), 1e-300)))
    return csr_matrix(roots @ weights @ roots)


def leading(S: csr_matrix, count: int, report: Report = ignore) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The `count` largest eigenvalues (q,) of a symmetric matrix and their vectors (m, q)."""
    m = S.shape[0]
    if m <= max(DENSE_ROWS, 2 * count):
        values, vectors = np.linalg.eigh(S.toarray())
        return values[-count:], vectors[:, -count:]

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        report(Progress("select", 0, 1, "label diffusion"))  # whoever cancels is heard between products
        return np.asarray(S @ vector)

    start = np.ones(m) / np.sqrt(m)  # fixed, so that runs repeat
    operator = LinearOperator(S.shape, matvec=product, dtype=np.float64)
    values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=TOLERANCE)
    return values, vectors
