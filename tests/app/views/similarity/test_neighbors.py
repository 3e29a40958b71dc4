"""The nearest labeled items: exact on small pools, nearly always exact on large ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from app.views.predictions import newest_predictions
from app.views.similarity import neighbors
from app.views.similarity.neighbors import CANDIDATES, NeighborIndex, _smallest, nearest_labeled
from storage.projects.projects import get_project
from tests.app.finished_rounds import finish_round
from tests.storage.pools import make_pool


def exact(embeddings: NDArray[np.float32], labeled: NDArray[np.bool_], row: int, limit: int) -> list[int]:
    """The reference: all distances, sorted."""
    rows = np.flatnonzero(labeled)
    rows = rows[rows != row]
    distances = np.linalg.norm(embeddings[rows] - embeddings[row], axis=1)
    return [int(one) for one in rows[np.lexsort((rows, distances))][:limit]]


@pytest.mark.parametrize(("n", "e", "share"), [(60, 3, 0.5), (150, 64, 0.9), (3_000, 12, 0.5), (40, 8, 0.0)])
def test_the_result_is_exact_on_small_pools(n, e, share):
    rng = np.random.default_rng(n)
    embeddings = rng.normal(size=(n, e)).astype(np.float32)
    labeled = rng.random(n) < share
    index = NeighborIndex(embeddings)
    index.set_labeled(labeled)
    rows = np.arange(min(n, 40))
    found = index.nearest(rows, 3)
    assert [one.tolist() for one in found] == [exact(embeddings, labeled, row, 3) for row in rows.tolist()]


@pytest.mark.slow
def test_large_pools_have_a_recall_of_at_least_95_percent():
    """Embeddings like those of a classifier: classes, a few directions within them, and noise."""
    rng = np.random.default_rng(0)
    n, e = 40_000, 128
    centers, mixing = rng.normal(size=(10, e)) * 2, rng.normal(size=(24, e)) / 2
    embeddings = centers[rng.integers(0, 10, n)] + rng.normal(size=(n, 24)) @ mixing + rng.normal(size=(n, e)) * 0.2
    embeddings = embeddings.astype(np.float32)
    labeled = rng.random(n) < 0.5
    index = NeighborIndex(embeddings)
    index.set_labeled(labeled)
    assert index._reduced.shape[1] < e and labeled.sum() > 50 * CANDIDATES, "neither is this the exact search"
    rows = rng.choice(n, 100, replace=False)
    found = index.nearest(rows, 3)
    meant = [exact(embeddings, labeled, int(row), 3) for row in rows]
    hits = sum(len(set(one.tolist()) & set(best)) for one, best in zip(found, meant, strict=True))
    assert hits / (3 * len(rows)) >= 0.95


def test_embeddings_that_are_read_in_parts_give_the_same_answer(monkeypatch):
    embeddings = np.random.default_rng(4).normal(size=(900, 6)).astype(np.float32)
    labeled = np.arange(900) % 2 == 0
    monkeypatch.setattr(neighbors, "READ_AROUND", 1_000)
    monkeypatch.setattr(neighbors, "MOST_HELD", 7_000)  # seven rows at a time
    index = NeighborIndex(embeddings)
    index.set_labeled(labeled)
    found = [one.tolist() for one in index.nearest(np.arange(20), 3)]
    assert found == [exact(embeddings, labeled, row, 3) for row in range(20)]


def test_an_updated_index_returns_what_a_new_one_returns():
    rng = np.random.default_rng(1)
    embeddings = rng.normal(size=(500, 6)).astype(np.float32)
    index = NeighborIndex(embeddings)
    for _ in range(12):
        labeled = rng.random(500) < rng.random()
        index.set_labeled(labeled)
        rows = rng.choice(500, 20, replace=False)
        found = [one.tolist() for one in index.nearest(rows, 4)]
        assert found == [exact(embeddings, labeled, int(row), 4) for row in rows]


def test_the_smallest_values_are_found_through_the_minima_of_blocks():
    values = np.random.default_rng(2).normal(size=(5, 32 * 400)).astype(np.float32)
    for row, found in zip(values, _smallest(values, 200), strict=True):
        assert set(found.tolist()) == set(np.argsort(row)[:200].tolist())


def test_labels_of_a_project_give_the_neighbors_of_its_items(sqlite_store):
    made = make_pool(sqlite_store, 12)
    finish_round(sqlite_store, get_project(sqlite_store, made.project_id), [0])
    found = newest_predictions(sqlite_store, made.project_id)
    assert found is not None
    assert nearest_labeled(sqlite_store, found, made.items[:2]) == {made.items[0]: [], made.items[1]: []}
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    made.pool.label(made.items[9], made.classes[2], annotator=made.ann)
    near = nearest_labeled(sqlite_store, found, [made.items[0], made.items[8]])
    assert [(one.item_id, one.class_id) for one in near[made.items[0]]] == [(made.items[9], made.classes[2])]
    assert {one.item_id for one in near[made.items[8]]} == {made.items[0], made.items[9]}
    mine = {made.items[9]: made.classes[0]}
    blind = nearest_labeled(sqlite_store, found, [made.items[8]], labels=mine, audience=made.bob)
    assert [(one.item_id, one.class_id) for one in blind[made.items[8]]] == [(made.items[9], made.classes[0])]
    made.pool.undo(annotator=made.ann)
    again = nearest_labeled(sqlite_store, found, [made.items[8]])
    assert [one.item_id for one in again[made.items[8]]] == [made.items[0]]
