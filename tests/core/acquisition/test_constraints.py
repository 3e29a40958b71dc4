"""Exclusions, regions, near-duplicates, reasons, comparisons and hindsight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.acquisition import constraints, duplicates, hindsight, reasons
from core.acquisition.registry import select
from core.acquisition.strategies import bico
from core.config import SelectionConfig
from core.coresets import bilevel
from core.similarity.diffusion import diffusion_features
from core.types import UNLABELED
from tests.core.clusters import clusters, graph_of


def rows_of(request, selection) -> np.ndarray:
    return np.array([int(np.flatnonzero(request.item_ids == i)[0]) for i in selection.item_ids])


def test_a_share_for_a_region_is_rounded_up_and_limited_by_its_items(request_of):
    region = np.zeros(120, bool)
    region[np.flatnonzero(request_of().eligible)[:2]] = True
    counts = [k for k, _ in constraints.parts(request_of(region=region, region_share=0.1))]
    assert counts == [1, 5]
    assert [k for k, _ in constraints.parts(request_of(region=region, region_share=0.9))] == [2, 4]


def test_the_second_part_of_a_batch_takes_the_first_into_account(request_of):
    """A batch that is selected in two parts of one region equals the batch that is selected at once."""
    request = request_of()
    for strategy in ("bico", "k_center", "max_herding"):
        config = SelectionConfig(strategy=strategy, near_duplicate=0.0, n_views=3)
        whole = select(request, config)
        halves = select(replace(request, region=np.ones(120, bool), region_share=0.5), config)
        np.testing.assert_array_equal(halves.item_ids, whole.item_ids)


def test_near_duplicates_are_found_in_any_order_and_far_rows_are_not():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 40)).astype(np.float32)
    x[200:] = x[:100] + 0.01 * draw.normal(size=(100, 40))
    x[150] = x[149]
    twins = duplicates.find_near_duplicates(x, 0.05, 0)
    kept = twins.distinct(np.ones(300, bool), np.array([], np.int64))
    assert kept.sum() == 199 and not kept[150] and not kept[200:].any()
    assert twins.complete


def test_rows_near_taken_ones_are_left_out_and_no_two_kept_rows_are_near():
    x = np.linspace(0, 10, 501)[:, None].astype(np.float32)
    twins = duplicates.find_near_duplicates(x, 0.05, 0)
    radius = 0.05 * duplicates.typical_distance(x, np.random.default_rng(0))
    kept = np.flatnonzero(twins.distinct(np.ones(501, bool), np.array([250])))
    assert np.diff(x[kept, 0]).min() > radius * 0.999
    assert np.abs(x[kept, 0] - x[250, 0]).min() > radius * 0.999


def test_a_pool_of_one_repeated_item_is_one_group():
    twins = duplicates.find_near_duplicates(np.ones((5_000, 8), np.float32), 0.05, 0)
    assert twins.distinct(np.ones(5_000, bool), np.array([], np.int64)).sum() == 1


def test_a_pool_too_dense_to_tell_apart_keeps_all_but_equal_items(monkeypatch, request_of):
    monkeypatch.setattr(duplicates, "MAX_PAIRS", 10)
    request = request_of()
    twins = duplicates.find_near_duplicates(request.features, 0.9, 0)
    assert not twins.complete
    assert twins.distinct(request.eligible, np.array([], np.int64)).sum() == request.eligible.sum()
    notes = select(request, SelectionConfig(strategy="uniform", near_duplicate=0.9)).notes
    assert any("too dense" in note for note in notes)


def test_near_duplicates_of_labeled_items_are_not_chosen(request_of):
    request = request_of()
    features = request.features.copy()
    copies = np.flatnonzero(request.eligible)[:10]
    features[copies] = features[np.flatnonzero(request.labeled)[0]] + 1e-4
    selection = select(replace(request, features=features, view_features=None), SelectionConfig(strategy="margin"))
    assert not np.isin(rows_of(request, selection), copies).any()


def test_reasons_are_what_the_arrays_say(request_of):
    request = request_of()
    selection = select(request, SelectionConfig(strategy="k_center"))
    rows = rows_of(request, selection)
    first, row = selection.reasons[0], rows[0]
    labeled = np.flatnonzero(request.labeled)
    distances = np.linalg.norm(request.embeddings[labeled] - request.embeddings[row], axis=1)
    p = request.probabilities[row].astype(float)
    assert first.guess == p.argmax() and first.confidence == pytest.approx(p.max())
    assert first.entropy == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)
    assert first.nearest_labeled == request.item_ids[labeled[distances.argmin()]]
    assert first.nearest_distance == pytest.approx(distances.min(), rel=1e-4)
    pool = np.flatnonzero(~request.labeled)
    nearest = np.linalg.norm(request.embeddings[pool][:, None] - request.embeddings[rows][None], axis=2).argmin(1)
    assert [reason.stands_for for reason in selection.reasons] == np.bincount(nearest, minlength=6).tolist()


def test_the_outer_loss_along_a_batch_is_continuous_and_does_not_depend_on_the_strategy(request_of):
    request = request_of()
    config = SelectionConfig(strategy="bico", n_views=3)
    selection = select(request, config)
    path = reasons.outer_path(request, config, rows_of(request, selection))
    for k, reason in enumerate(selection.reasons):
        assert reason.outer_before == pytest.approx(path[k], abs=1e-3)
        assert reason.outer_after == pytest.approx(path[k + 1], abs=1e-3)
        assert reason.gradient_rank >= 1 and reason.first_gradient_rank >= 1


def test_bico_trains_on_views_of_labeled_items_and_evaluates_the_whole_pool(request_of):
    """Eq. 17: inner on labeled and chosen items' views, outer on labeled and unlabeled items."""
    request = request_of()
    config = SelectionConfig(strategy="bico", n_views=3, near_duplicate=0.0)
    base = np.concatenate([request.view_features(int(row)) for row in np.flatnonzero(request.labeled)])
    targets = np.repeat(request.probabilities[request.labeled], 3, 0)
    found = bilevel.greedy(
        base,
        targets,
        request.features,
        request.probabilities,
        6,
        config.penalty,
        views=request.view_features,
        settings=bilevel.Settings(candidates=request.eligible & ~request.labeled),
    )
    np.testing.assert_array_equal(select(request, config).item_ids, request.item_ids[found.rows])


