"""The inputs of bico's bilevel search: the proxy's features, the inner and outer rows, candidates; and the reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.acquisition.strategies import bico
from core.config import SelectionConfig
from core.coresets import bilevel


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """One thread, because the computations are small."""


def test_embeddings_are_divided_by_the_root_of_their_mean_square_length(request_of):
    request = request_of()
    lengths = np.sqrt((request.embeddings.astype(np.float64) ** 2).sum(1))
    expected = request.embeddings / np.sqrt(np.mean(lengths**2))
    features = bico.proxy_features(request, SelectionConfig(proxy="embedding"))
    np.testing.assert_allclose(features, expected, rtol=1e-5)


def test_a_model_without_embeddings_leaves_the_kernel_features(request_of):
    request = request_of(embeddings=np.zeros((120, 0), np.float32))
    assert bico.proxy_features(request, SelectionConfig(proxy="embedding")) is request.features
    one = request_of(embeddings=np.full((120, 1), 3.0, np.float32))
    np.testing.assert_allclose(bico.proxy_features(one, SelectionConfig(proxy="embedding")), 1.0, rtol=1e-6)


def test_diffusion_features_are_scaled_so_that_the_penalty_weighs_ten_times_as_much(request_of):
    phi = np.eye(120, dtype=np.float32)
    config = SelectionConfig(proxy="similarity")
    features = bico.proxy_features(request_of(similarity_features=lambda: phi), config)
    np.testing.assert_allclose((features**2).sum(1), 0.1, rtol=1e-6)
    assert bico.proxy_features(request := request_of(), config) is request.features
    assert bico.proxy_features(request, SelectionConfig(proxy="kernel")) is request.features


@pytest.mark.parametrize(
    ("config", "with_graph", "n_rows"),
    [
        (SelectionConfig(proxy="kernel", n_views=2), False, 2),
        (SelectionConfig(proxy="kernel", n_views=2), True, 2),
        (SelectionConfig(proxy="kernel", n_views=9), False, 3),  # there are three
        (SelectionConfig(proxy="kernel", n_views=1), False, 1),
        (SelectionConfig(proxy="kernel", n_views=0), False, None),
        (SelectionConfig(proxy="embedding", n_views=2), False, None),
        (SelectionConfig(proxy="similarity", n_views=2), False, 2),  # no graph: the kernel is used
        (SelectionConfig(proxy="similarity", n_views=2), True, None),
    ],
)
def test_an_item_enters_as_its_first_views_with_the_kernel_and_as_itself_otherwise(
    request_of, config, with_graph, n_rows
):
    request = request_of(similarity_features=(lambda: np.eye(120, dtype=np.float32)) if with_graph else None)
    features = bico.proxy_features(request, config)
    found = bico.inner_rows(request, config, features, 7)
    expected = features[7:8] if n_rows is None else request.view_features(7)[:n_rows]
    np.testing.assert_array_equal(found, expected)


def test_without_views_an_item_enters_as_itself(request_of):
    request = request_of(view_features=None)
    found = bico.inner_rows(request, SelectionConfig(n_views=2), request.features, 7)
    np.testing.assert_array_equal(found, request.features[7:8])


def test_the_base_has_the_views_of_each_labeled_item_with_its_label(request_of):
    request = request_of()
    base, targets = bico.base_rows(request, SelectionConfig(n_views=2), request.features)
    rows = np.flatnonzero(request.labeled)
    np.testing.assert_array_equal(base, np.concatenate([request.view_features(int(row))[:2] for row in rows]))
    np.testing.assert_array_equal(targets, np.repeat(request.probabilities[rows], 2, axis=0))


@pytest.mark.parametrize(
    ("limit", "n_unlabeled"),
    [(392, 392), (391, 391), (100, 100), (60, 60), (59, 60), (1, 60)],  # 392 unlabeled; ten times the batch at least
)
def test_the_outer_set_has_all_labeled_rows_and_at_least_ten_candidates_for_each_pick(request_of, limit, n_unlabeled):
    request = request_of(n=400, batch_size=6)
    rows, notes = bico.outer_rows(request, limit)
    assert np.all(np.diff(rows) > 0)
    assert request.labeled[rows].sum() == 8
    assert (~request.labeled[rows]).sum() == n_unlabeled
    stated = f"Candidates and outer loss: a seeded sample of {n_unlabeled} of 392 items."
    assert notes == (() if n_unlabeled == 392 else (stated,))


@pytest.mark.parametrize(
    ("n_candidates", "n_offered"),
    [(196, 50), (98, 25), (39, 10), (12, 10), (5, 5)],  # of 392 unlabeled rows: the share, but at least a tenth
)
def test_a_sample_has_the_share_of_candidates_that_the_pool_has_but_at_least_a_tenth(
    request_of, n_candidates, n_offered
):
    plain = request_of(n=400, batch_size=4)
    eligible = np.zeros(400, bool)
    eligible[np.flatnonzero(~plain.labeled)[:n_candidates]] = True
    request = replace(plain, eligible=eligible)
    rows, _ = bico.outer_rows(request, 100)
    assert eligible[rows].sum() == n_offered
    assert (~plain.labeled[rows]).sum() == 100


def test_ranks_count_all_unlabeled_rows_and_picks_are_numbered_from_one(request_of):
    plain = request_of()
    request = replace(plain, eligible=plain.eligible & (np.arange(120) % 3 == 0))
    config = SelectionConfig(n_views=3)
    found = bico.select(request, config)
    rows = np.array([int(np.flatnonzero(request.item_ids == item)[0]) for item in found.item_ids])
    base, targets = bico.base_rows(request, config, request.features)
    settings = bilevel.Settings(candidates=request.eligible & ~request.labeled, keep_scores=True)
    path = bilevel.greedy(
        base, targets, request.features, request.probabilities, 6, config.penalty, request.view_features, settings
    )
    np.testing.assert_array_equal(rows, path.rows)
    unlabeled = ~request.labeled
    first = path.all_scores[0]
    for k, reason in enumerate(found.reasons):
        others = unlabeled.copy()
        others[rows[:k]] = False
        assert reason.order == k + 1
        assert reason.gradient_rank == 1 + int((path.all_scores[k][others] > path.all_scores[k][rows[k]]).sum())
        assert reason.first_gradient_rank == 1 + int((first[unlabeled] > first[rows[k]]).sum())
    assert any(reason.gradient_rank > 1 for reason in found.reasons), "rows that may not be chosen are ranked too"


def test_two_classes_are_searched_and_one_class_is_covered_by_a_design(request_of):
    two = bico.select(request_of(n_classes=2), SelectionConfig())
    assert not any("design" in note for note in two.notes) and len(two.reasons) == 6
    one = bico.select(request_of(n_classes=1), SelectionConfig())
    assert one.notes[0].startswith("There is only one class: the batch is a Bayesian V-optimal design")
    assert one.reasons == ()


def test_a_search_on_a_sample_uses_the_features_of_the_sampled_rows(request_of):
    request = request_of(n=400, batch_size=4)
    config = SelectionConfig(n_views=3, max_candidates=100)
    rows, _ = bico.outer_rows(request, 100)
    base, targets = bico.base_rows(request, config, request.features)
    settings = bilevel.Settings(candidates=(request.eligible & ~request.labeled)[rows])
    path = bilevel.greedy(
        base,
        targets,
        request.features[rows],
        request.probabilities[rows],
        4,
        config.penalty,
        views=lambda place: request.view_features(int(rows[place])),
        settings=settings,
    )
    np.testing.assert_array_equal(bico.select(request, config).item_ids, request.item_ids[rows[path.rows]])


@pytest.mark.parametrize("width", [0, 5])
def test_a_cold_start_without_any_feature_still_gives_a_batch(cold_request_of, width):
    request = cold_request_of(features=np.zeros((120, width), np.float32))
    found = bico.select(request, SelectionConfig())
    assert len(set(found.item_ids.tolist())) == 6
    assert found.notes[0].startswith("No model yet")
    one = cold_request_of(features=np.r_[np.ones(60), -np.ones(60)].astype(np.float32)[:, None])
    sides = {int(np.flatnonzero(one.item_ids == item)[0]) < 60 for item in bico.select(one, SelectionConfig()).item_ids}
    assert sides == {True, False}, "one feature is enough for a design"


def test_a_cold_start_considers_at_most_its_number_of_rows(cold_request_of, monkeypatch):
    monkeypatch.setattr(bico, "COLD_ROWS", 70)
    notes = bico.select(cold_request_of(), SelectionConfig()).notes
    assert "Candidates and outer loss: a seeded sample of 70 of 120 items." in notes
    monkeypatch.undo()
    fewer = bico.select(cold_request_of(), SelectionConfig(max_candidates=100)).notes
    assert "Candidates and outer loss: a seeded sample of 100 of 120 items." in fewer


def test_rows_have_length_one_and_zero_rows_stay_zero():
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1e-6], [0.3, 0.0, 0.4]])
    expected = [[0.6, 0.8, 0], [0, 0, 0], [0, 0, 1], [0.6, 0, 0.8]]
    np.testing.assert_allclose(bico.unit_rows(rows), expected, atol=1e-6)
