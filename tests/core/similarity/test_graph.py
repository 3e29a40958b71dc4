"""The similarity graph: weights by hand, which items are in it, and pools without a graph."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from core.config import SimilarityConfig
from core.errors import InvalidInput
from core.similarity import graph as module
from core.similarity.graph import SimilarityGraph, build_similarity_graph, connect_new_items, graph_rows
from core.types import UNLABELED
from tests.core.learning.pools import clip_pool, picture_pool, some_labels

NO_TEST = np.zeros(24, np.bool_)
SOME = SimilarityConfig(neighbors=4)


def test_weights_are_those_by_hand_and_symmetric():
    found = SimilarityGraph(  # 0 and 1 are each other's nearest; 2 is the nearest of none, and its nearest is 1
        rows=np.arange(3),
        neighbors=np.array([[1], [0], [1]]),
        distances=np.array([[2.0], [2.0], [3.0]], np.float32),
        typical=4.0,
    )
    near, far = np.exp(-1.0), np.exp(-9 / 6)
    expected = [[0, near, 0], [near, 0, far], [0, far, 0]]
    np.testing.assert_allclose(found.weights().toarray(), expected, rtol=1e-6)
    np.testing.assert_allclose(found.relative_distances().toarray(), [[0, 0.5, 0], [0.5, 0, 0.75], [0, 0.75, 0]])


def test_equal_items_have_weight_one_and_keep_their_entries():
    found = SimilarityGraph(
        rows=np.arange(3),
        neighbors=np.array([[1, 2], [0, 2], [0, 1]]),
        distances=np.zeros((3, 2), np.float32),
        typical=0.0,
    )
    np.testing.assert_allclose(found.weights().toarray(), 1 - np.eye(3))
    assert found.relative_distances().nnz == 6  # a distance of 0 is not a missing one


def test_clips_of_the_same_tone_are_neighbors_and_closer_than_typical():
    inputs, classes = clip_pool()
    found = build_similarity_graph(inputs, some_labels(classes, 1), NO_TEST, SOME)
    assert found is not None and found.neighbors.shape == (24, 4)
    assert (classes[found.neighbors] == classes[:, None]).mean() > 0.9
    assert np.median(found.distances[:, 0]) < found.typical


def test_pictures_no_neighbors_single_and_unreadable_clips_have_no_similar_items():
    clips, classes = clip_pool()
    labels = some_labels(classes, 1)
    pictures, kinds = picture_pool()
    assert build_similarity_graph(pictures, some_labels(kinds, 1), np.zeros(len(kinds), np.bool_), SOME) is None
    assert build_similarity_graph(clips, labels, NO_TEST, SimilarityConfig()) is None
    one = dataclasses.replace(clips, readable=np.arange(24) == 3)
    assert build_similarity_graph(one, labels, NO_TEST, SOME) is None
    most = dataclasses.replace(clips, readable=np.arange(24) != 3)
    found = build_similarity_graph(most, labels, NO_TEST, SOME)
    assert found is not None and found.rows.tolist() == [row for row in range(24) if row != 3]


def test_the_graph_of_a_large_pool_has_the_labeled_items_and_evenly_spaced_others(monkeypatch):
    monkeypatch.setattr(module, "MAX_ITEMS", 12)
    labels = np.full(100, UNLABELED)
    labels[[7, 50, 93]] = 0
    rows = graph_rows(np.arange(2, 100), labels)
    assert len(rows) == len(set(rows)) == 12 and {7, 50, 93} <= set(rows)
    assert (np.diff(rows) > 0).all() and rows[0] == 2 and rows[-1] == 99
    labels[:40] = 1
    assert len(graph_rows(np.arange(100), labels)) == 12


@pytest.mark.parametrize("change", [{"neighbors": -1}, {"neighbors": 101}, {"reach": 0.0}, {"reach": 2.5}])
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(InvalidInput, match=r"similar|reach"):
        SimilarityConfig(**change)


def test_test_items_are_in_neither_the_graph_nor_its_typical_distance():
    """The graph of a pool with test items is the graph of the same pool without them."""
    inputs, classes = clip_pool()
    labels, held_out = some_labels(classes, 1), np.arange(24) >= 18
    found = build_similarity_graph(inputs, labels, held_out, SOME)
    alone = build_similarity_graph(dataclasses.replace(inputs, readable=~held_out), labels, NO_TEST, SOME)
    assert found is not None and alone is not None
    assert found.rows.tolist() == list(range(18)) and found.typical == alone.typical
    np.testing.assert_array_equal(found.distances, alone.distances)
    np.testing.assert_array_equal(found.neighbors, alone.neighbors)


def test_a_new_item_is_connected_to_the_clips_that_sound_like_it():
    inputs, classes = clip_pool()
    held_out = np.arange(24) >= 18
    graph = build_similarity_graph(inputs, np.full(24, -1), held_out, SOME)
    assert graph is not None
    readable = dataclasses.replace(inputs, readable=np.arange(24) != 20)
    new = connect_new_items(readable, graph, held_out)
    assert new.rows.tolist() == [18, 19, 21, 22, 23] and new.neighbors.shape == (5, 4)
    assert (classes[graph.rows[new.neighbors]] == classes[new.rows][:, None]).mean() > 0.9
    assert (np.diff(new.distances, axis=1) >= 0).all()
    none = connect_new_items(inputs, graph, NO_TEST)
    assert none.neighbors.shape == (0, 4)