def test_bico_can_use_the_last_layer_as_its_proxy(request_of):
    request = request_of()
    config = SelectionConfig(strategy="bico", proxy="embedding")
    features = bico.proxy_features(request, config)
    assert np.square(features).sum(1).mean() == pytest.approx(1.0, rel=1e-4)
    assert len(select(request, config).item_ids) == 6


def test_bico_on_the_similarity_graph_picks_from_each_cluster_once_and_uses_the_kernel_without_a_graph(request_of):
    points, which = clusters(n_clusters=8, size=15)
    phi = diffusion_features(graph_of(points))
    labeled = np.isin(np.arange(120), [0, 20])  # clusters 0 and 1
    unsure = np.where(labeled[:, None], np.eye(4)[which % 4], 0.2 + 0.2 * np.eye(4)[which % 4]).astype(np.float32)
    request = request_of(labeled=labeled, eligible=~labeled, probabilities=unsure, similarity_features=lambda: phi)
    config = SelectionConfig(strategy="bico", proxy="similarity", uncertainty_power=1.0)
    found = select(request, config)
    assert sorted(which[rows_of(request, found)]) == [2, 3, 4, 5, 6, 7]
    path = [found.reasons[0].outer_before, *(reason.outer_after for reason in found.reasons)]
    np.testing.assert_allclose(reasons.outer_path(request, config, rows_of(request, found)), path, rtol=2e-3)
    unknown = request_of()
    on_kernel, instead = (select(unknown, SelectionConfig(strategy="bico", proxy=p)) for p in ("kernel", "similarity"))
    np.testing.assert_array_equal(instead.item_ids, on_kernel.item_ids)


