"""The map: it keeps neighborhoods, is reproducible, and is stable from one round to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from sklearn.manifold import trustworthiness
from sklearn.neighbors import NearestNeighbors

from core.config import MapConfig
from core.errors import Cancelled
from core.rounds.embedding_map import MapRequest, PreviousMap, embed, rows_to_lay_out
from core.similarity.neighbors import nearest, neighbor_graph
from core.types import Progress

CONFIG = MapConfig(n_neighbors=10)


def clusters(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(5, 12)) * 4
    labels = generator.integers(5, size=n)
    return (centers[labels] + generator.normal(size=(n, 12))).astype(np.float32), labels


def request(vectors: np.ndarray, **kwargs) -> MapRequest:
    return MapRequest(item_ids=np.arange(len(vectors)) + 100, vectors=vectors, **kwargs)


def test_neighbors_are_those_of_scikit_learn_even_far_from_the_origin():
    vectors, _ = clusters(300)
    far = vectors + 1000.0
    indices, distances = nearest(far, far, 8)
    expected_distances, expected = NearestNeighbors(n_neighbors=8).fit(far.astype(np.float64)).kneighbors()
    assert (indices[:, 0] == np.arange(300)).mean() > 0.99  # itself first
    assert np.mean([len(set(a[1:]) & set(b)) / 7 for a, b in zip(indices, expected, strict=True)]) > 0.99
    np.testing.assert_allclose(distances[:, 1], expected_distances[:, 0], rtol=1e-2)


def test_the_graph_is_the_one_umap_builds():
    """Weights of umap-learn 0.5.12's `fuzzy_simplicial_set` on 60 points with duplicates, eight neighbors each."""
    golden = np.load(Path(__file__).parent.parent.parent / "golden" / "umap_graph.npz")
    expected = coo_matrix((golden["weight"], (golden["row"], golden["col"])), shape=(60, 60))
    assert abs(neighbor_graph(golden["indices"], golden["distances"]) - expected).max() < 1e-4


@pytest.mark.slow
def test_the_map_keeps_neighborhoods_and_repeats_exactly():
    vectors, _ = clusters()
    points = embed(request(vectors), CONFIG, seed=3)
    assert points.shape == (400, 2) and np.isfinite(points).all()
    assert trustworthiness(vectors, points, n_neighbors=10) > 0.9
    np.testing.assert_array_equal(points, embed(request(vectors), CONFIG, seed=3))


@pytest.mark.slow
def test_points_do_not_jump_from_one_round_to_the_next():
    vectors, _ = clusters()
    first = embed(request(vectors), CONFIG, seed=3)
    moved = vectors @ np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]  # the network changed its axes
    moved = (moved + 0.2 * np.random.default_rng(2).normal(size=moved.shape)).astype(np.float32)
    previous = PreviousMap(item_ids=np.arange(390) + 100, points=first[:390])
    steady = embed(request(moved, previous=previous), CONFIG, seed=4)
    fresh = embed(request(moved), CONFIG, seed=4)
    step = np.median(np.linalg.norm(steady[:390] - first[:390], axis=1))
    assert step < 0.05 * np.ptp(first, axis=0).max()
    assert step < 0.2 * np.median(np.linalg.norm(fresh - first, axis=1))
    assert trustworthiness(moved, steady, n_neighbors=10) > 0.9
    assert np.isfinite(steady).all()  # the ten new items are placed among their neighbors


@pytest.mark.slow
def test_a_large_pool_is_sampled_labeled_rows_first_and_the_rest_is_placed_beside_its_neighbors():
    vectors, _ = clusters(600)
    keep = np.zeros(600, bool)
    keep[:50] = True
    config = MapConfig(n_neighbors=10, max_points=200)
    assert set(range(50)) <= set(rows_to_lay_out(600, 200, 3, keep))
    points = embed(request(vectors, keep=keep), config, seed=3)
    assert np.isfinite(points).all()
    assert trustworthiness(vectors, points, n_neighbors=10) > 0.85


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_tiny_pool_has_a_map(n):
    """No points, one, two and five."""
    points = embed(request(clusters(5)[0][:n]), CONFIG, seed=0)
    assert points.shape == (n, 2) and np.isfinite(points).all()


@pytest.mark.slow  # in a fresh environment umap compiles its layout
def test_identical_items_have_a_map():
    """Rank one."""
    assert np.isfinite(embed(request(np.ones((40, 3), np.float32)), CONFIG, seed=0)).all()


@pytest.mark.slow  # in a fresh environment umap compiles its layout
def test_the_layout_can_be_cancelled_between_epochs():
    """`report` raises during the layout, and the exception passes through."""
    vectors, _ = clusters(3000)
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        seen.append(progress)
        if progress.note == "laying out" and progress.done > 0:
            raise Cancelled("stop")

    with pytest.raises(Cancelled):
        embed(request(vectors), MapConfig(), seed=0, report=report)
    assert 0 < seen[-1].done < seen[-1].total
