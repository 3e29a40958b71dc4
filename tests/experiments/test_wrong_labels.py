"""Wrong labels: what the experiments draw and count, by hand, and the trials from scratch that they ask for."""

from __future__ import annotations

import json
import types

import numpy as np

from app.simulation.trial_process import start_file
from core.rounds.simulation import answers, initial_rows
from core.rounds.simulation_plan import LabeledPool
from core.types import UNLABELED
from experiments import wrong_labels_rounds
from experiments import wrong_labels_scratch as from_scratch
from experiments.benchmark import scratch
from experiments.wrong_labels import MANY, TOP, found_among, many_labels


def test_a_fifth_of_the_labels_is_wrong():
    classes = np.arange(600) % 10
    labels, wrong = many_labels(classes, 10, seed=3)
    given = np.flatnonzero(labels != UNLABELED)
    assert len(given) == MANY and len(wrong) == 40
    np.testing.assert_array_equal(np.sort(wrong), given[labels[given] != classes[given]])


def test_predictions_that_know_the_classes_find_wrong_labels_and_ignorant_ones_do_not():
    classes = np.arange(600) % 10
    labels, wrong = many_labels(classes, 10, seed=0)
    known = 8 * np.eye(10)[classes] + 0.3 * np.random.default_rng(1).normal(size=(600, 10))
    found = found_among(labels, wrong, known)
    assert found["precision"] == found["cleanlab"] == 1.0 and 0 < found["wrong_share"] < 0.3
    ignorant = np.random.default_rng(2).normal(size=(600, 10))
    assert found_among(labels, wrong, ignorant)["precision"] < 0.6 and TOP == 20


def test_cases_differ_in_answers_and_checks_alone_and_share_the_trials_of_the_benchmark(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "manifest_of", lambda folder, run: tmp_path / "manifest.csv")
    run = scratch.Run(tmp_path, tmp_path / "out", "small")
    usual = scratch.question("spoken_digit", run, 1)
    clean = from_scratch.CLEAN_CHECKED
    assert clean.folder("spoken_digit", run) == run.folder("spoken_digit")
    assert clean.question("spoken_digit", run, 1).same_as(usual.to_dict())
    assert len({case.folder("spoken_digit", run) for case in from_scratch.CASES.values()}) == 4
    for case in from_scratch.CASES.values():
        question = case.question("spoken_digit", run, 1)
        assert question.plan.wrong_share == case.wrong and question.config.training == usual.config.training
        assert question.config.labels.weigh == question.config.labels.second_looks == case.checked


def test_the_model_of_the_first_labels_is_copied_once(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    from_scratch.share_start(source, target, 0)
    assert not start_file(target, 0).exists()
    start_file(source, 0).parent.mkdir(parents=True)
    start_file(source, 0).write_text("first")
    from_scratch.share_start(source, target, 0)
    start_file(source, 0).write_text("second")
    from_scratch.share_start(source, target, 0)
    assert start_file(target, 0).read_text() == "first"


def test_names_of_cases_are_those_of_the_command_line():
    assert {name: str(case) for name, case in from_scratch.CASES.items()} == {name: name for name in from_scratch.CASES}


def test_wrong_labels_at_the_end_are_those_of_the_newest_answers(tmp_path, monkeypatch):
    truth, test = np.arange(300) % 10, np.arange(300) >= 290
    hashes = tuple(f"item {row}" for row in range(300))
    pool = LabeledPool(kind="audio", class_names=tuple("abcdefghij"), hashes=hashes, truth=truth, test=test)
    study = types.SimpleNamespace(pool=pool, store=types.SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(from_scratch, "open_study", lambda question, folder: study)
    monkeypatch.setattr(scratch, "manifest_of", lambda folder, run: tmp_path / "manifest.csv")
    run = scratch.Run(tmp_path, tmp_path, "small")
    plan = from_scratch.WRONG_CHECKED.question("spoken_digit", run, 5).plan
    first, look = (answers(pool, plan, 5, number) for number in range(2))
    start = initial_rows(pool, plan, 5)
    new = np.setdiff1d(np.flatnonzero(~test), start)[:100]
    again = new[first[new] != truth[new]][:2]
    picks = [list(new), list(again), []]
    records = [
        {"strategy": "bico", "seed": 5, "round": number, "picks": [hashes[row] for row in rows]}
        for number, rows in enumerate(picks)
    ]
    folder = from_scratch.WRONG_CHECKED.folder("spoken_digit", run)
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"question": {"plan": {}}, "records": records}))
    wrong = {row for row in (*start, *new) if first[row] != truth[row]} - {
        row for row in again if look[row] == truth[row]
    }
    assert from_scratch.wrong_labels_at_the_end("spoken_digit", run, 5) == len(wrong) > 3


