"""Bayesian A- and V-optimal designs against dense formulas, finite differences and enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from core.coresets.design import Forms, Prior, gradient, greedy, value
from core.errors import InvalidInput


def features(n: int = 12, q: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, q))


def dense_value(Z: np.ndarray, rows, prior: Prior) -> float:
    chosen = Z[list(rows)]
    Sigma = np.linalg.inv(prior.penalty * np.eye(Z.shape[1]) + chosen.T @ chosen / prior.noise)
    return float(np.trace(Sigma) if prior.criterion == "A" else np.mean([z @ Sigma @ z for z in Z]))


@pytest.mark.parametrize("criterion", ["V", "A"])
def test_every_step_is_the_best_single_addition_by_the_dense_formula(criterion):
    Z, prior = features(), Prior(penalty=0.5, noise=0.2, criterion=criterion)
    found = greedy(Z, 5, prior)
    for k, row in enumerate(found.rows):
        before = found.rows[:k].tolist()
        values = {r: dense_value(Z, [*before, r], prior) for r in range(len(Z)) if r not in before}
        assert min(values, key=values.get) == row
        assert found.values[k + 1] == pytest.approx(values[row], rel=1e-10)
    assert found.values[0] == pytest.approx(dense_value(Z, [], prior))


@pytest.mark.parametrize("criterion", ["V", "A"])
def test_the_gradient_matches_central_differences(criterion):
    Z, prior = torch.from_numpy(features()), Prior(penalty=0.5, noise=0.2, criterion=criterion)
    weights = torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slope = gradient(Z, weights, prior)
    for row in (0, 5, 11):
        step = torch.zeros(12, dtype=torch.float64)
        step[row] = 1e-5
        difference = (value(Z, weights + step, prior) - value(Z, weights - step, prior)) / 2e-5
        assert float(slope[row]) == pytest.approx(float(difference), rel=1e-6)


def test_the_greedy_pair_is_close_to_the_best_pair_by_enumeration():
    Z, prior = features(10, 3), Prior(penalty=1.0, noise=0.1)
    best = min(combinations(range(10), 2), key=lambda pair: dense_value(Z, pair, prior))
    assert greedy(Z, 2, prior).values[-1] <= 1.25 * dense_value(Z, best, prior)


def test_given_rows_count_as_answered_and_are_not_chosen_again():
    Z = features()
    first = greedy(Z, 2)
    given = np.isin(np.arange(12), first.rows)
    again = greedy(Z, 2, given=given)
    np.testing.assert_array_equal(again.rows, greedy(Z, 4).rows[2:])
    assert again.values[0] == pytest.approx(float(value(torch.from_numpy(Z), torch.from_numpy(given * 1.0), Prior())))


def test_equal_rows_are_not_both_chosen_while_others_remain():
    Z = features(4)
    found = greedy(np.concatenate([Z, Z]), 8)
    assert {int(r) % 4 for r in found.rows[:4]} == {0, 1, 2, 3}
    assert sorted(found.rows.tolist()) == list(range(8))


def test_each_far_cluster_gets_one_of_the_first_picks():
    centers = 3 * np.eye(5)
    Z = np.repeat(centers, 20, 0) + 0.1 * features(100, 5)
    assert sorted(greedy(Z, 5).rows // 20) == [0, 1, 2, 3, 4]


def test_more_rows_than_candidates_are_refused():
    with pytest.raises(InvalidInput, match="only 3 may be chosen"):
        greedy(features(), 4, candidates=np.arange(12) < 3)


def test_a_step_stays_on_the_device_of_its_inputs():
    with FakeTensorMode():
        Z = torch.randn(20, 4, device="cuda")
        forms = Forms(Z, torch.randn(2, 4, device="cuda"), Prior())
        forms.add(torch.randn(4, device="cuda"))
        assert forms.gains().device.type == "cuda"
