"""Each rival against scikit-activeml where it implements the same method, and against hand computation elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skactiveml.pool import CoreSet, MaxHerding, ProbCover, TypiClust, uncertainty_scores
from torch._subclasses.fake_tensor import FakeTensorMode

from core.acquisition import clustering, coverage, geometry, ranking
from core.acquisition.registry import select
from core.acquisition.strategies import (
    badge,
    consistency,
    k_center,
    k_means,
    max_entropy,
    prob_cover,
    typiclust,
    uncertainty_herding,
    uniform,
)
from core.config import SelectionConfig


def missing_labels(request) -> np.ndarray:
    return np.where(request.labeled, request.probabilities.argmax(1), np.nan)


def rows_of(request, selection) -> list[int]:
    return [int(np.flatnonzero(request.item_ids == i)[0]) for i in selection.item_ids]


def test_entropy_and_margin_order_items_as_scikit_activeml_does(request_of):
    P = request_of().probabilities.astype(np.float64)
    ours = ranking.entropy(torch.from_numpy(P)).numpy(), ranking.margin_uncertainty(torch.from_numpy(P)).numpy()
    np.testing.assert_allclose(ours[0], uncertainty_scores(P, method="entropy"), atol=1e-8)
    np.testing.assert_allclose(ours[1], uncertainty_scores(P, method="margin_sampling"), atol=1e-8)


def test_k_center_picks_as_scikit_activeml_core_set(request_of):
    request = request_of(eligible=~request_of().labeled)
    theirs = CoreSet(random_state=0).query(request.embeddings, missing_labels(request), batch_size=6)
    assert rows_of(request, k_center.select(request, SelectionConfig())) == theirs.tolist()


def test_max_herding_picks_as_scikit_activeml_on_the_same_rows(request_of):
    request = request_of(eligible=~request_of().labeled)
    x = geometry.centered_unit(torch.from_numpy(request.embeddings).double())
    theirs = MaxHerding(normalize_samples=False, metric_dict={"gamma": 1.0}, random_state=0)
    expected = theirs.query(x.numpy(), missing_labels(request), batch_size=6)
    picked = rows_of(request, select(request, SelectionConfig(strategy="max_herding", near_duplicate=0.0)))
    assert _coverage(x, request, picked) == pytest.approx(_coverage(x, request, expected), rel=1e-6)
    assert len(set(picked) & set(expected.tolist())) >= 5


def _coverage(x: torch.Tensor, request, rows) -> float:
    centers = np.concatenate([np.flatnonzero(request.labeled), np.asarray(rows)])
    pool = x[torch.from_numpy(~request.labeled)]
    return float(coverage.gaussian(pool, x[torch.from_numpy(centers)], 1.0).amax(1).mean())


@pytest.mark.filterwarnings("ignore:The maximum purity")  # one radius is given, without regard to its purity
def test_prob_cover_picks_as_scikit_activeml_at_the_same_radius(request_of):
    request = request_of(eligible=~request_of().labeled)
    x = geometry.centered_unit(torch.from_numpy(request.embeddings).double())
    radius = 0.4
    theirs = ProbCover(n_classes=4, deltas=[radius], random_state=0, alpha=0.01)
    _, utilities = theirs.query(x.numpy(), missing_labels(request), batch_size=1, return_utilities=True)
    pool = np.flatnonzero(~request.labeled)
    E = x[torch.from_numpy(pool)]
    covered = coverage.covered_by(lambda a, b: coverage.top_hat(a, b, radius), E, x[torch.from_numpy(request.labeled)])
    ours = coverage.gains(coverage.top_hat(E, E, radius), torch.ones(len(pool), dtype=E.dtype), covered)
    np.testing.assert_array_equal(np.argsort(-ours.numpy())[:1], [np.nanargmax(utilities[0][pool])])
    np.testing.assert_allclose(ours.numpy(), utilities[0][pool])


def test_typiclust_finds_the_same_clusters_typical_items_as_scikit_activeml():
    """Six far clusters, nothing labeled: both pick one item in each; where the neighborhoods agree, the same one."""
    draw = np.random.default_rng(0)
    x = np.repeat(10 * np.eye(6), 21, 0) + draw.normal(scale=0.3, size=(126, 6))
    theirs = TypiClust(k=20, random_state=0).query(x, np.full(126, np.nan), batch_size=6)
    X = torch.from_numpy(x)
    ours = []
    for cluster in range(6):
        members = X[cluster * 21 : (cluster + 1) * 21]
        ours.append(cluster * 21 + int(typiclust.typicality(members, members).argmax()))
    assert sorted(ours) == sorted(theirs.tolist())


def test_badge_distances_are_those_of_the_full_gradients(request_of):
    request = request_of()
    P, h = torch.from_numpy(request.probabilities).double(), torch.from_numpy(request.embeddings).double()
    a = badge.gradient_factors(P)
    full = (a.unsqueeze(2) * h.unsqueeze(1)).flatten(1)
    one_hot = torch.nn.functional.one_hot(P.argmax(1), 4)
    torch.testing.assert_close(a, P - one_hot)
    norms = badge.squared_norms(a, h)
    torch.testing.assert_close(norms, full.square().sum(1))
    torch.testing.assert_close(badge.squared_distances_to(a, h, norms, 7), (full - full[7]).square().sum(1))


def test_badge_starts_at_the_longest_gradient_and_draws_by_squared_distance(request_of):
    request = request_of(batch_size=2)
    a = badge.gradient_factors(torch.from_numpy(request.probabilities))
    norms = badge.squared_norms(a, torch.from_numpy(request.embeddings)).numpy()
    candidates = request.eligible & ~request.labeled
    first = int(np.argmax(np.where(candidates, norms, -1)))
    requests = [request_of(batch_size=2, seed=seed) for seed in range(20)]
    seen = [rows_of(request, badge.select(request, SelectionConfig())) for request in requests]
    assert {rows[0] for rows in seen} == {first}
    assert len({rows[1] for rows in seen}) > 3


def test_a_weighted_draw_follows_the_weights():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0])
    draws = [clustering.weighted_draw(weights, u) for u in np.linspace(0, 0.9999, 400)]
    assert np.bincount(draws, minlength=4).tolist() == [0, 100, 0, 300]
    assert [clustering.weighted_draw(torch.zeros(4), u) for u in (0.0, 0.3, 0.99)] == [0, 1, 3]


def test_k_means_finds_far_clusters_and_picks_their_central_items(request_of):
    draw = np.random.default_rng(0)
    sizes = [60, 30, 20, 10]
    centers = 20 * np.eye(4, 10)
    x = np.concatenate([c + draw.normal(size=(s, 10)) for c, s in zip(centers, sizes, strict=True)]).astype(np.float32)
    request = request_of(
        embeddings=x, batch_size=4, labeled=np.zeros(120, bool), eligible=np.ones(120, bool), features=x
    )
    request = request_of(
        embeddings=x, batch_size=4, labeled=np.arange(120) == 0, eligible=np.arange(120) > 0, features=x
    )
    selection = k_means.select(request, SelectionConfig())
    rows = rows_of(request, selection)
    assert [int(np.searchsorted(np.cumsum(sizes), r, side="right")) for r in rows] == [0, 1, 2, 3]
    means = [x[1:60].mean(0), x[60:90].mean(0), x[90:110].mean(0), x[110:].mean(0)]
    blocks = [range(1, 60), range(60, 90), range(90, 110), range(110, 120)]
    nearest = [min(b, key=lambda r, m=m: np.linalg.norm(x[r] - m)) for m, b in zip(means, blocks, strict=True)]
    assert rows == nearest


def test_typiclust_visits_clusters_without_labels_first():
    order = [typiclust.next_cluster(np.array([9, 30, 20]), np.array([0, 1, 0]), np.array([9, 30, 20]))]
    order.append(typiclust.next_cluster(np.array([9, 30, 20]), np.array([0, 1, 1]), np.array([9, 30, 19])))
    order.append(typiclust.next_cluster(np.array([9, 30, 20]), np.array([1, 1, 1]), np.array([8, 0, 19])))
    assert order == [2, 0, 2]


def test_the_pure_radius_keeps_the_stated_share_of_balls_pure():
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(100, 3, generator=draw), 4 + torch.randn(100, 3, generator=draw)])
    assigned = torch.arange(200) // 100
    radius = prob_cover.pure_radius(x, assigned)
    within = torch.cdist(x, x) <= radius * (1 - 1e-5)
    pure = (~within | (assigned.unsqueeze(0) == assigned.unsqueeze(1))).all(1).double().mean()
    assert pure >= 0.95
    wider = torch.cdist(x, x) <= radius * 1.2
    assert (~wider | (assigned.unsqueeze(0) == assigned.unsqueeze(1))).all(1).double().mean() < 0.95


def test_greedy_coverage_is_the_best_single_addition_each_time_and_starts_over_when_exhausted():
    K = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    covering = coverage.greedy_cover(K, torch.ones(3), torch.zeros(3), 3)
    assert covering.positions == [0, 1, 2]
    assert covering.gains == [2.0, 1.0, 1.0] and covering.exhausted == 2


def test_consistency_is_the_variance_over_views_and_entropy_that_of_the_mean():
    views = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
    torch.testing.assert_close(consistency.scores(views), torch.tensor([0.5, 0.0]))
    torch.testing.assert_close(max_entropy.scores(views), torch.full((2,), float(np.log(2))))


def test_max_entropy_averages_the_first_two_views(request_of):
    request = request_of(batch_size=3)
    mean = request.view_probabilities[:2].mean(0)
    entropy = np.where(request.eligible & ~request.labeled, -(mean * np.log(mean + 1e-30)).sum(1), -np.inf)
    picked = rows_of(request, max_entropy.select(request, SelectionConfig()))
    assert picked == np.argsort(-entropy)[:3].tolist()


def test_ties_are_broken_by_the_seed(request_of):
    flat = np.full((120, 4), 0.25, np.float32)
    batches = {
        tuple(rows_of(r, ranking.take_highest(r, "margin", torch.zeros(120))))
        for r in (request_of(probabilities=flat, seed=s) for s in range(5))
    }
    assert len(batches) == 5


def test_uniform_draws_every_candidate_equally_often(request_of):
    request = request_of(n=20, n_labeled=5, batch_size=3)
    counts = np.zeros(20)
    for seed in range(600):
        drawn = uniform.select(request_of(n=20, n_labeled=5, batch_size=3, seed=seed), SelectionConfig())
        counts[rows_of(request, drawn)] += 1
    open_rows = request.eligible & ~request.labeled
    assert not counts[~open_rows].any()
    assert np.abs(counts[open_rows] / 600 - 0.3).max() < 0.08


def test_uncertainty_herding_matches_confidence_to_the_expected_accuracy():
    P = torch.softmax(4 * torch.randn(500, 5, generator=torch.Generator().manual_seed(0)), 1)
    for accuracy in (0.3, 0.6, 0.9):
        flattened = uncertainty_herding.at_temperature(P, uncertainty_herding.matching_temperature(P, accuracy))
        assert float(flattened.amax(1).mean()) == pytest.approx(accuracy, abs=1e-3)


def test_uncertainty_herding_is_max_herding_while_each_class_has_one_label(request_of):
    """No labeled item has a neighbor of its class, so the expected accuracy is 0 and all weights are nearly equal."""
    plain_request = request_of(n=60, n_labeled=0)
    classes = plain_request.probabilities.argmax(1)
    labeled = np.isin(np.arange(60), [np.flatnonzero(classes == c)[0] for c in range(4)])
    probabilities = np.where(labeled[:, None], np.eye(4)[classes], plain_request.probabilities).astype(np.float32)
    probabilities[~labeled] = probabilities[~labeled] * 0.01 + 0.2475
    request = request_of(n=60, labeled=labeled, eligible=~labeled, probabilities=probabilities)
    x = geometry.centered_unit(torch.from_numpy(request.embeddings))[torch.from_numpy(labeled)]
    distances = uncertainty_herding.labeled_distances(x)
    labels = torch.from_numpy(classes[labeled])
    assert float(uncertainty_herding.leave_one_out_accuracy(distances, labels)) == 0.0
    assert float(distances.min()) > 1.0
    ours = select(request, SelectionConfig(strategy="uncertainty_herding"))
    plain = select(request, SelectionConfig(strategy="max_herding"))
    np.testing.assert_array_equal(ours.item_ids, plain.item_ids)
    assert "Radius 1.00" in ours.notes[0] and "expected accuracy 0%" in ours.notes[0]


def test_samples_of_a_large_pool_are_stated(request_of):
    request = request_of(n=400, n_labeled=10)
    for strategy in ("prob_cover", "max_herding", "uncertainty_herding"):
        notes = select(request, SelectionConfig(strategy=strategy, max_pairwise=100)).notes
        assert "Candidates: a seeded sample of 100 of 385 items." in notes
    notes = select(request, SelectionConfig(strategy="bico", max_candidates=100)).notes
    assert "Candidates and outer loss: a seeded sample of 100 of 390 items." in notes


def test_the_cores_of_all_strategies_run_on_the_device_of_their_inputs():
    with FakeTensorMode():
        x, P = torch.randn(50, 8, device="cuda"), torch.rand(50, 4, device="cuda")
        views = torch.rand(5, 50, 4, device="cuda")
        a = badge.gradient_factors(P)
        norms = badge.squared_norms(a, x)
        assigned = torch.zeros(50, dtype=torch.int64, device="cuda")
        K = coverage.gaussian(x, x, 1.0)
        results = [
            ranking.entropy(P),
            ranking.margin_uncertainty(P),
            consistency.scores(views),
            max_entropy.scores(views),
            norms,
            badge.squared_distances_to(a, x, norms, 3),
            geometry.distance_with_center(x, norms, 2),
            *geometry.nearest(x, x),
            geometry.centered_unit(x),
            clustering.cluster_means(x, assigned, x.narrow(0, 0, 4)),
            typiclust.typicality(x, x),
            prob_cover.distance_to_other_cluster(x, assigned),
            coverage.top_hat(x, x, 1.0),
            coverage.gains(K, norms, norms),
            coverage.covered_by(lambda a, b: coverage.gaussian(a, b, 1.0), x, x),
            uncertainty_herding.at_temperature(P, 2.0),
            uncertainty_herding.leave_one_out_accuracy(uncertainty_herding.labeled_distances(x), assigned),
        ]
        assert {result.device.type for result in results} == {"cuda"}