def margins_of(request) -> np.ndarray:
    ordered = np.sort(request.probabilities, axis=1)
    return ordered[:, -1] - ordered[:, -2]


def test_the_uncertainty_power_weights_the_outer_loss_and_hardens_its_labels(request_of):
    request = request_of()
    rows = np.arange(len(request.labeled))
    plain, none = bico.outer_problem(request, SelectionConfig(), rows)
    assert none is None
    np.testing.assert_array_equal(plain, request.probabilities)
    labels, weights = bico.outer_problem(request, SelectionConfig(uncertainty_power=2.0), rows)
    np.testing.assert_array_equal(labels.argmax(1), request.probabilities.argmax(1))
    assert set(np.unique(labels)) == {0.0, 1.0}
    open_to = ~request.labeled
    np.testing.assert_allclose(weights[open_to], (1 - margins_of(request)[open_to]) ** 2, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(weights[request.labeled], 1.0)


def test_with_an_uncertainty_power_bico_picks_less_certain_items_and_its_reasons_use_the_same_loss(request_of):
    request = request_of(n=400, batch_size=6)
    margins = margins_of(request)
    config = SelectionConfig(strategy="bico", uncertainty_power=4.0)
    found, plain = select(request, config), select(request, SelectionConfig(strategy="bico"))
    assert margins[rows_of(request, found)].mean() < 0.7 * margins[rows_of(request, plain)].mean()
    path = [found.reasons[0].outer_before, *(reason.outer_after for reason in found.reasons)]
    np.testing.assert_allclose(reasons.outer_path(request, config, rows_of(request, found)), path, rtol=2e-3)


def test_a_cold_start_covers_far_clusters_with_its_first_picks(cold_request_of):
    centers = 5 * np.eye(6, 24)
    x = (np.repeat(centers, 20, 0) + 0.1 * np.random.default_rng(0).normal(size=(120, 24))).astype(np.float32)
    request = cold_request_of(features=x, eligible=np.ones(120, bool))
    selection = select(request, SelectionConfig())
    assert sorted(rows_of(request, selection) // 20) == [0, 1, 2, 3, 4, 5]
    assert any("V-optimal design" in note for note in selection.notes)


def test_solves_that_stop_short_appear_in_the_notes(request_of, monkeypatch):
    short = bilevel.Settings.__init__.__kwdefaults__ | {"max_cg_steps": 1}
    monkeypatch.setattr(bilevel.Settings.__init__, "__kwdefaults__", short)
    notes = select(request_of(), SelectionConfig(n_views=3, penalty=1e-6)).notes
    assert any(note.startswith("The implicit gradient stopped before its tolerance") for note in notes)


def test_hindsight_reports_wrong_predictions_and_changed_neighborhoods():
    before = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    after = np.array([[0.0, 1.0], [0.3, 0.7], [0.7, 0.3], [0.2, 0.8]])
    points = np.array([[0.0], [1.0], [2.0], [10.0]])
    around = hindsight.neighborhood(points, np.array([0, 3]), 2, np.ones(4, bool))
    assert around.tolist() == [[1, 2], [2, 1]]
    first, second = hindsight.pick_effects(before, after, np.array([0, 3]), np.array([1, UNLABELED]), around)
    assert (first.guess, first.label, first.guess_was_wrong) == (0, 1, True)
    assert first.label_probability == pytest.approx(0.1)
    assert (first.n_neighbors, first.n_changed, first.n_changed_to_label) == (2, 1, 1)
    assert first.mean_shift == pytest.approx((0.5 + 0.1) / 2)
    assert first.confidence_gain == pytest.approx((0.7 - 0.8 + 0.7 - 0.6) / 2)
    assert (second.label, second.guess_was_wrong, second.n_changed_to_label) == (None, None, None)
