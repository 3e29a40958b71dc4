"""Simulations on the command line: results are stored while they are computed; resuming; the summary."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.simulation.dataset import open_study
from app.simulation.local_runner import is_blocked, shared_tasks, simulate
from app.simulation.report import labels_to_reach, reach_table, summarize, table, tables, write_report
from app.simulation.results import Question, ResultsFile, merge, read_results, record_from
from app.simulation.settings import change_settings, hard_cases, preset_for_this_machine
from app.simulation.trial_process import Task
from core.config import LabelsConfig, SimilarityConfig, preset
from core.errors import Conflict, InvalidInput
from core.rounds.simulation_plan import Plan, RoundRecord
from core.types import Progress
from tests.app.worker_processes import quick_config, until
from tests.round_pools import NAMES, picture

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


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
@pytest.mark.timeout(900)
def test_a_killed_simulation_resumes_from_its_records(data, tmp_path):
    """kill -9 after the first record: its processes end with it; the next run computes the rest, seeds in parallel, and
    its last line is JSON; a third run computes nothing. (tests/core checks that resumed trials have the same
    result.)"""
    out = tmp_path / "out"
    options = [
        "--strategy=margin", "--strategy=uniform", "--start=3", "--batch=2", "--rounds=1", "--seeds=2",
        "--preset=smoke", f"--out={out}", "--set=training.steps=8", "--set=training.warm_steps=4",
        "--set=media.image_size=8", "--set=kernel.network=fnn", "--set=kernel.n_landmarks=12", "--json", str(data),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WINNOW_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "app", "simulate", *options]
    first = subprocess.Popen([*command, "--processes=1"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    until(lambda: (out / "results.json").exists() and read_results(out / "results.json")["records"], 400)
    children = workers_of(first.pid)
    first.kill()
    first.wait(180)
    until(lambda: not any(is_running(pid) for pid in children), 180, "the end of its processes")
    begun = read_results(out / "results.json")["records"]
    assert len(children) == 1 and 1 <= len(begun) < 8

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=400)
    output = json.loads(done.stdout.splitlines()[-1])
    assert list(output["accuracy"]) == ["margin", "uniform"] and set(output["accuracy"]["margin"]) == {"3", "5"}
    stored = read_results(out / "results.json")
    assert [one for one in stored["records"] if one in begun] == begun
    assert set(stored["records"][0]["seconds"]) == {"prepare", "train", "predict", "propagate", "features", "select"}
    asked = Question.from_dict(stored["question"])
    for seed in (0, 1):
        starts = [one for one in stored["records"] if (one["round"], one["seed"]) == (0, seed)]
        assert len(starts) == 2 and len({(one["accuracy"], one["seconds"]["train"]) for one in starts}) == 1
    assert stored["machine"]["processes"] == min(2, os.cpu_count() or 1)
    seen: list[Progress] = []
    assert len(simulate(asked, out, report=seen.append)) == 8
    assert [(one.done, one.total) for one in seen] == [(8, 8)]


def workers_of(pid: int) -> list[int]:
    """Children that work on tasks, by the kernel's own list."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in listed if "app.simulation.trial_process" in Path(f"/proc/{one}/cmdline").read_text()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_parts_that_run_side_by_side_share_one_file(data, tmp_path):
    """Two runs that each compute a part write into one folder; neither loses the other's results. Parts in separate
    folders are merged."""
    one = ResultsFile(tmp_path / "both", question(data, strategies=("bico",)))
    other = ResultsFile(tmp_path / "both", question(data, strategies=("uniform",), seeds=(1,)))
    one.add(RECORDS[0])
    other.add(RECORDS[6])
    one.add(RECORDS[1])
    stored = read_results(tmp_path / "both" / "results.json")
    assert [record_from(values) for values in stored["records"]] == [RECORDS[0], RECORDS[1], RECORDS[6]]
    assert (stored["question"]["strategies"], stored["question"]["seeds"]) == (["bico", "uniform"], [0, 1])
    ResultsFile(tmp_path / "a", question(data)).write(RECORDS[:2])
    ResultsFile(tmp_path / "b", question(data)).write(RECORDS[2:4])
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "whole") == RECORDS[:4]


