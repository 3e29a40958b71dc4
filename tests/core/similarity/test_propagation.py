"""Label propagation: against a dense solve and by hand, and what it corrects and leaves unchanged."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from core.similarity import propagation
from core.similarity.graph import NewItems, SimilarityGraph
from core.types import UNLABELED
from tests.core.clusters import clusters, graph_of


def some_predictions(n: int, n_classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(n_classes), n)


def test_propagated_predictions_solve_the_linear_system():
    graph = graph_of(np.random.default_rng(0).normal(size=(40, 3)))
    walk = propagation.transition_matrix(graph, 0.7)
    P, labels = some_predictions(40, 3), np.full(40, UNLABELED)
    labels[[3, 11, 25]] = [0, 2, 1]
    T, given, own = walk.toarray(), labels != UNLABELED, np.eye(3)[[0, 2, 1]]
    stay = (1 - T.sum(1))[~given, None] * P[~given]
    exact = np.linalg.solve(np.eye(37) - T[~given][:, ~given], T[~given][:, given] @ own + stay)
    found = propagation.propagated(walk, P, labels)
    np.testing.assert_allclose(found[~given], exact, atol=2e-3)  # TOLERANCE bounds the last change, not the rest of it
    np.testing.assert_array_equal(found[given], own)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-9)


def test_steps_are_weights_and_the_chance_to_arrive():
    graph = graph_of(np.random.default_rng(1).normal(size=(15, 2)), k=3)
    A, far = graph.weights().toarray(), graph.relative_distances().toarray()
    expected = A / A.sum(1, keepdims=True) * np.where(A > 0, np.exp(-((far / 0.5) ** 4)), 0)
    np.testing.assert_allclose(propagation.transition_matrix(graph, 0.5).toarray(), expected, atol=1e-12)


def test_on_a_chain_of_three_the_predictions_are_those_by_hand():
    chain = SimilarityGraph(  # 0 - 1 - 2, with 0 labeled; every step arrives with probability a
        rows=np.arange(3),
        neighbors=np.array([[1], [0], [1]]),
        distances=np.ones((3, 1), np.float32),
        typical=2.0,
    )
    a = np.exp(-((0.5 / 0.7) ** 4))
    P = np.array([[0.5, 0.5], [0.8, 0.2], [0.6, 0.4]])
    found = propagation.propagated(propagation.transition_matrix(chain, 0.7), P, np.array([1, UNLABELED, UNLABELED]))
    # Q1 = a/2 (1 + Q2) + (1 - a) P1,  Q2 = a Q1 + (1 - a) P2,  of the second class
    middle = (a / 2 + (1 - a) * 0.2 + a / 2 * (1 - a) * 0.4) / (1 - a * a / 2)
    np.testing.assert_allclose(found[:, 1], [1.0, middle, a * middle + (1 - a) * 0.4], atol=1e-3)


def test_a_wrong_prediction_in_a_cluster_is_corrected_and_a_label_changes_its_whole_cluster():
    points, which = clusters()
    P = np.full((60, 5), 0.05)
    P[np.arange(60), which] = 0.8
    P[7] = [0.1, 0.6, 0.1, 0.1, 0.1]  # one wrong prediction in cluster 0
    P[which == 4] = [0.05, 0.05, 0.05, 0.5, 0.35]  # a cluster that the model takes for another
    labels = np.full(60, UNLABELED)
    found = propagation.propagate_labels(graph_of(points), P.astype(np.float32), labels, 0.7)
    assert found[7].argmax() == 0 and (found[which == 4].argmax(1) == 3).all()
    labels[50] = 4
    found = propagation.propagate_labels(graph_of(points), P.astype(np.float32), labels, 0.7)
    assert (found.argmax(1) == which).all() and found.dtype == np.float32


def test_isolated_items_and_items_outside_the_graph_keep_their_predictions():
    points = 10 * np.eye(6, dtype=np.float64)  # all as far from each other as is typical
    P = some_predictions(8, 3, 2).astype(np.float32)
    labels = np.full(8, UNLABELED)
    labels[0] = 2
    alone = graph_of(points, k=3, rows=np.array([0, 1, 2, 4, 5, 7]))
    found = propagation.propagate_labels(alone, P, labels, 0.7)
    np.testing.assert_array_equal(found[[3, 6]], P[[3, 6]])
    np.testing.assert_allclose(found[[1, 2, 4, 5, 7]], P[[1, 2, 4, 5, 7]], atol=0.02)
    np.testing.assert_array_equal(found[0], [0, 0, 1])


def test_equal_items_without_a_label_get_the_same_prediction():
    same = SimilarityGraph(
        rows=np.arange(3),
        neighbors=np.array([[1, 2], [0, 2], [0, 1]]),
        distances=np.zeros((3, 2), np.float32),
        typical=0.0,
    )
    P = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    found = propagation.propagated(propagation.transition_matrix(same, 0.7), P, np.full(3, UNLABELED))
    np.testing.assert_allclose(found, np.tile(P.mean(0), (3, 1)), atol=1e-3)


class CountedSteps:
    """A transition matrix that counts its products."""

    def __init__(self, matrix: csr_matrix) -> None:
        self.matrix, self.steps = matrix, 0

    def sum(self, axis: int) -> np.ndarray:
        return self.matrix.sum(axis)

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        self.steps += 1
        return self.matrix @ other


def test_the_iteration_stops_when_predictions_no_longer_change():
    never = CountedSteps(csr_matrix((4, 4)))  # every walk stops where it starts
    P = some_predictions(4, 2)
    np.testing.assert_array_equal(propagation.propagated(never, P, np.full(4, UNLABELED)), P)
    assert never.steps == 1
    graph = graph_of(np.random.default_rng(0).normal(size=(40, 3)))
    walk = CountedSteps(propagation.transition_matrix(graph, 0.7))
    labels = np.full(40, UNLABELED)
    labels[0] = 1
    propagation.propagated(walk, some_predictions(40, 3), labels)
    assert 1 < walk.steps < 200


def test_propagated_predictions_sum_to_one_whatever_the_model_gives():
    points, _ = clusters()
    P = some_predictions(60, 5, 3)
    labels = np.full(60, UNLABELED)
    labels[:3] = [0, 1, 2]
    right = propagation.propagate_labels(graph_of(points), P.astype(np.float32), labels, 0.7)
    labels[:3] = UNLABELED
    halved = propagation.propagate_labels(graph_of(points), (P / 2).astype(np.float32), labels, 0.7)
    np.testing.assert_allclose(right.sum(1), 1.0, atol=1e-6)
    np.testing.assert_allclose(halved.sum(1), 1.0, atol=1e-6)


def test_a_new_item_takes_one_step_to_the_graph_and_keeps_its_own_prediction_otherwise():
    """By hand: two neighbors at distances 1 and 2, local scales 2 (its own), 1 and 3; typical distance 2."""
    graph = SimilarityGraph(
        rows=np.array([4, 5, 6]),
        neighbors=np.array([[1, 2], [0, 2], [0, 1]]),
        distances=np.array([[0.5, 1.0], [0.5, 3.0], [1.0, 3.0]], np.float32),
        typical=2.0,
    )
    new = NewItems(rows=np.array([9]), neighbors=np.array([[0, 1]]), distances=np.array([[1.0, 2.0]], np.float32))
    own = np.array([[0.9, 0.1]], np.float32)
    Q = np.array([[0.0, 1.0], [0.3, 0.7], [0.5, 0.5]])
    near, far = np.exp(-1.0 / (2 * 1)), np.exp(-4.0 / (2 * 3))
    to_near = near / (near + far) * np.exp(-((0.5 / 0.7) ** 4))
    to_far = far / (near + far) * np.exp(-((1.0 / 0.7) ** 4))
    expected = to_near * 1.0 + to_far * 0.7 + (1 - to_near - to_far) * 0.1
    found = propagation.extended(graph, new, own, Q, 0.7)
    np.testing.assert_allclose(found, [[1 - expected, expected]], atol=1e-6)


def test_an_item_left_out_of_the_graph_gets_the_label_of_its_cluster():
    points, which = clusters()
    inside, outside = np.arange(60) % 4 != 0, np.arange(60) % 4 == 0
    rows = np.flatnonzero(inside)
    graph = graph_of(points[inside], rows=rows)
    labels = np.full(60, UNLABELED)
    first = [int(np.flatnonzero(inside & (which == c))[0]) for c in range(5)]
    labels[first] = np.arange(5)
    P = np.full((60, 5), 0.2, np.float32)
    after = propagation.propagate_labels(graph, P, labels, 0.7)
    np.testing.assert_array_equal(after[outside], P[outside])
    gaps = np.linalg.norm(points[outside][:, None] - points[inside][None], axis=2)
    order = np.argsort(gaps, axis=1)[:, : graph.neighbors.shape[1]]
    new = NewItems(
        rows=np.flatnonzero(outside),
        neighbors=order,
        distances=np.take_along_axis(gaps, order, 1).astype(np.float32),
    )
    found = propagation.extended(graph, new, P[outside], after[rows], 0.7)
    assert (found.argmax(1) == which[outside]).all()
