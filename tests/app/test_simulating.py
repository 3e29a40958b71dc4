"""Simulations as people run them: results on disk as they come, going on, and an honest summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.simulating import Question, ResultsFile, record_from, simulate
from app.study_report import labels_to_reach, reach_table, summarize, table, write_report
from core.errors import Conflict, InvalidInput
from core.simulation import Plan, RoundRecord
from tests.app.worker_processes import quick_config
from tests.round_pools import NAMES, picture


def record(strategy: str, seed: int, number: int, accuracy: float) -> RoundRecord:
    return RoundRecord(
        strategy=strategy,
        seed=seed,
        round=number,
        n_labels=10 + 10 * number,
        accuracy=accuracy,
        wrong_guesses=4,
        seconds={"train": 2.0 + number},
        picks=("a",) * 10 if number < 2 else (),
    )


RECORDS = [
    record("bico", 0, 0, 0.5), record("bico", 0, 1, 0.8), record("bico", 0, 2, 0.95),
    record("bico", 1, 0, 0.7), record("bico", 1, 1, 0.92), record("bico", 1, 2, 0.93),
    record("uniform", 0, 0, 0.5), record("uniform", 0, 1, 0.6), record("uniform", 0, 2, 0.7),
]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Class folders with a test split."""
    folder = tmp_path / "shapes"
    for number in range(36):
        split = "test" if number < 9 else "train"
        place = folder / split / NAMES[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(picture(number % 3, number))
    return folder


def question(data: Path, **changes) -> Question:
    values = {"data": str(data), "strategies": ("margin",), "seeds": (0,), "plan": Plan(start=3, batch=2, rounds=1)}
    return Question(**(values | {"config": quick_config()} | changes))


@pytest.mark.slow
def test_a_simulation_writes_as_it_goes_and_is_not_computed_twice(data, tmp_path):
    out = tmp_path / "out"
    first = simulate(question(data), out, processes=1)
    assert [(one.n_labels, len(one.picks)) for one in first] == [(3, 2), (5, 0)]
    stored = json.loads((out / "results.json").read_text())
    assert [record_from(values) for values in stored["records"]] == first
    seen = []
    again = simulate(question(data), out, processes=1, report=seen.append)
    assert again == first
    assert [(one.done, one.total) for one in seen] == [(2, 2)]


def test_results_of_another_question_are_not_overwritten(data, tmp_path):
    kept = ResultsFile(tmp_path, question(data))
    kept.add(RECORDS[0])
    with pytest.raises(Conflict, match="another question"):
        ResultsFile(tmp_path, question(data, plan=Plan(start=4, batch=2, rounds=1)))
    more = ResultsFile(tmp_path, question(data, strategies=("margin", "bico"), seeds=(0, 1)))
    assert more.of_trial("bico", 0) == [RECORDS[0]]


def test_the_summary_has_means_deviations_and_what_was_asked():
    found = summarize(RECORDS)
    assert found["accuracy"]["bico"] == {"10": 0.6, "20": 0.86, "30": 0.94}
    assert found["deviation"]["bico"]["10"] == pytest.approx(0.14142, abs=1e-5)
    assert found["n_seeds"] == {"bico": 2, "uniform": 1}
    assert found["wrong_guess_share"]["bico"] == pytest.approx(24 / 40)
    assert found["seconds_per_round"]["bico"] == {"train": 3.0}


def test_labels_to_reach_a_goal_are_counted_per_seed():
    assert labels_to_reach(RECORDS, "bico", 0.9) == {"mean": 25.0, "reached": 2, "seeds": 2}
    assert labels_to_reach(RECORDS, "uniform", 0.9) == {"mean": None, "reached": 0, "seeds": 1}


def test_the_tables_are_in_the_papers_form():
    lines = table(summarize(RECORDS)).splitlines()
    assert lines[0] == "| strategy | 10 labels | 20 labels | 30 labels |"
    assert lines[2] == "| bico | 60.0 ± 14.1 | 86.0 ± 8.5 | 94.0 ± 1.4 |"
    assert "| uniform | not reached | 0 of 1 |" in reach_table(summarize(RECORDS))


def test_the_report_leaves_tables_and_curves(tmp_path, monkeypatch):
    def no_browser(*arguments, **named):
        raise OSError("there is no browser to draw with")

    monkeypatch.setattr("plotly.graph_objects.Figure.write_image", no_browser)
    found = write_report(RECORDS, tmp_path)
    assert found["files"] == ["results.json", "tables.md", "curves.html"]
    assert "not drawn" in found["png"]
    assert "bico" in (tmp_path / "curves.html").read_text()


def test_a_data_set_without_files_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidInput, match="No audio or image"):
        simulate(question(empty), tmp_path / "out", processes=1)
