"""Two rounds compared: the paired statistics against independent ones, and the results of real rounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from app.cli.main import main
from app.views.predictions import predictions_of
from core.errors import Conflict, Forbidden, InvalidInput, NotFound
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.classes import merge_classes
from storage.projects.roles import Actor, acting_as
from storage.rounds.diff import compare_rounds, exact_mcnemar, paired_accuracy
from storage.rounds.names import find_round, round_names, set_round_name
from tests.app.real_rounds import copied_store, quick_settings, run_round_here
from tests.round_pools import draw_project

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 5), (3, 9), (40, 41), (700, 900)])
def test_the_p_value_is_that_of_the_exact_binomial_test(b, c):
    wanted = binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert exact_mcnemar(b, c) == pytest.approx(wanted, rel=1e-9)


def test_the_interval_covers_the_true_difference_in_19_of_20_samples():
    rng = np.random.default_rng(0)
    shares = np.array([0.6, 0.05, 0.12, 0.23])  # both correct, only the first, only the second, none
    covered = 0
    for _ in range(2_000):
        kind = rng.choice(4, size=120, p=shares)
        low, high = paired_accuracy(kind <= 1, (kind == 0) | (kind == 2)).interval
        covered += low <= shares[2] - shares[1] <= high
    assert 0.935 <= covered / 2_000 <= 0.975


def test_a_pairing_that_agrees_has_a_narrower_interval_than_one_that_does_not():
    first = np.arange(100) < 80
    same = paired_accuracy(first, first).interval
    other = paired_accuracy(first, np.roll(first, 50)).interval
    assert same[1] - same[0] < other[1] - other[0]


@pytest.fixture(scope="module")
def made_rounds(tmp_path_factory):
    """A store with two finished rounds, run once."""
    template = tmp_path_factory.mktemp("rounds") / "home"
    with Store.open(home=template) as store:
        drawn = draw_project(store, 36, n_held_out=9)
        drawn.label(drawn.item_ids[9:15])
        first = run_round_here(store, drawn.project_id, quick_settings(image_size=16, steps=2))
        drawn.label(drawn.item_ids[15:24])
        second = run_round_here(store, drawn.project_id, quick_settings(seed=7, image_size=16, steps=20))
    return template, drawn, first, second


@pytest.fixture
def two_rounds(made_rounds, tmp_path):
    template, drawn, first, second = made_rounds
    with copied_store(template, tmp_path / "home") as store:
        yield drawn.in_store(store), first, second


def test_real_rounds_are_compared_on_the_same_test_items(two_rounds):
    drawn, first, second = two_rounds
    found = compare_rounds(drawn.store, drawn.project_id, first, second)
    a, b = (np.asarray(predictions_of(drawn.store, row).probabilities).argmax(1) for row in (first, second))
    assert found.accuracy.n == 9 and found.accuracy.first / 9 == pytest.approx(first.metrics["accuracy"])
    assert found.accuracy.second / 9 == pytest.approx(second.metrics["accuracy"])
    open_rows = [*range(9), *range(24, 36)]
    assert found.n_compared == len(open_rows) and found.n_changed == int((a != b)[open_rows].sum())
    assert sum(count for _, _, count in found.changes) == found.n_changed
    assert [(one.name, one.n) for one in found.per_class] == [("bars", 3), ("blobs", 3), ("checks", 3)]
    assert sum(one.second for one in found.per_class) == found.accuracy.second
    assert found.settings["seed"] == (0, 7) and found.settings["training.steps"] == (2, 20)
    assert found.n_labeled == (6, 15)


def test_the_diff_command_takes_numbers_and_names(two_rounds, monkeypatch, capsys):
    drawn, first, _ = two_rounds
    monkeypatch.setenv("WINNOW_HOME", str(drawn.store.home))
    set_round_name(drawn.store, drawn.project_id, first.id, "baseline")
    assert main(["diff", "shapes", "baseline", "2"]) == 0
    printed = capsys.readouterr().out
    assert "Round 1 (baseline) -> round 2" in printed and "the same 9 items" in printed and "exact McNemar" in printed
    assert main(["diff", "shapes", "baseline", "5"]) == 1
    assert "There is no round '5'" in capsys.readouterr().err


def test_a_merged_class_counts_as_the_class_it_was_merged_into(two_rounds):
    drawn, first, second = two_rounds
    merge_classes(drawn.store, drawn.project_id, drawn.classes[1], drawn.classes[0])
    found = compare_rounds(drawn.store, drawn.project_id, first, second)
    assert [(one.name, one.n) for one in found.per_class] == [("bars", 6), ("checks", 3)]


def test_a_round_without_a_model_is_refused(sqlite_store):
    drawn = draw_project(sqlite_store, 12)
    row = run_round_here(sqlite_store, drawn.project_id, quick_settings(image_size=16))
    with pytest.raises(InvalidInput, match="Round 1 has no predictions"):
        compare_rounds(sqlite_store, drawn.project_id, row, row)


def test_names_are_unique_and_can_be_removed(two_rounds):
    drawn, first, second = two_rounds
    store, project = drawn.store, drawn.project_id
    assert set_round_name(store, project, first.id, "  with  noise ") == "with noise"
    assert round_names(store, project) == {first.id: "with noise"}
    assert find_round(store, project, "with noise").id == first.id == find_round(store, project, "1").id
    with pytest.raises(Conflict, match="Another round"):
        set_round_name(store, project, second.id, "with noise")
    with pytest.raises(InvalidInput, match="is a number"):
        set_round_name(store, project, second.id, "3")
    with pytest.raises(InvalidInput, match="60"):
        set_round_name(store, project, second.id, "x" * 61)
    with pytest.raises(NotFound):
        set_round_name(store, project, 999, "other")
    assert set_round_name(store, project, first.id, "") == "" and round_names(store, project) == {}
    assert Pool(store, project).counts().total == 36


def test_a_viewer_reads_names_and_cannot_change_them(two_rounds):
    drawn, first, _ = two_rounds
    set_round_name(drawn.store, drawn.project_id, first.id, "kept")
    with acting_as(Actor(drawn.annotator, ceiling="viewer")):
        assert round_names(drawn.store, drawn.project_id) == {first.id: "kept"}
        with pytest.raises(Forbidden):
            set_round_name(drawn.store, drawn.project_id, first.id, "changed")
    assert round_names(drawn.store, drawn.project_id) == {first.id: "kept"}
