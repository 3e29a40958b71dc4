"""Label spreading against dense linear algebra."""

from __future__ import annotations

import numpy as np

from core.similarity.spreading import certainty, neighbor_affinity, solve_spreading, spread_labels
from core.types import UNLABELED


def unit_rows(n: int = 40, r: int = 5, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, r))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def dense_affinity(x: np.ndarray, k: int) -> np.ndarray:
    """S by loops over pairs."""
    n = len(x)
    near = x @ x.T
    A = np.zeros((n, n))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for j in sorted(others, key=lambda j: -near[i, j])[:k]:
            A[i, j] = A[j, i] = max(near[i, j], 0.0) ** 3
    degree = np.maximum(A.sum(1), 1e-12)
    return A / np.sqrt(np.outer(degree, degree))


def test_the_affinity_equals_the_one_built_pair_by_pair():
    x = unit_rows()
    np.testing.assert_allclose(neighbor_affinity(x, 4).toarray(), dense_affinity(x, 4), atol=1e-6)


def test_conjugate_gradients_equal_the_dense_inverse():
    S = neighbor_affinity(unit_rows(), 4)
    Y = np.random.default_rng(1).random((40, 3))
    dense = np.linalg.solve(np.eye(40) - 0.95 * S.toarray(), Y)
    np.testing.assert_allclose(solve_spreading(S, Y, 0.95), dense, rtol=1e-4, atol=1e-5)


def test_each_cluster_gets_the_label_that_is_in_it():
    rng = np.random.default_rng(2)
    clusters = np.repeat(np.arange(3), 30)
    x = np.eye(3, 6)[clusters] + 0.15 * rng.normal(size=(90, 6))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = np.full(90, UNLABELED)
    labels[[0, 31, 32, 33, 60]] = [2, 1, 1, 1, 0]
    spread = spread_labels(neighbor_affinity(x, 8), labels, 3, 0.95)
    np.testing.assert_array_equal(spread.argmax(1), np.array([2, 1, 0])[clusters])
    np.testing.assert_allclose(spread.sum(1), 1.0)
    assert spread[0].tolist() == [0.0, 0.0, 1.0]


def test_rows_that_no_label_reaches_are_uniform_and_have_no_certainty():
    x = np.concatenate([np.tile([1.0, 0.0], (6, 1)), np.tile([0.0, 1.0], (6, 1))])
    labels = np.full(12, UNLABELED)
    labels[0] = 1
    spread = spread_labels(neighbor_affinity(x, 3), labels, 2, 0.95)
    assert (spread[:6].argmax(1) == 1).all()
    np.testing.assert_allclose(spread[6:], 0.5)
    np.testing.assert_allclose(certainty(spread)[6:], 0.0, atol=1e-12)


def test_one_item_has_no_neighbors():
    assert neighbor_affinity(np.ones((1, 3)), 10).shape == (1, 1)
