"""The contract of every strategy that is listed in the registry."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from core.acquisition import catalog, registry
from core.acquisition.registry import select
from core.config import SelectionConfig
from core.errors import Cancelled, InvalidInput
from core.types import Selection, SelectionRequest

STRATEGIES = catalog.names()
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def config_of(strategy: str, **changes: object) -> SelectionConfig:
    return SelectionConfig(strategy=strategy, n_views=3, **changes)  # type: ignore[arg-type]


def rows_of(request: SelectionRequest, selection: Selection) -> np.ndarray:
    return np.array([int(np.flatnonzero(request.item_ids == i)[0]) for i in selection.item_ids])


def assert_valid(request: SelectionRequest, selection: Selection) -> None:
    rows = rows_of(request, selection)
    assert len(set(rows.tolist())) == request.batch_size == len(rows)
    assert (request.eligible & ~request.labeled)[rows].all()
    assert np.isfinite(selection.scores).all() and len(selection.scores) == len(rows)
    assert [reason.order for reason in selection.reasons] == list(range(1, len(rows) + 1))
    for reason in selection.reasons:
        for field in fields(reason):
            value = getattr(reason, field.name)
            assert value is None or np.isfinite(value)


def test_all_strategies_are_listed_with_words_for_people():
    assert set(STRATEGIES) >= {
        "uniform", "max_entropy", "margin", "k_center", "consistency", "badge",
        "k_means", "typiclust", "prob_cover", "max_herding", "uncertainty_herding", "bico", "drop_query", "tcm",
    }  # fmt: skip
    for entry in catalog.ENTRIES:
        assert entry.title and entry.description.endswith(".")
        assert callable(registry.strategy_function(entry.name))


@every_strategy
def test_picks_are_distinct_eligible_and_explained(strategy: str, request_of):
    request = request_of()
    selection = select(request, config_of(strategy))
    assert selection.strategy == strategy
    assert_valid(request, selection)
    for reason in selection.reasons:
        assert None not in (reason.guess, reason.confidence, reason.entropy, reason.nearest_labeled, reason.stands_for)
        assert reason.outer_before is not None and reason.outer_after is not None
    assert sum(reason.stands_for for reason in selection.reasons) == int((~request.labeled).sum())


@every_strategy
def test_the_same_seed_gives_the_same_batch(strategy: str, request_of):
    first, second = (select(request_of(seed=3), config_of(strategy)) for _ in range(2))
    np.testing.assert_array_equal(first.item_ids, second.item_ids)
    np.testing.assert_array_equal(first.scores, second.scores)
    assert first.reasons == second.reasons and first.notes == second.notes


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["bico", "badge", "k_means", "max_herding"])
def test_one_and_two_threads_give_the_same_batch(strategy: str, request_of):
    """Float sums may differ in the last bits between thread counts; picks on this pool do not."""
    before = torch.get_num_threads()
    try:
        batches = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            batches.append(select(request_of(), config_of(strategy)).item_ids.tolist())
    finally:
        torch.set_num_threads(before)
    assert batches[0] == batches[1]


@every_strategy
def test_the_request_is_left_unchanged(strategy: str, request_of):
    request = request_of()
    values = {field.name: getattr(request, field.name) for field in fields(request)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    before = copy.deepcopy(arrays)
    select(request, config_of(strategy))
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


@every_strategy
def test_progress_starts_at_zero_never_falls_and_completes(strategy: str, request_of):
    seen = []
    select(request_of(region=np.arange(120) < 60, region_share=0.5), config_of(strategy), seen.append)
    done = [progress.done for progress in seen]
    assert done[0] == 0 and done[-1] == 6 and done == sorted(done)
    assert {(progress.stage, progress.total) for progress in seen} == {("select", 6)}


@every_strategy
def test_a_cancelled_selection_stops(strategy: str, request_of):
    def stop(progress):
        raise Cancelled("Stopped by request.")

    with pytest.raises(Cancelled):
        select(request_of(), config_of(strategy), stop)


@every_strategy
def test_a_batch_larger_than_the_pool_is_refused_with_the_numbers(strategy: str, request_of):
    message = r"Asked for 108 items but only 107 can be selected \(8 labeled, 5 not eligible\)\. Lower the batch size"
    with pytest.raises(InvalidInput, match=message):
        select(request_of(batch_size=108), config_of(strategy))


@every_strategy
def test_the_whole_pool_can_be_requested(strategy: str, request_of):
    request = request_of(n=30, n_labeled=4, batch_size=21)
    assert_valid(request, select(request, config_of(strategy)))


@every_strategy
def test_before_the_first_model_every_strategy_has_a_batch(strategy: str, cold_request_of):
    request = cold_request_of()
    selection = select(request, config_of(strategy))
    assert_valid(request, selection)
    assert selection.reasons[0].guess is None and selection.reasons[0].nearest_labeled is None
    if "predictions" in catalog.entry(strategy).needs:
        assert selection.notes


@every_strategy
def test_labels_without_a_model_still_give_a_batch(strategy: str, cold_request_of):
    """Labels were given, but no round has run yet."""
    request = cold_request_of(n_labeled=3)
    assert_valid(request, select(request, config_of(strategy)))


@every_strategy
@pytest.mark.parametrize("n_classes", [1, 2, 200])
def test_one_two_and_two_hundred_classes_work(strategy: str, n_classes: int, request_of):
    request = request_of(n=40, n_classes=n_classes, batch_size=3, n_labeled=2)
    assert_valid(request, select(request, config_of(strategy)))


@every_strategy
def test_one_label_works(strategy: str, request_of):
    """One label, one class with a single example."""
    request = request_of(n_labeled=1)
    assert_valid(request, select(request, config_of(strategy)))


@every_strategy
def test_equal_items_are_not_both_chosen_while_others_remain(strategy: str, request_of):
    request = request_of(n=30, n_labeled=0)
    twice = {name: np.concatenate([getattr(request, name)] * 2) for name in ("probabilities", "embeddings", "features")}
    doubled = request_of(
        n=60,
        labeled=np.arange(60) % 30 < 2,
        eligible=np.arange(60) % 30 >= 2,
        batch_size=28,
        view_features=None,
        view_probabilities=np.concatenate([request.view_probabilities] * 2, 1),
        **twice,
    )
    rows = rows_of(doubled, select(doubled, config_of(strategy, near_duplicate=0.0)))
    assert len({int(row) % 30 for row in rows}) == 28


@every_strategy
def test_rank_one_features_and_constant_predictions_do_not_fail(strategy: str, request_of):
    """Duplicate rows in the kernel."""
    request = request_of()
    flat = replace(
        request,
        features=np.ones_like(request.features),
        embeddings=np.ones_like(request.embeddings),
        probabilities=np.full_like(request.probabilities, 0.25),
        view_probabilities=np.full_like(request.view_probabilities, 0.25),
        view_features=None,
    )
    selection = select(flat, config_of(strategy))
    assert_valid(flat, selection)
    assert any("near-duplicates were chosen" in note for note in selection.notes)


@every_strategy
def test_a_region_gets_its_share_or_the_whole_batch_on_request(strategy: str, request_of):
    region = np.arange(120) % 4 == 0
    part = request_of(region=region, region_share=0.5)
    selection = select(part, config_of(strategy))
    assert region[rows_of(part, selection)[:3]].all()
    assert_valid(part, selection)
    whole = request_of(region=region)
    assert region[rows_of(whole, select(whole, config_of(strategy)))].all()


@every_strategy
def test_numbers_that_are_not_finite_are_refused(strategy: str, request_of):
    request = request_of()
    features = request.features.copy()
    features[3, 2] = np.nan
    with pytest.raises(InvalidInput, match="features contain values that are not finite"):
        select(replace(request, features=features), config_of(strategy))


def test_an_unknown_strategy_is_refused_with_the_known_ones(request_of):
    with pytest.raises(InvalidInput, match=r"no strategy 'best'.*bico"):
        select(request_of(), config_of("best"))


def test_a_region_too_small_for_the_batch_is_refused_with_the_numbers(request_of):
    region = np.zeros(120, bool)
    region[np.flatnonzero(request_of().eligible)[:4]] = True
    with pytest.raises(InvalidInput, match="Asked for 6 items from a region where only 4 can be selected"):
        select(request_of(region=region), config_of("uniform"))
