"""Features of the diffusion kernel of a similarity graph (the regularized resolvent of Smola and Kondor, 2003).

    S = D^-1/2 A D^-1/2,   K = (I - damping S)^-1,   phi = U (1 - damping Lambda)^-1/2   from   S = U Lambda U^T

K sums random walks of all lengths, each step weighted by `damping`: two items are similar if many short walks connect
them. The N_FEATURES largest eigenvalues are kept, and rows are scaled to length 1. A model that is linear in phi and
trained on a few labeled rows extends their labels over their clusters and little further.

Symbols: A edge weights (m, m), `SimilarityGraph.weights`; D their row sums; U, Lambda eigenvectors and eigenvalues.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import LinearOperator, eigsh

from core.similarity.graph import SimilarityGraph
from core.types import Progress, Report, ignore

DAMPING = 0.99
N_FEATURES = 256
DENSE_ROWS = 600  # up to this size a full decomposition is cheaper than Lanczos
TOLERANCE = 1e-4


def diffusion_features(
    graph: SimilarityGraph, n_features: int = N_FEATURES, damping: float = DAMPING, report: Report = ignore
) -> NDArray[np.float32]:
    """(m, q) rows phi of length 1, one per row of the graph; q is at most `n_features`."""
    return resolvent_features(normalized_adjacency(graph.weights()), n_features, damping, report)


def resolvent_features(
    S: csr_matrix, n_features: int = N_FEATURES, damping: float = DAMPING, report: Report = ignore
) -> NDArray[np.float32]:
    """(m, q) rows phi of length 1 for a normalized adjacency S (m, m), such as that of `core.similarity.spreading`."""
    return resolvent_of(*leading_eigenpairs(S, n_features, report), damping)


def resolvent_of(values: NDArray[np.float64], vectors: NDArray[np.float64], damping: float) -> NDArray[np.float32]:
    """(m, q) rows phi of length 1 from eigenvalues (q,) and eigenvectors (m, q)."""
    phi = vectors / np.sqrt(1.0 - damping * np.minimum(values, 1.0))
    lengths = np.linalg.norm(phi, axis=1, keepdims=True)
    return np.asarray(phi / np.maximum(lengths, 1e-12), np.float32)


def normalized_adjacency(weights: csr_matrix) -> csr_matrix:
    """S (m, m): the symmetrically normalized adjacency of edge weights A (m, m)."""
    roots = diags(1.0 / np.sqrt(np.maximum(np.asarray(weights.sum(1)).ravel(), 1e-300)))
    return csr_matrix(roots @ weights @ roots)


def leading_eigenpairs(
    S: csr_matrix, count: int, report: Report = ignore
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The `count` largest eigenvalues (q,) of a symmetric matrix S (m, m), ascending, and their vectors (m, q)."""
    m = S.shape[0]
    if m <= max(DENSE_ROWS, 2 * count):
        values, vectors = np.linalg.eigh(S.toarray())
        return values[-count:], vectors[:, -count:]

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        report(Progress("select", 0, 1, "label diffusion"))  # may raise Cancelled
        return np.asarray(S @ vector)

    start = np.ones(m) / np.sqrt(m)  # fixed, so that runs are reproducible
    operator = LinearOperator(S.shape, matvec=product, dtype=np.float64)
    values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=TOLERANCE)
    return values, vectors
