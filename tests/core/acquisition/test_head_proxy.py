"""bico on frozen features: the expected loss against brute-force retraining, and its form in requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.acquisition.registry import select
from core.acquisition.strategies import bico, drop_query, tcm
from core.acquisition.strategies.bico import HEAD_PRIOR, head_features, head_weights
from core.config import SelectionConfig, from_dict
from core.coresets.design import Prior
from core.types import SelectionRequest

HEAD = SelectionConfig(proxy="head", uncertainty_power=1.0, near_duplicate=0.0)


def with_graph(request: SelectionRequest) -> SelectionRequest:
    draw = np.random.default_rng(5).normal(size=(len(request.item_ids), 7)).astype(np.float32)
    return replace(request, similarity_features=lambda: draw)


def test_the_score_is_the_mean_decrease_of_the_error_over_possible_labels_when_the_model_is_retrained(request_of):
    """Monte Carlo: parameters from the prior, noisy labels, and a model fitted with and without the candidate."""
    request = with_graph(request_of(n=40, n_labeled=4, batch_size=1))
    rows = np.arange(len(request.item_ids))
    z = head_features(request, rows).astype(np.float64)
    weights = head_weights(request, HEAD, rows)
    labeled, q = np.flatnonzero(request.labeled), z.shape[1]
    candidate = int(np.flatnonzero(request.item_ids == select(request, HEAD).item_ids[0])[0])
    draw = np.random.default_rng(0)
    theta = draw.normal(size=(q, 40_000)) / HEAD_PRIOR.penalty**0.5

    def weighted_error(given: np.ndarray) -> np.ndarray:
        x = z[given]
        answers = x @ theta + HEAD_PRIOR.noise**0.5 * noise[given]
        fitted = np.linalg.solve(x.T @ x / HEAD_PRIOR.noise + HEAD_PRIOR.penalty * np.eye(q), x.T @ answers)
        return weights @ np.square(z @ (fitted / HEAD_PRIOR.noise - theta)) / weights.sum()

    noise = draw.normal(size=(len(z), theta.shape[1]))
    decrease = weighted_error(labeled) - weighted_error(np.append(labeled, candidate))
    error = decrease.std() / len(decrease) ** 0.5
    score = float(select(request, HEAD).scores[0])
    assert abs(decrease.mean() - score) < 4 * error and error < 0.1 * score


def test_the_pick_is_the_best_of_all_candidates_by_dense_algebra(request_of):
    request = with_graph(request_of(n=30, n_labeled=5, batch_size=1))
    z = head_features(request, np.arange(30)).astype(np.float64)
    weights = head_weights(request, HEAD, np.arange(len(z)))

    def variance(given: np.ndarray) -> float:
        information = HEAD_PRIOR.penalty * np.eye(z.shape[1]) + z[given].T @ z[given] / HEAD_PRIOR.noise
        return float(weights @ (z * np.linalg.solve(information, z.T).T).sum(1) / weights.sum())

    labeled = np.flatnonzero(request.labeled)
    candidates = np.flatnonzero(request.eligible & ~request.labeled)
    after = [variance(np.append(labeled, row)) for row in candidates]
    found = select(request, HEAD)
    assert int(found.item_ids[0]) == int(request.item_ids[candidates[int(np.argmin(after))]])
    assert found.reasons[0].outer_before == pytest.approx(variance(labeled), rel=1e-4)
    assert found.reasons[0].outer_after == pytest.approx(min(after), rel=1e-4)


def test_features_join_embedding_and_graph_with_equal_shares(request_of):
    for request in (request_of(), with_graph(request_of())):
        rows = np.arange(10, 90)
        joined = head_features(request, rows)
        own = request.embeddings.shape[1]
        np.testing.assert_allclose(np.square(joined[:, :own]).sum(1), 0.5, rtol=1e-5)
        np.testing.assert_allclose(np.square(joined[:, own:]).sum(1), 0.5, rtol=1e-5)


def test_certain_pools_have_equal_weights_and_a_batch(request_of):
    request = request_of()
    certain = replace(request, probabilities=np.eye(4, dtype=np.float32)[request.probabilities.argmax(1)])
    np.testing.assert_array_equal(head_weights(certain, HEAD, np.arange(5)), np.ones(5))
    assert len(select(certain, HEAD).item_ids) == request.batch_size


def test_uncertain_regions_are_preferred(request_of):
    """Two equal groups, one of them certain: all picks are from the other."""
    request = request_of(n=120, n_labeled=8)
    sure = request.embeddings[:, 0] > np.median(request.embeddings[:, 0])
    P = np.where(sure[:, None], np.eye(4)[0], np.full(4, 0.25)).astype(np.float32)
    P[request.labeled] = request.probabilities[request.labeled]
    split = np.where(sure[:, None], request.embeddings * [[1, 0] * 5], request.embeddings * [[0, 1] * 5])
    found = select(replace(request, probabilities=P, embeddings=split.astype(np.float32)), HEAD)
    rows = [int(np.flatnonzero(request.item_ids == i)[0]) for i in found.item_ids]
    assert not sure[rows].any()


def test_without_a_graph_the_proxy_of_the_laptop_is_the_head_and_with_one_the_graph(request_of, cold_request_of):
    request, cold, laptop = request_of(), cold_request_of(), replace(HEAD, proxy="similarity-head")
    for own, proxy in ((request, "head"), (with_graph(request), "similarity"), (cold, "kernel")):
        assert bico.proxy_of(own, laptop) == proxy
        expected, found = (select(own, replace(HEAD, proxy=name)) for name in (proxy, "similarity-head"))
        np.testing.assert_array_equal(found.item_ids, expected.item_ids)
        assert found.reasons == expected.reasons and found.notes == expected.notes
    stored = replace(HEAD, proxy="similarity")  # rounds of earlier versions
    np.testing.assert_array_equal(
        select(request, stored).item_ids, select(request, replace(HEAD, proxy="kernel")).item_ids
    )


def test_other_strategies_have_the_variance_as_outer_loss(request_of):
    reasons = select(request_of(), replace(HEAD, strategy="uniform")).reasons
    assert all(reason.outer_after < reason.outer_before for reason in reasons)


def test_before_the_first_model_the_design_uses_the_features_of_the_encoder(request_of):
    cold = request_of(has_model=False, n_labeled=1)
    cold = replace(cold, labeled=np.zeros_like(cold.labeled), eligible=np.ones_like(cold.labeled))
    empty = replace(cold, features=np.zeros((len(cold.item_ids), 0), np.float32))
    assert len(set(select(empty, HEAD).item_ids.tolist())) == empty.batch_size


def test_stored_settings_keep_their_proxy():
    assert from_dict(SelectionConfig, {"proxy": "alike", "doubt": 1.0}).proxy == "similarity"
    assert SelectionConfig().proxy == "kernel"


def test_the_linear_classifier_of_drop_query_is_the_head_itself():
    draw = np.random.default_rng(0)
    x, W = torch.from_numpy(draw.normal(size=(200, 6))), torch.from_numpy(draw.normal(size=(6, 3)))
    found = drop_query.linear_classifier(x, torch.softmax(x @ W, 1))
    np.testing.assert_allclose(found[:6], W - W.mean(1, keepdim=True), atol=0.02)


def test_drop_query_counts_changed_predictions():
    x = torch.tensor([[5.0] * 40, [0.01] + [0.0] * 39], dtype=torch.float64)
    weights = torch.zeros(41, 2, dtype=torch.float64)
    weights[:40, 0] = 1.0  # class 0 by the sum of all features: robust for row 0
    weights[40, 1] = 0.005  # class 1 as soon as the only feature of row 1 is dropped
    changed = np.stack(
        [drop_query.changed_predictions(x, weights, np.random.default_rng(seed)).numpy() for seed in range(200)]
    )
    assert (changed[:, 0] == 0).all()
    assert abs(changed[:, 1].mean() / drop_query.DRAWS - drop_query.DROPOUT) < 0.05


def test_tcm_changes_from_typiclust_to_margin_with_the_labels(request_of):
    few = request_of(n_labeled=tcm.SWITCH * 4 - 1)
    many = request_of(n_labeled=tcm.SWITCH * 4)
    for request, other in ((few, "typiclust"), (many, "margin")):
        same = SelectionConfig(strategy=other)
        np.testing.assert_array_equal(
            select(request, replace(same, strategy="tcm")).item_ids, select(request, same).item_ids
        )


def test_the_old_proxies_are_unchanged_by_the_new_one(request_of):
    request = request_of()
    for proxy in ("kernel", "embedding"):
        config = SelectionConfig(proxy=proxy)  # type: ignore[arg-type]
        assert bico.select(request, config).reasons[0].gradient_rank == 1


def test_a_calibrated_head_weights_the_pool_as_the_head_itself(request_of):
    """The benchmark has no calibration; a round corrects the confidence that it shows."""
    request, rows = request_of(n=30, n_labeled=5, batch_size=1), np.arange(30)
    logits = np.log(np.maximum(request.probabilities, 1e-9))
    softer = np.exp(logits / 2.5)
    softer /= softer.sum(1, keepdims=True)
    calibrated = replace(request, probabilities=softer.astype(np.float32), temperature=2.5)
    np.testing.assert_allclose(head_weights(calibrated, HEAD, rows), head_weights(request, HEAD, rows), atol=1e-4)
    assert not np.allclose(
        head_weights(replace(calibrated, temperature=1.0), HEAD, rows), head_weights(request, HEAD, rows)
    )


def test_items_that_may_not_be_chosen_are_not_picked(request_of):
    request = request_of()
    first = bico.select(request, HEAD).item_ids
    eligible = request.eligible & ~np.isin(request.item_ids, first)
    second = bico.select(replace(request, eligible=eligible), HEAD).item_ids
    assert len(second) == len(first) and not set(first.tolist()) & set(second.tolist())
    assert eligible[np.isin(request.item_ids, second)].all()


def test_the_priors_are_those_with_which_the_method_was_measured():
    assert Prior(penalty=1.0, noise=1.0) == HEAD_PRIOR
    assert Prior(penalty=1.0, noise=0.01) == bico.COLD_PRIOR
