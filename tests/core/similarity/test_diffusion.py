"""Diffusion features: the kernel against a dense inverse, Lanczos against all eigenvectors, and clusters."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import Cancelled
from core.similarity import diffusion
from core.similarity.graph import SimilarityGraph
from tests.core.clusters import clusters, graph_of


def test_with_all_features_the_kernel_is_the_inverse():
    graph = graph_of(np.random.default_rng(0).normal(size=(30, 3)))
    A = graph.weights().toarray()
    S = A / np.sqrt(np.outer(A.sum(1), A.sum(1)))
    K = np.linalg.inv(np.eye(30) - 0.9 * S)
    expected = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
    phi = diffusion.diffusion_features(graph, n_features=30, damping=0.9)
    np.testing.assert_allclose(phi @ phi.T, expected, atol=1e-5)


def test_few_features_by_lanczos_are_the_leading_ones_of_all(monkeypatch):
    graph = graph_of(np.random.default_rng(1).normal(size=(120, 2)), k=6)
    whole = diffusion.diffusion_features(graph, n_features=12)
    monkeypatch.setattr(diffusion, "DENSE_ROWS", 10)
    few = diffusion.diffusion_features(graph, n_features=12)
    assert few.shape == (120, 12) and few.dtype == np.float32
    np.testing.assert_allclose(few @ few.T, whole @ whole.T, atol=2e-3)
    np.testing.assert_array_equal(few, diffusion.diffusion_features(graph, n_features=12))


def test_a_cancellation_takes_effect_between_two_products(monkeypatch):
    monkeypatch.setattr(diffusion, "DENSE_ROWS", 10)
    graph = graph_of(np.random.default_rng(1).normal(size=(120, 2)), k=6)
    reported = []
    diffusion.diffusion_features(graph, n_features=12, report=reported.append)
    assert len(reported) > 12 and reported[0].stage == "select"

    def stop(progress):
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        diffusion.diffusion_features(graph, n_features=12, report=stop)


def test_items_of_a_cluster_are_close_and_clusters_are_apart():
    points, which = clusters()
    phi = diffusion.diffusion_features(graph_of(points))
    K = phi @ phi.T
    same = which[:, None] == which[None]
    assert K[same].mean() > 0.7 and np.abs(K[~same]).max() < 0.05


@pytest.mark.parametrize("k", [1, 4])
def test_equal_items_and_pairs_have_finite_features_of_length_one(k):
    graph = SimilarityGraph(
        rows=np.arange(5),
        neighbors=np.stack([np.delete(np.arange(5), i)[:k] for i in range(5)]),
        distances=np.zeros((5, k), np.float32),
        typical=0.0,
    )
    phi = diffusion.diffusion_features(graph)
    np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1.0, atol=1e-5)
