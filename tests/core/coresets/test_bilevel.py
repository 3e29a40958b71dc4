"""The greedy bilevel search against golden values, finite differences, enumeration and edge cases."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from core.coresets.bilevel import Objective, OuterProblem, Settings, follow, greedy
from core.coresets.softmax import SoftmaxRegression, cross_entropy
from core.coresets.solvers import truncated_newton
from core.coresets.span import InnerProblem
from core.errors import Cancelled, InvalidInput
from tests.core.fake_cuda import fake_cuda

GOLDEN = Path(__file__).parents[2] / "golden" / "implicit_grad_small.npz"
CONVENTIONS = {"A": Objective(), "A2": Objective(), "B": Objective(mean=False, bias=False)}


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return {name: arrays[name] for name in arrays.files}


def problem(n: int = 30, q: int = 5, n_classes: int = 3, seed: int = 0, n_base: int = 3):
    draw = np.random.default_rng(seed)
    pool = draw.normal(size=(n, q))
    targets = draw.dirichlet(np.full(n_classes, 0.3), n)
    base = draw.normal(size=(n_base, q))
    return base, np.eye(n_classes)[np.arange(n_base) % n_classes], pool, targets


def outer_loss(base, base_targets, pool, targets, rows, penalty) -> float:
    """The outer loss after training on base and rows, by an independent route: Newton on all columns at once."""
    Z = torch.from_numpy(np.concatenate([base, pool[list(rows)]]))
    Z = torch.cat([Z, Z.new_ones(len(Z), 1)], 1)
    Y = torch.from_numpy(np.concatenate([base_targets, targets[list(rows)]])).T
    function = SoftmaxRegression(Z, Y, penalty, 1 / len(Z))
    W = truncated_newton(function, Z.new_zeros(len(Y), Z.shape[1]), tolerance=1e-11).value
    P = torch.from_numpy(np.concatenate([pool, np.ones((len(pool), 1))], 1))
    return float(cross_entropy(W @ P.T, torch.from_numpy(targets).T).mean())


@pytest.mark.parametrize("tag", ["A", "A2", "B"])
def test_golden_picks_losses_and_implicit_gradients_are_reproduced(golden, tag: str):
    settings = Settings(objective=CONVENTIONS[tag], keep_scores=True)
    arrays = (golden["Z_base"], golden["Y_base"], golden["Z_pool"], golden["Y_pool"])
    found = greedy(*arrays, 10, float(golden[f"{tag}_lam"]), settings=settings)
    assert found.rows.tolist() == golden[f"{tag}_picks"].tolist()
    np.testing.assert_allclose(found.outer_losses, golden[f"{tag}_G"], rtol=1e-8)
    expected = golden[f"{tag}_implicit_grad"]
    largest = np.abs(expected).max(1, keepdims=True)
    assert np.max(np.abs(found.all_scores + expected) / largest) < 1e-6
    assert found.problems() == ()


@pytest.mark.parametrize("tag", ["A", "A2", "B"])
def test_golden_picks_are_reproduced_in_single_precision(golden, tag: str):
    arrays = [golden[k].astype(np.float32) for k in ("Z_base", "Y_base", "Z_pool", "Y_pool")]
    found = greedy(*arrays, 10, float(golden[f"{tag}_lam"]), settings=Settings(objective=CONVENTIONS[tag]))
    assert found.rows.tolist() == golden[f"{tag}_picks"].tolist()
    np.testing.assert_allclose(found.outer_losses, golden[f"{tag}_G"], rtol=1e-3)


def test_scores_match_central_differences_of_the_outer_loss():
    base, base_targets, pool, targets = problem()
    found = greedy(base, base_targets, pool, targets, 1, 1e-2, settings=Settings(keep_scores=True))

    def loss(row: int, weight: float) -> float:
        Z = torch.from_numpy(np.concatenate([base, pool[[row]]]))
        Z = torch.cat([Z, Z.new_ones(len(Z), 1)], 1)
        Y = torch.from_numpy(np.concatenate([base_targets, targets[[row]]])).T
        w = torch.tensor([1.0] * len(base) + [weight], dtype=Z.dtype)
        function = SoftmaxRegression(Z, Y, 1e-2, 1 / len(base), weights=w)
        W = truncated_newton(function, Z.new_zeros(len(Y), Z.shape[1]), tolerance=1e-13, max_steps=100).value
        P = torch.from_numpy(np.concatenate([pool, np.ones((len(pool), 1))], 1))
        return float(cross_entropy(W @ P.T, torch.from_numpy(targets).T).mean())

    for row in (0, 7, 19):
        difference = (loss(row, 1e-5) - loss(row, -1e-5)) / 2e-5
        assert found.all_scores[0, row] == pytest.approx(-difference, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("mean", [True, False])
def test_outer_weights_count_rows_as_often_as_they_say(mean: bool):
    base, base_targets, pool, targets = problem()
    weights = np.random.default_rng(3).integers(0, 4, len(pool))
    settings = Settings(objective=Objective(mean=mean), keep_scores=True, outer_weights=weights.astype(float))
    found = greedy(base, base_targets, pool, targets, 4, 1e-2, settings=settings)
    # the candidates first, which count in the outer loss as often as the copies behind them say, less their own once
    own = np.flatnonzero(weights)
    copies = np.repeat(np.arange(len(pool)), np.maximum(weights - 1, 0))
    order = np.concatenate([own, copies])
    candidates = np.arange(len(order)) < len(own)
    of_copies = Settings(objective=Objective(mean=mean), candidates=candidates, keep_scores=True)
    repeated = greedy(base, base_targets, pool[order], targets[order], 4, 1e-2, settings=of_copies)
    np.testing.assert_allclose(found.all_scores[0][own], repeated.all_scores[0][: len(own)], rtol=1e-6, atol=1e-12)
    assert found.outer_losses[0] == pytest.approx(repeated.outer_losses[0], rel=1e-9)
    followed = follow(base, base_targets, pool, targets, found.rows, 1e-2, settings=settings)
    np.testing.assert_allclose(followed, found.outer_losses, rtol=1e-8)


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(30), np.zeros(30)])
def test_outer_weights_that_weigh_nothing_are_refused(weights):
    with pytest.raises(InvalidInput, match="uter weights"):
        greedy(*problem(), 2, 1e-2, settings=Settings(outer_weights=weights))


def test_the_best_pair_of_a_toy_is_found():
    """Three far clusters, one labeled: enumeration says that the best pair has one row of each other cluster."""
    centers = np.array([[4.0, 0], [0, 4.0], [-4.0, -4.0]])
    classes = np.repeat([0, 1, 2], 5)
    pool = centers[classes] + np.random.default_rng(0).normal(scale=0.05, size=(15, 2))
    targets = np.eye(3)[classes] * 0.97 + 0.01
    base, base_targets = centers[:1], np.eye(3)[:1]
    penalty = 0.05
    best = min(combinations(range(15), 2), key=lambda p: outer_loss(base, base_targets, pool, targets, p, penalty))
    found = greedy(base, base_targets, pool, targets, 2, penalty)
    assert {classes[r] for r in best} == {1, 2} == {classes[r] for r in found.rows}
    reached = outer_loss(base, base_targets, pool, targets, found.rows, penalty)
    assert reached == pytest.approx(found.outer_losses[-1], rel=1e-8)
    assert reached <= 1.02 * outer_loss(base, base_targets, pool, targets, best, penalty)


def test_equal_rows_are_not_both_chosen_while_others_remain():
    base, base_targets, pool, targets = problem(n=6)
    pool[3:], targets[3:] = pool[:3], targets[:3]
    found = greedy(base, base_targets, pool, targets, 6, 1e-3)
    assert {int(r) % 3 for r in found.rows[:3]} == {0, 1, 2}
    assert sorted(found.rows.tolist()) == list(range(6))


def test_chosen_rows_join_with_their_views():
    base, base_targets, pool, targets = problem()
    views = {r: pool[r] + np.random.default_rng(r).normal(scale=0.1, size=(4, 5)) for r in range(len(pool))}
    found = greedy(base, base_targets, pool, targets, 2, 1e-2, views=lambda row: views[row])
    first = found.rows[0]
    again = greedy(
        np.concatenate([base, views[first]]),
        np.concatenate([base_targets, np.repeat(targets[[first]], 4, 0)]),
        pool,
        targets,
        1,
        1e-2,
        settings=Settings(candidates=np.arange(len(pool)) != first),
    )
    assert again.rows[0] == found.rows[1]
    assert again.outer_losses[0] == pytest.approx(found.outer_losses[1], rel=1e-9)


def test_only_candidates_are_chosen_and_ranks_count_the_others():
    base, base_targets, pool, targets = problem()
    free = greedy(base, base_targets, pool, targets, 3, 1e-2)
    allowed = np.ones(len(pool), bool)
    allowed[free.rows] = False
    settings = Settings(candidates=allowed, ranked=np.ones(len(pool), bool))
    found = greedy(base, base_targets, pool, targets, 3, 1e-2, settings=settings)
    assert allowed[found.rows].all()
    assert free.ranks.tolist() == [1, 1, 1] and found.ranks[0] > 1
    assert free.first_ranks[0] == 1


@pytest.mark.parametrize("n_classes", [1, 2, 200])
def test_one_two_and_two_hundred_classes_work(n_classes: int):
    base, base_targets, pool, targets = problem(n=40, n_classes=n_classes)
    found = greedy(*(a.astype(np.float32) for a in (base, base_targets, pool, targets)), 5, 1e-3)
    assert len(set(found.rows.tolist())) == 5
    assert np.isfinite(found.outer_losses).all() and np.isfinite(found.scores).all()


def test_leaving_out_weak_directions_changes_no_pick():
    """Views of the same item span few directions that matter; the others are repaired in closed form."""
    draw = np.random.default_rng(1)
    spectrum = 0.7 ** np.arange(64)
    pool = (draw.normal(size=(120, 64)) * spectrum).astype(np.float32)
    targets = draw.dirichlet(np.full(4, 0.3), 120).astype(np.float32)
    base = np.concatenate([pool[r] + 0.05 * draw.normal(size=(10, 64)) * spectrum for r in range(4)])
    arrays = (base.astype(np.float32), np.repeat(np.eye(4, dtype=np.float32), 10, 0), pool, targets)
    exact = greedy(*(a.astype(np.float64) for a in arrays), 8, 1e-3)
    found = greedy(*arrays, 8, 1e-3)
    assert found.rows.tolist() == exact.rows.tolist()
    np.testing.assert_allclose(found.outer_losses, exact.outer_losses, atol=1e-3)


@pytest.mark.slow
def test_systems_with_the_hessian_match_a_dense_solve():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 20, generator=draw, dtype=torch.float64)
    targets = torch.softmax(torch.randn(3, 6, generator=draw, dtype=torch.float64), 0)
    inner = InnerProblem.create(rows, targets, 1e-2, mean=True, cutoff=0.0)
    inner.solve(1e-12)
    assert inner.coordinates.shape == (6, 6)
    W, target = inner.lift(), torch.randn(3, 20, generator=draw, dtype=torch.float64)
    full = SoftmaxRegression(rows, targets, 1e-2, 1 / 6)
    assert float(full.at(W).gradient.norm()) < 1e-11
    dense = torch.autograd.functional.hessian(full.value, W).reshape(60, 60)
    expected = torch.linalg.solve(dense, target.flatten()).reshape(3, 20)
    solved = inner.solve_hessian(target, 1e-11)
    assert solved.converged
    torch.testing.assert_close(solved.value, expected, rtol=1e-8, atol=1e-9)


def test_directions_left_out_of_the_basis_are_part_of_systems_with_the_hessian():
    draw = torch.Generator().manual_seed(1)
    spectrum = 0.3 ** torch.arange(20, dtype=torch.float64)
    rows = torch.randn(8, 20, generator=draw, dtype=torch.float64) * spectrum
    targets = torch.softmax(torch.randn(3, 8, generator=draw, dtype=torch.float64), 0)
    inner = InnerProblem.create(rows, targets, 1e-3, mean=True, cutoff=2.0)
    inner.solve(1e-12)
    assert 1 < len(inner.basis) < 8
    outside = rows - inner.coordinates @ inner.basis
    assert inner.left_out == pytest.approx(float(outside.norm()), rel=1e-6)
    P = inner.probabilities()
    curvature = torch.stack([torch.diag(p) - torch.outer(p, p) for p in P.T]) / 8
    dense = torch.einsum("iab,ij,ik->ajbk", curvature, rows, rows).reshape(60, 60)
    dense = dense + 1e-3 * torch.eye(60, dtype=torch.float64)
    target = torch.randn(3, 20, generator=draw, dtype=torch.float64)
    solved = inner.solve_hessian(target, 1e-10)
    expected = torch.linalg.solve(dense, target.flatten()).reshape(3, 20)
    assert solved.converged and solved.residual <= 1e-10
    assert float((dense @ solved.value.flatten() - target.flatten()).norm() / target.norm()) <= solved.residual + 1e-14
    torch.testing.assert_close(solved.value, expected, rtol=1e-6, atol=1e-6)


def test_solves_that_stop_short_are_reported():
    base, base_targets, pool, targets = problem()
    found = greedy(base, base_targets, pool, targets, 2, 1e-4, settings=Settings(max_cg_steps=1, max_newton_steps=1))
    assert [sentence.split(" stopped")[0] for sentence in found.problems()] == [
        "The inner problem",
        "The implicit gradient",
    ]


def test_progress_is_complete_and_may_cancel():
    base, base_targets, pool, targets = problem()
    seen = []
    greedy(base, base_targets, pool, targets, 3, 1e-2, settings=Settings(report=seen.append))
    assert [(p.done, p.total) for p in seen] == [(1, 3), (2, 3), (3, 3)]

    def stop(progress):
        raise Cancelled("Stopped by request.")

    with pytest.raises(Cancelled):
        greedy(base, base_targets, pool, targets, 3, 1e-2, settings=Settings(report=stop))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: (a[0][:0], a[1][:0], a[2], a[3]), "no rows"),
        (lambda a: (a[0][:, :2], a[1], a[2], a[3]), "Base rows have 2 features, pool rows 5"),
        (lambda a: (a[0], a[1], a[2], a[3][:-1]), "do not fit"),
        (lambda a: (a[0], a[1], a[2], 2 * a[3]), "sum to 1"),
        (lambda a: (a[0], a[1], np.where(a[2] > 2, np.nan, a[2]), a[3]), "not finite"),
    ],
)
def test_unusable_input_is_refused_by_name(change, message: str):
    arrays = problem()
    with pytest.raises(InvalidInput, match=message):
        greedy(*change(arrays), 2, 1e-2)
    with pytest.raises(InvalidInput, match="only 30 may be chosen"):
        greedy(*arrays, 31, 1e-2)


def test_the_pool_and_the_basis_stay_on_the_device_of_their_inputs():
    with fake_cuda():
        pool = OuterProblem(torch.randn(50, 8, device="cuda"), torch.rand(3, 50, device="cuda"), Objective())
        loss, gradient, errors = pool.outer(torch.zeros(3, 9, device="cuda"))
        scores = pool.scores(errors, gradient, 0.1)
        rows = torch.randn(12, 9, device="cuda")
        inner = InnerProblem.create(rows, torch.rand(3, 12, device="cuda"), 1e-2, mean=True, cutoff=0.0)
        product = inner.hessian_product(inner.probabilities(), gradient)
        for tensor in (loss, gradient, errors, scores, inner.lift(), product):
            assert tensor.device.type == "cuda"
