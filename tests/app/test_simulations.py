"""Simulations that a page starts: kept, found again, gone on with, and silent about the truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import update

from app import jobs, simulations
from app.simulations import Asked, known_truth
from app.study_data import pool_of
from app.study_results import Question, ResultsFile
from core.config import preset
from core.errors import InvalidInput
from core.study import Plan, RoundRecord
from storage.database import Store
from storage.projects import ProjectRow, get_project
from storage.schema import Item
from tests.round_pools import Drawn, draw_project

ASKED = Asked(strategies=("margin", "uniform"), start=3, batch=2, rounds=1, seeds=2, preset="smoke")


def with_truth(drawn: Drawn) -> ProjectRow:
    """The project, with the truth of every item known to the store alone."""
    with drawn.store.write() as connection:
        for item_id, position in drawn.truth.items():
            connection.execute(
                update(Item).where(Item.id == item_id).values(truth_class_id=drawn.classes[position])
            )
    return get_project(drawn.store, drawn.project_id)


@pytest.fixture
def started(monkeypatch) -> list[tuple[str, list[str]]]:
    """What would have been run."""
    asked: list[tuple[str, list[str]]] = []

    def remember(home, title, arguments, project_id=None, **more):
        asked.append((title, list(arguments)))
        return jobs.Job(id="x", title=title, project_id=project_id, arguments=tuple(arguments), started_at=0.0)

    monkeypatch.setattr(jobs, "start", remember)
    return asked


def results(folder: Path, project: ProjectRow, n: int) -> None:
    question = Question(
        project=project.id, strategies=ASKED.strategies, seeds=(0, 1), plan=Plan(start=3, batch=2, rounds=1),
        config=preset("smoke"),
    )  # fmt: skip
    records = [
        RoundRecord(strategy=s, seed=seed, round=number, n_labels=3 + 2 * number, accuracy=0.5, wrong_guesses=1)
        for s, seed in question.trials
        for number in range(2)
    ]
    ResultsFile(folder, question).write(records[:n])


def test_truth_is_counted_where_it_is_known(sqlite_store: Store):
    drawn = draw_project(sqlite_store, 12, n_held_out=3)
    assert not known_truth(sqlite_store, drawn.project_id).enough
    project = with_truth(drawn)
    found = known_truth(sqlite_store, project.id)
    assert (found.pool, found.test, found.enough) == (9, 3, True)
    pool = pool_of(sqlite_store, project.id)
    position = {name: drawn.truth[item] for name, item in zip(drawn.hashes, drawn.item_ids, strict=True)}
    assert pool.truth.tolist() == [position[name] for name in pool.hashes]


def test_one_is_kept_found_again_and_gone_on_with_after_a_rename(sqlite_store: Store, tmp_path, started):
    project = with_truth(draw_project(sqlite_store, 12, n_held_out=3, name="--json <b>shapes</b>"))
    name = simulations.begin(tmp_path, project, ASKED)
    folder = tmp_path / "simulations" / str(project.id) / name
    expected = [
        "simulate", "--strategy=margin", "--strategy=uniform", "--start=3", "--batch=2", "--rounds=1", "--seeds=2",
        "--preset=smoke", f"--out={folder}", "--project=--json <b>shapes</b>",
    ]  # fmt: skip
    assert started == [(f"Simulation {name}", expected)]
    found = simulations.listed(tmp_path, project.id)
    assert [(one.id, one.asked, one.running, one.complete, one.records) for one in found] == [
        (name, ASKED, False, False, ())
    ]
    results(folder, project, 5)
    assert len(simulations.listed(tmp_path, project.id)[0].records) == 5
    simulations.go_on(tmp_path, project, name)
    assert started[1] == started[0]
    results(folder, project, 8)
    assert simulations.listed(tmp_path, project.id)[0].complete
    simulations.remove(tmp_path, simulations.listed(tmp_path, project.id)[0])
    assert simulations.listed(tmp_path, project.id) == [] and not folder.exists()
    with pytest.raises(InvalidInput, match="no longer there"):
        simulations.go_on(tmp_path, project, name)


def test_what_is_written_holds_accuracies_and_no_answers(sqlite_store: Store, tmp_path, started):
    drawn = draw_project(sqlite_store, 12, n_held_out=3)
    project = with_truth(drawn)
    folder = tmp_path / "simulations" / str(project.id) / simulations.begin(tmp_path, project, ASKED)
    results(folder, project, 8)
    stored = json.loads((folder / "results.json").read_text())
    fields = {"strategy", "seed", "round", "n_labels", "accuracy", "wrong_guesses", "seconds", "picks", "notes"}
    assert all(set(record) == fields for record in stored["records"])
    assert not any(name in json.dumps(stored) for name in ("bars", "blobs", "checks"))


def test_what_was_asked_is_checked_and_counted():
    assert (ASKED.n_records, ASKED.n_trainings, ASKED.most_labels) == (8, 6, 5)
    for wrong in ({"strategies": ()}, {"seeds": 0}, {"batch": 0}, {"rounds": -1}):
        with pytest.raises(InvalidInput):
            Asked(**wrong)