def test_trials_wait_for_what_they_share_and_for_nothing_else(data):
    asked = question(data, strategies=("margin", "bico"), seeds=(0, 1))
    trials = [Task("trial", seed, strategy) for strategy, seed in asked.trials]
    shared = shared_tasks(asked, Path("nowhere"), trials)
    assert shared == [Task("pool", 0), Task("start", 0), Task("start", 1)]
    assert not any(is_blocked(task, shared, False) for task in shared)
    assert all(is_blocked(task, [Task("pool", 0)], False) for task in trials)
    assert [is_blocked(task, [Task("start", 1)], False) for task in trials] == [False, False, True, True]
    assert [is_blocked(task, [Task("pool", 1)], True) for task in trials] == [False, False, True, True]
    once = dataclasses.replace(asked, plan=Plan(rounds=0))
    assert shared_tasks(once, Path("nowhere"), trials[:2]) == [Task("start", 0)]


def test_data_that_changed_since_a_simulation_began_is_refused(data, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    open_study(question(data), out).store.close()
    (out / "pool.txt").write_text("something else")
    with pytest.raises(Conflict, match="changed since this simulation started"):
        open_study(question(data), out)


def test_settings_are_changed_by_name_and_checked(data):
    found = change_settings(preset("smoke"), ["training.steps=1500", "training.augment=false", "training.align=off"])
    assert (found.training.steps, found.training.augment, found.training.align) == (1500, False, "off")
    assert found.kernel == preset("smoke").kernel
    for wrong, output in (
        ("steps=3", "write it like"), ("nothing.steps=3", "no section"), ("training.stepz=3", "Unknown settings"),
        ("training.steps=many", "must be of type int"), ("training.steps=-1", "negative"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=output):
            change_settings(preset("smoke"), [wrong])
    assert hard_cases(0.1, "a=b=0.05", "x") == {
        "wrong_share": 0.1, "missing_class": "x", "rare_class": "a=b", "rare_share": 0.05,
    }  # fmt: skip
    for wrong in ("one", "one=few", "=0.02"):
        with pytest.raises(InvalidInput, match="write it like"):
            hard_cases(rare=wrong)
    assert preset_for_this_machine("auto").preset in ("laptop", "paper")


def test_settings_are_changed_by_the_names_and_values_of_older_versions():
    older = ["likeness.neighbors=10", "selection.proxy=alike", "selection.doubt=2", "training.contrast_steps=5"]
    newer = [
        "similarity.neighbors=10", "selection.proxy=similarity", "selection.uncertainty_power=2",
        "training.pretrain_steps=5",
    ]  # fmt: skip
    found = change_settings(preset("smoke"), older)
    assert found == change_settings(preset("smoke"), newer) != preset("smoke")
    assert (found.similarity.neighbors, found.selection.proxy) == (10, "similarity")


def test_results_of_version_0_1_are_continued(data, tmp_path):
    # Version 0.1 did not check labels.
    unchecked = LabelsConfig(weigh=False, second_looks=False, clips="graph", earlier_rounds=False)
    similarity = SimilarityConfig(neighbors=10, reach=0.7)
    training = dataclasses.replace(preset("laptop").training, refine_steps=0)  # nor refine networks
    config = change_settings(preset("laptop"), ["selection.proxy=similarity"])  # pictures had the kernel
    config = dataclasses.replace(config, labels=unchecked, similarity=similarity, training=training, changed=())
    asked = question(data, config=config)
    older = json.loads((Path(__file__).parents[2] / "core/stored_settings/laptop_0_1.json").read_text())
    stored = asked.to_dict() | {"config": older}
    (tmp_path / "results.json").write_text(
        json.dumps({"question": stored, "records": [dataclasses.asdict(RECORDS[0])]})
    )
    results = ResultsFile(tmp_path, asked)
    assert results.records == [RECORDS[0]]
    results.write()
    assert read_results(tmp_path / "results.json")["question"]["config"] == asked.to_dict()["config"]


def test_results_of_another_question_are_not_overwritten(data, tmp_path):
    kept = ResultsFile(tmp_path, question(data))
    kept.add(RECORDS[0])
    with pytest.raises(Conflict, match="results for other settings"):
        ResultsFile(tmp_path, question(data, plan=Plan(start=4, batch=2, rounds=1)))
    more = ResultsFile(tmp_path, question(data, strategies=("margin", "bico"), seeds=(0, 1)))
    assert more.of_trial("bico", 0) == [RECORDS[0]]


def test_more_rounds_continue_a_shorter_run(data, tmp_path):
    """The last round of the shorter run is repeated, because it chose nothing; a run with fewer rounds uses the
    results."""
    short = ResultsFile(tmp_path, question(data, strategies=("bico",), plan=Plan(start=3, batch=2, rounds=2)))
    short.write(RECORDS[:3])
    assert short.of_trial("bico", 0) == RECORDS[:3]
    longer = question(data, strategies=("bico",), plan=Plan(start=3, batch=2, rounds=4))
    assert ResultsFile(tmp_path, longer).of_trial("bico", 0) == RECORDS[:2]
    ResultsFile(tmp_path, longer).write()
    fewer = question(data, strategies=("bico",), plan=Plan(start=3, batch=2, rounds=1))
    assert ResultsFile(tmp_path, fewer).of_trial("bico", 0) == RECORDS[:2]
    assert fewer.of_mine(ResultsFile(tmp_path, fewer).records) == RECORDS[:2]
    ResultsFile(tmp_path, fewer).write()
    assert read_results(tmp_path / "results.json")["question"]["plan"]["rounds"] == 4


def test_results_of_the_earlier_measure_are_read_and_marked_and_never_continued(data, tmp_path):
    """Files of earlier versions have no version and no measure."""
    asked = question(data, strategies=("bico",), plan=Plan(start=3, batch=2, rounds=2))
    ResultsFile(tmp_path, asked).write(RECORDS[:2])
    path = tmp_path / "results.json"
    stored = json.loads(path.read_text())
    assert stored.pop("version") == 2
    for one in stored["records"]:
        del one["measure"], one["accuracy_with_propagation"]
    path.write_text(json.dumps(stored))
    earlier = [record_from(values) for values in read_results(path)["records"]]
    assert {one.measure for one in earlier} == {"earlier"}
    assert "earlier measure" in tables(summarize(earlier)) and "Inductive" not in tables(summarize(earlier))
    with pytest.raises(Conflict, match="2 records of an earlier version"):
        ResultsFile(tmp_path, asked)
    with pytest.raises(Conflict, match="earlier version"):
        merge([tmp_path], tmp_path / "merged")
    with pytest.raises(InvalidInput, match="cannot be in one table"):
        summarize([*earlier, RECORDS[2]])


def test_the_accuracy_with_label_propagation_has_a_separate_table():
    found = summarize([dataclasses.replace(one, accuracy_with_propagation=0.99) for one in RECORDS])
    assert found["measure"] == "inductive" and found["accuracy"]["bico"]["10"] == 0.6
    assert found["with_propagation"]["accuracy"]["bico"]["10"] == 0.99
    output = tables(found)
    assert output.index("Inductive accuracy") < output.index("60.0 ±") < output.index("With label propagation")
    assert "With label propagation" not in tables(summarize(RECORDS))


@pytest.mark.slow
def test_a_longer_simulation_ends_as_if_it_had_been_requested_at_once(data, tmp_path):
    asked = question(data, strategies=("uniform",), plan=Plan(start=3, batch=2, rounds=2))
    whole = simulate(asked, tmp_path / "whole", processes=1)
    simulate(dataclasses.replace(asked, plan=Plan(start=3, batch=2, rounds=1)), tmp_path / "parts", processes=1)
    parts = simulate(asked, tmp_path / "parts", processes=1)
    assert [(one.n_labels, one.accuracy, one.picks) for one in parts] == [
        (one.n_labels, one.accuracy, one.picks) for one in whole
    ]


def test_the_summary_has_means_deviations_and_the_request():
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
    assert lines[2] == "| Bilevel coreset | 60.0 ± 14.1 | 86.0 ± 8.5 | 94.0 ± 1.4 |"
    assert "| Random | not reached | 0 of 1 |" in reach_table(summarize(RECORDS))


def test_the_report_writes_tables_and_curves(tmp_path, monkeypatch):
    def no_browser(*arguments, **named):
        raise OSError("there is no browser to draw with")

    monkeypatch.setattr("plotly.graph_objects.Figure.write_image", no_browser)
    found = write_report(RECORDS, tmp_path)
    assert found["files"] == ["results.json", "tables.md", "curves.html"]
    assert "not drawn" in found["png"]
    assert "Bilevel coreset" in (tmp_path / "curves.html").read_text()


def test_a_data_set_without_files_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidInput, match="contains no audio clips or pictures"):
        simulate(question(empty), tmp_path / "out", processes=1)
