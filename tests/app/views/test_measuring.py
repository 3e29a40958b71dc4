"""The accuracy on drawn test items: the same items for every round, and a forecast with valid intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from app.cli.main import main
from app.views.figures.charts import wilson
from app.views.forecasts import forecast
from app.views.measuring import effective_size, measure, needed_items
from app.views.measuring_words import forecast_sentence
from storage.database.store import Store
from storage.labeling.test_sets import draw_test_set, own_test_items
from storage.rounds.log import RoundLog
from tests.app.real_rounds import quick_settings, run_round_here
from tests.round_pools import draw_project


@pytest.mark.parametrize(("half", "expected"), [(0.1, 0.5), (0.05, 0.5), (0.05, 0.9), (0.03, 0.8)])
def test_needed_items_is_the_smallest_number_with_that_interval(half, expected):
    n = needed_items(half, expected)
    low, high = wilson(round(expected * n), n)
    assert (high - low) / 2 <= half
    around = [wilson(round(expected * k), k) for k in range(max(n - 3, 1), n)]
    assert any((one[1] - one[0]) / 2 > half for one in around)


def curve(labels, errors, n=400, seed=0):
    """(n, rounds) correctness of items with a fixed difficulty: as in real rounds, the same items stay wrong."""
    difficulty = np.random.default_rng(seed).random(n)
    return np.array(labels), np.stack([difficulty >= error for error in errors], 1)


def test_the_effective_size_of_groups_has_students_quantile_for_their_number():
    """Three groups of four, each all right or all wrong: computed by hand from the formulas of the docstring, with the
    quantile of scipy.stats."""
    groups, correct = np.repeat([7, 8, 9], 4), np.repeat([True, True, False], 4)
    p, k = 2 / 3, 3.0
    variance = k / (k - 1) * (2 * (4 - 4 * p) ** 2 + (4 * p) ** 2) / 12**2
    expected = p * (1 - p) / variance * (1.96 / stats.t.ppf(0.975, k - 1)) ** 2
    assert effective_size(correct, groups) == pytest.approx(max(1.0, expected), rel=1e-9)
    many = np.repeat(np.arange(30), 2)
    share = (1.96 / stats.t.ppf(0.975, 29)) ** 2
    assert effective_size(np.ones(60, bool), many) == pytest.approx(30 * share, rel=1e-9)


def test_a_power_law_is_continued_to_where_it_reaches_the_target():
    labels = [20, 40, 80, 160]
    found = forecast(*curve(labels, [0.4 * (20 / one) ** 0.5 for one in labels], n=4_000), 0.9)
    assert found is not None and found.low is not None and found.more is not None and found.high is not None
    exact = 20 * (0.4 / 0.1) ** 2 - 160
    assert found.low <= exact <= found.high and abs(found.more - exact) < 0.25 * exact and not found.reached


def test_the_interval_of_a_forecast_covers_the_exact_number_at_about_the_stated_rate():
    labels, hits = [20, 40, 80, 160], 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        rates = np.array([0.4 * (20 / one) ** 0.5 for one in labels])
        correct = rng.random(150)[:, None] >= rates
        found = forecast(np.array(labels), correct, 0.9, seed)
        assert found is not None
        hits += (found.low or 0) <= 160 and (found.high is None or found.high >= 160)
    assert 0.68 <= hits / 120 <= 0.95


def test_a_forecast_can_have_no_upper_end_and_needs_enough_rounds_and_items():
    flat = forecast(*curve([20, 40, 80], [0.3, 0.29, 0.3]), 0.95)
    assert flat is not None and flat.high is None and "95 %" in forecast_sentence(flat, 400)
    assert forecast(*curve([20, 40], [0.3, 0.2]), 0.95) is None, "two rounds"
    assert forecast(*curve([20, 40, 80], [0.3, 0.2, 0.1], n=29), 0.95) is None, "29 items"
    reached = forecast(*curve([20, 40, 80], [0.3, 0.2, 0.01]), 0.95)
    assert reached is not None and reached.reached and reached.more == 0


@pytest.mark.slow
def test_every_round_is_measured_on_the_same_items_by_the_network_alone(tmp_path, monkeypatch, one_thread, capsys):
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)
    with Store.open(home=tmp_path / "home") as store:
        drawn = draw_project(store, 48)
        drawn.label(drawn.item_ids[:9])
        run_round_here(store, drawn.project_id, quick_settings(image_size=16))
        assert measure(store, drawn.project_id) is None
        draw_test_set(store, drawn.project_id, 15, seed=4)
        tests = own_test_items(store, drawn.project_id).item_ids.tolist()
        row = run_round_here(store, drawn.project_id, quick_settings(image_size=16, seed=1))
        picks = [pick.item_id for pick in RoundLog(store, drawn.project_id).picks(row.id)]
        assert not set(picks) & set(tests)
        drawn.label(tests)
        found = measure(store, drawn.project_id)
        assert found is not None and [one.inductive for one in found.rounds] == [False, True]
        log = RoundLog(store, drawn.project_id)
        stored = np.asarray(log.arrays(row.id, "test_item_ids"))
        assert stored.tolist() == tests, "the round predicted them before they had a label"
        predicted = np.asarray(log.arrays(row.id, "test_predictions")).argmax(1)
        right = sum(int(p) == drawn.truth[item] for p, item in zip(predicted, tests, strict=True))
        assert (found.rounds[1].accuracy.correct, found.rounds[1].accuracy.n) == (right, 15)
        assert found.n_labeled == 15 and found.n_waiting == 0 and found.forecast(0.9) is None
    capsys.readouterr()
    assert main(["measure", "shapes", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rounds"][1]["correct"] == right and printed["rounds"][1]["low"] < printed["rounds"][1]["high"]
