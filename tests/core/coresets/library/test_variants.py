"""Unweighted constructions, compared with each other, and joint problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from core.coresets.library.joint import JointProblem, alternate
from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.variants import eliminate, exchange, forward
from core.errors import InvalidInput


def blobs(n=60, seed=0, classes=3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centers = 2.5 * torch.randn(classes, 4, generator=generator, dtype=torch.float64)
    return centers[labels] + torch.randn(n, 4, generator=generator, dtype=torch.float64), labels


def problem_on(features, labels, **settings):
    values = {"penalty": 0.05, "mean": True, **settings}
    return SoftmaxProblem(features=with_bias(features), targets=one_hot(labels, int(labels.max()) + 1), **values)


@pytest.fixture
def problem():
    return problem_on(*blobs())


def outer_of(problem, rows):
    weights = torch.zeros(problem.n_rows, dtype=torch.float64)
    weights[torch.as_tensor(rows)] = 1.0
    return problem.outer(problem.solve(weights).parameters)


def test_forward_adds_the_most_influential_row_each_time(problem):
    found = forward(problem, 6, start=[0])
    for size in range(1, 6):
        weights = torch.zeros(60, dtype=torch.float64)
        weights[found.rows[:size]] = 1.0
        scores = problem.influence(problem.solve(weights).parameters, weights).scores
        scores[found.rows[:size]] = -torch.inf
        assert int(scores.argmax()) == int(found.rows[size])
    assert found.outer[6] == pytest.approx(outer_of(problem, found.rows), rel=1e-5)


def test_one_by_one_is_no_worse_than_batches_at_small_sizes_and_both_beat_uniform(problem):
    one, batches = forward(problem, 12, start=[0]), forward(problem, 12, start=[0], batch=11)
    uniform = [outer_of(problem, np.random.default_rng(s).permutation(60)[:12]) for s in range(20)]
    assert one.outer[12] <= batches.outer[12]
    assert one.outer[12] < min(uniform)
    assert set(batches.outer) == {1, 12}


def test_exchange_never_ends_above_its_start_and_keeps_the_size(problem):
    start = np.random.default_rng(5).permutation(60)[:12].tolist()
    found = exchange(problem, start=start, batch=6)
    assert len(set(found.rows.tolist())) == 12
    assert found.outer[12] < outer_of(problem, start)
    assert found.outer[12] == pytest.approx(outer_of(problem, found.rows), rel=1e-5)


def test_elimination_removes_the_least_influential_rows_and_its_order_is_nested(problem):
    found = eliminate(problem, 20, batch=10)
    assert sorted(found.rows.tolist()) == list(range(60))
    everything = torch.ones(60, dtype=torch.float64)
    scores = problem.influence(problem.solve(everything).parameters, everything).scores
    assert set(found.rows[-10:].tolist()) == set(scores.argsort()[:10].tolist())
    for size in (20, 30, 50):
        assert found.outer[size] == pytest.approx(outer_of(problem, found.rows[:size]), rel=1e-4)


def test_impossible_sizes_are_refused(problem):
    with pytest.raises(InvalidInput, match="61 of 60"):
        forward(problem, 61, start=[0])
    with pytest.raises(InvalidInput, match="start row"):
        forward(problem, 3, start=[])


def test_a_joint_problem_is_the_sum_of_its_parts(problem):
    features, labels = blobs()
    other = problem_on(torch.tanh(features), labels)
    joint = JointProblem([problem, other], shares=[1.0, 2.0])
    weights = torch.zeros(60, dtype=torch.float64)
    weights[:9] = 1.0
    inner = joint.solve(weights)
    first, second = problem.solve(weights).parameters, other.solve(weights).parameters
    assert joint.outer(inner.parameters) == pytest.approx(problem.outer(first) + 2 * other.outer(second))
    expected = problem.influence(first, weights).scores + 2 * other.influence(second, weights).scores
    torch.testing.assert_close(joint.influence(inner.parameters, weights).scores, expected)
    with pytest.raises(InvalidInput, match="same rows"):
        JointProblem([problem, problem_on(*blobs(n=30))])


def test_alternating_selection_uses_the_models_in_turn(problem):
    features, labels = blobs()
    other = problem_on(torch.tanh(features), labels)
    found = alternate([problem, other], 4, start=[0])
    rows = [0]
    for k, which in zip(range(3), itertools.cycle([problem, other]), strict=False):
        weights = torch.zeros(60, dtype=torch.float64)
        weights[rows] = 1.0
        scores = which.influence(which.solve(weights).parameters, weights).scores
        scores[rows] = -torch.inf
        rows.append(int(scores.argmax()))
        assert int(found.rows[k + 1]) == rows[-1]


def test_a_joint_coreset_serves_both_models_better_than_the_other_models_coreset():
    """Two models that use different halves of the features: a coreset for one ignores the features of the other."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(80) % 4
    left = (labels // 2)[:, None] * 3.0 + torch.randn(80, 3, generator=generator, dtype=torch.float64)
    right = (labels % 2)[:, None] * 3.0 + torch.randn(80, 3, generator=generator, dtype=torch.float64)
    one, two = problem_on(left, labels), problem_on(right, labels)
    joint = forward(JointProblem([one, two]), 12, start=[0]).rows
    alone = [forward(p, 12, start=[0]).rows for p in (one, two)]
    worst_joint = max(outer_of(one, joint), outer_of(two, joint))
    assert worst_joint < outer_of(two, alone[0])
    assert worst_joint < outer_of(one, alone[1])


def test_exchange_as_printed_accepts_every_exchange(problem):
    start = list(range(6))
    found = exchange(problem, start=start, batch=2, rounds=3, accept="every")
    rows = torch.tensor(start)
    for _ in range(3):
        weights = torch.zeros(60, dtype=torch.float64)
        weights[rows] = 1.0
        scores = problem.influence(problem.solve(weights).parameters, weights).scores
        stay = rows[scores[rows].argsort(descending=True)][:4]
        scores[rows] = -torch.inf
        rows = torch.cat([stay, scores.topk(2).indices])
    assert sorted(found.rows.tolist()) == sorted(rows.tolist())
    assert found.outer[6] == pytest.approx(outer_of(problem, found.rows), rel=1e-5)


def test_validation_rows_are_part_of_the_outer_loss_alone():
    features, labels = blobs(70)
    both = problem_on(features[:60], labels[:60], validation=(with_bias(features[60:]), one_hot(labels[60:], 3)))
    together, alone = problem_on(features, labels), problem_on(features[:60], labels[:60])
    weights = torch.zeros(60, dtype=torch.float64)
    weights[:9] = 1.0
    parameters = both.solve(weights).parameters
    torch.testing.assert_close(parameters, alone.solve(weights).parameters)
    assert both.n_rows == 60 and both.outer(parameters) == pytest.approx(together.outer(parameters), rel=1e-12)
    wide = torch.nn.functional.pad(weights, (0, 10))
    scores = both.influence(parameters, weights).scores
    torch.testing.assert_close(scores, together.influence(parameters, wide).scores[:60], rtol=1e-4, atol=1e-9)
    assert not torch.allclose(scores, alone.influence(parameters, weights).scores, rtol=1e-2)