def test_the_table_of_trust_has_means_over_seeds(tmp_path):
    run = scratch.Run(tmp_path, tmp_path, "small")

    def measured(accuracy: float, found: int) -> dict[str, float]:
        return {"accuracy": accuracy, "wrong": 4, "found": found, "false": 1, "loss": 0.25}

    rows = [
        {"wrong": 0.1, "seed": seed, "plain": 0.7, "graph": measured(0.71, 0), "pooled": measured(0.8, 2 + seed)}
        for seed in range(2)
    ]
    file = from_scratch.trust_file("spoken_digit", run)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(rows))
    lines = from_scratch.trust_table(run).splitlines()[2:]
    assert lines == [
        "| spoken_digit | 2 | 10 % | graph | 0.250 | 0.0 of 4.0 | 1.0 | 70.0 | 71.0 |",
        "| spoken_digit | 2 | 10 % | pooled | 0.250 | 2.5 of 4.0 | 1.0 | 70.0 | 80.0 |",
    ]


def test_costs_are_paired_over_the_seeds_that_all_cases_have(tmp_path, monkeypatch):
    monkeypatch.setattr(from_scratch, "wrong_labels_at_the_end", lambda name, run, seed: 4 + seed)
    run = scratch.Run(tmp_path, tmp_path, "small")
    accuracy = {
        from_scratch.CLEAN_PLAIN: (0.90, 0.94, 0.1), from_scratch.CLEAN_CHECKED: (0.91, 0.93, 0.1),
        from_scratch.WRONG_PLAIN: (0.80, 0.82), from_scratch.WRONG_CHECKED: (0.87, 0.90),
    }  # fmt: skip

    def cells() -> list[str]:
        return from_scratch.learning_table(run).splitlines()[-1].split(" | ")

    for case, values in accuracy.items():
        records = [
            {"strategy": "bico", "seed": seed, "round": number, "n_labels": 37, "accuracy": value * number / 3}
            for seed, value in enumerate(values)
            for number in range(4)
        ]
        other = {"strategy": "uniform", "seed": 0, "round": 3, "n_labels": 40, "accuracy": 0.0}
        folder = case.folder("speech_commands", run)
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps({"question": {"plan": {}}, "records": [*records, other]}))
    row = cells()
    assert row[:4] == ["| speech_commands", "2", "92.0", "92.0"] and row[5:7] == ["81.0", "88.5"]
    assert row[4].startswith("+0.0 [") and row[7].startswith("+11.0 [") and row[8].startswith("+3.5 [")
    assert row[-2:] == ["3.0 / 3.0", "4, 5 |"]
    (from_scratch.WRONG_PLAIN.folder("speech_commands", run) / "results.json").unlink()
    assert [*cells()[:5], "not run", row[6], "not run", *row[8:]] == cells()


def checked(wrong: int) -> wrong_labels_rounds.Checked:
    """40 labels of 4 classes; the graph and heads know nothing, and earlier rounds are sure of the truth."""
    truth = np.arange(40) % 4
    labels = np.where(np.arange(40) < wrong, (truth + 1) % 4, truth)
    return wrong_labels_rounds.Checked(
        wrong=0.1 if wrong else 0.0,
        right=labels == truth,
        labels=labels,
        both=np.full((40, 8), np.log(0.25)),
        earlier=np.log(0.997 * np.eye(4)[truth] + 0.003 / 4),
    )


def test_earlier_rounds_find_wrong_labels_that_graph_and_heads_do_not_and_the_table_counts_them():
    lines = wrong_labels_rounds.table({"spoken_digit": [checked(0), checked(4), checked(6)]}).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[1:4] for row in cells[:2]] == [
        ["1", "0 %", "pooled"],
        ["1", "0 %", "with earlier rounds, median of gamma 0.25"],
    ]
    pooled, *with_rounds = [row for row in cells if row[2] == "10 %"]
    assert pooled[1] == "2" and pooled[-2:] == ["0 of 10", "0 of 70"]
    assert len(with_rounds) == len(wrong_labels_rounds.MEDIANS) and with_rounds[-1][-2:] == ["10 of 10", "0 of 70"]
    assert all(row[-1] == "0 of 40" for row in cells if row[2] == "0 %")
    losses = [float(row[-3]) for row in (pooled, *with_rounds)]
    assert losses == sorted(losses, reverse=True)
