"""The records of the greedy bilevel search beside its picks: ranks, progress, equal rows, tolerances and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.coresets import bilevel
from core.coresets.bilevel import Objective, OuterProblem, Settings, greedy
from core.errors import InvalidInput
from tests.core.coresets.test_bilevel import problem


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """One thread, because the computations are small."""


@pytest.mark.parametrize("seed", range(4))
def test_ranks_count_the_ranked_rows_that_score_higher_without_earlier_picks(seed: int):
    arrays = problem(n=60, seed=seed)
    ranked = np.arange(60) % 4 != 0
    settings = Settings(candidates=np.arange(60) % 3 == 0, ranked=ranked, keep_scores=True)
    found = greedy(*arrays, 8, 1e-2, settings=settings)
    among = ranked.copy()
    for k, row in enumerate(found.rows):
        scores = found.all_scores[k]
        assert found.ranks[k] == 1 + (scores[among] > scores[row]).sum()
        assert found.first_ranks[k] == 1 + (found.all_scores[0][ranked] > found.all_scores[0][row]).sum()
        assert found.scores[k] == scores[row]
        among[row] = False
    assert found.ranks.max() > 1


def test_a_pick_is_not_ranked_again_when_its_score_stays_the_highest():
    """Two classes whose labels contradict each other in one place: a chosen row keeps a high score there."""
    base, base_targets, pool, targets = problem(n=40, seed=5)
    settings = Settings(keep_scores=True)
    found = greedy(base, base_targets, pool, targets, 20, 1e-2, settings=settings)
    still_high = [
        k for k in range(1, 20) if found.all_scores[k][found.rows[:k]].max() > found.all_scores[k][found.rows[k]]
    ]
    assert still_high, "the example must have picks whose score stays high"
    assert found.ranks.tolist() == [1] * 20


def test_scores_of_all_rows_are_returned_on_request_only():
    assert greedy(*problem(), 2, 1e-2).all_scores is None
    assert greedy(*problem(), 2, 1e-2, settings=Settings(keep_scores=True)).all_scores.shape == (2, 30)


def test_progress_names_each_step_and_the_outer_loss_after_it():
    heard = []
    found = greedy(*problem(), 4, 1e-2, settings=Settings(report=heard.append))
    assert [(one.stage, one.done, one.total) for one in heard] == [("select", k, 4) for k in (1, 2, 3, 4)]
    assert [one.note for one in heard] == [f"outer loss {loss:.4f}" for loss in found.outer_losses[1:]]
    assert len({one.note for one in heard}) > 1


@pytest.mark.parametrize("row", [0, 7, 18, 29])
def test_rows_equal_in_every_feature_are_found_wherever_they_lie(row: int):
    features = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    copies = [7, 18, 29]
    features[copies] = features[7].clone()
    features[11, :3] = features[7, :3]  # equal but for one feature
    targets = torch.full((3, 30), 1 / 3, dtype=torch.float64)
    pool = OuterProblem(features, targets, Objective(bias=False))
    W = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    _, _, errors = pool.outer(W)
    assert pool.equal_rows(row, errors).tolist() == (copies if row in copies else [row])


@pytest.mark.parametrize("mean", [True, False])
def test_the_tolerance_is_relative_to_the_gradient_at_zero(mean: bool):
    base, base_targets, pool, targets = problem()
    settings = Settings(tolerance=1e-3, objective=Objective(mean=mean))
    search = bilevel._prepare(base, base_targets, pool, targets, 1e-2, settings)
    Z = torch.from_numpy(np.c_[base, np.ones(len(base))])
    W = torch.zeros(3, Z.shape[1], dtype=torch.float64, requires_grad=True)
    losses = torch.nn.functional.cross_entropy(Z @ W.T, torch.from_numpy(base_targets), reduction="none")
    (losses.mean() if mean else losses.sum()).backward()
    assert search.tolerance == pytest.approx(1e-3 * float(W.grad.norm()), rel=1e-9)


def test_defaults_of_the_tolerances_follow_the_precision():
    assert Settings().precision(torch.float64) == (1e-12, 1e-8, 0.0)
    assert Settings().precision(torch.float32) == (1e-5, 2e-4, 0.05)
    assert Settings(tolerance=0.5, cutoff=0.25).precision(torch.float32) == (0.5, 2e-4, 0.25)


def test_all_eligible_rows_can_be_requested():
    settings = Settings(candidates=np.arange(30) < 4)
    assert sorted(greedy(*problem(), 4, 1e-2, settings=settings).rows) == [0, 1, 2, 3]
    with pytest.raises(InvalidInput, match="Asked for 5 rows but only 4 may be chosen"):
        greedy(*problem(), 5, 1e-2, settings=settings)


def test_outer_weights_may_be_zero_for_some_rows():
    weights = np.ones(30)
    weights[:10] = 0.0
    found = greedy(*problem(), 2, 1e-2, settings=Settings(outer_weights=weights))
    base, base_targets, pool, targets = problem()
    kept = greedy(base, base_targets, pool[10:], targets[10:], 1, 1e-2)
    assert found.outer_losses[0] == pytest.approx(kept.outer_losses[0], rel=1e-9)


@pytest.mark.parametrize("off", [5e-4, -5e-4])
def test_targets_may_miss_one_by_rounding(off: float):
    base, base_targets, pool, targets = problem()
    near = targets.copy()
    near[3, 0] += off
    assert len(greedy(base, base_targets, pool, near, 1, 1e-2).rows) == 1
    far = targets.copy()
    far[3, 0] += 4 * off
    with pytest.raises(InvalidInput, match="Pool targets must sum to 1"):
        greedy(base, base_targets, pool, far, 1, 1e-2)


@pytest.mark.parametrize("penalty", [0.0, -1.0])
def test_a_penalty_must_be_above_zero(penalty: float):
    with pytest.raises(InvalidInput, match="must be above 0"):
        greedy(*problem(), 1, penalty)
