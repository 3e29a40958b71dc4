"""Simulations that a page requests: stored, listed, resumed, and without known labels in what is shown."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from sqlalchemy import update

from app.simulation import requests as simulation_requests
from app.simulation.dataset import pool_of
from app.simulation.requests import SimulationRequest
from app.simulation.results import Question
from app.web.server_command import ROOT
from core.config import preset
from core.errors import InvalidInput, NotFound
from core.rounds.simulation_plan import RoundRecord
from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling.known_labels import count_known_labels
from storage.projects.projects import ProjectRow, get_project
from storage.rounds import simulations as rows
from storage.rounds import workers
from tests.round_pools import Drawn, draw_project

ASKED = SimulationRequest(strategies=("margin", "uniform"), start=3, batch=2, rounds=1, seeds=2, preset="smoke")


def with_truth(drawn: Drawn) -> ProjectRow:
    """The project, with a hidden label for every item."""
    with drawn.store.write() as connection:
        for item_id, position in drawn.truth.items():
            connection.execute(update(Item).where(Item.id == item_id).values(truth_class_id=drawn.classes[position]))
    return get_project(drawn.store, drawn.project_id)


def fill(store: Store, simulation_id: int, n: int) -> None:
    """Write records like a worker."""
    question = simulation_requests.question_of(rows.get(store, simulation_id))
    rows.begin(store, simulation_id, rows.get(store, simulation_id).attempt, question.to_dict()["config"], "pool")
    records = [
        RoundRecord(strategy=s, seed=seed, round=number, n_labels=3 + 2 * number, accuracy=0.5, wrong_guesses=1)
        for s, seed in question.trials
        for number in range(2)
    ]
    for record in records[:n]:
        rows.add(store, simulation_id, dataclasses.asdict(record))


def test_known_labels_are_counted(sqlite_store: Store):
    drawn = draw_project(sqlite_store, 12, n_held_out=3)
    assert not count_known_labels(sqlite_store, drawn.project_id).enough
    project = with_truth(drawn)
    found = count_known_labels(sqlite_store, project.id)
    assert (found.pool, found.test, found.enough) == (9, 3, True)
    pool = pool_of(sqlite_store, project.id)
    position = {name: drawn.truth[item] for name, item in zip(drawn.hashes, drawn.item_ids, strict=True)}
    assert pool.truth.tolist() == [position[name] for name in pool.hashes]


def test_a_simulation_is_stored_listed_and_resumed(sqlite_store: Store):
    project = with_truth(draw_project(sqlite_store, 12, n_held_out=3, name="--json <b>shapes</b>"))
    simulation_id = simulation_requests.begin(sqlite_store, project.id, ASKED)
    [one] = simulation_requests.listed(sqlite_store, project.id)
    assert (one.id, one.asked, one.running, one.complete, one.seconds_left) == (simulation_id, ASKED, True, False, None)
    assert one.without_worker
    workers.register(sqlite_store, "w", host="h", pid=1, device="cpu")
    fill(sqlite_store, simulation_id, 5)
    [one] = simulation_requests.listed(sqlite_store, project.id)
    assert (one.n_records, one.without_worker) == (5, False) and one.seconds_left is not None and one.seconds_left > 0
    simulation_requests.cancel(sqlite_store, simulation_id)
    simulation_requests.resume(sqlite_store, simulation_id)
    fill(sqlite_store, simulation_id, 8)
    rows.seed_done(sqlite_store, simulation_id, 2, 0, ASKED.n_records)
    [one] = simulation_requests.listed(sqlite_store, project.id)
    assert one.complete and one.status == "finished" and one.seconds_left is None
    assert len(simulation_requests.records(sqlite_store, simulation_id)) == 8
    simulation_requests.remove(sqlite_store, simulation_id)
    assert simulation_requests.listed(sqlite_store, project.id) == []
    with pytest.raises(NotFound, match="no longer exists"):
        simulation_requests.resume(sqlite_store, simulation_id)


def test_the_settings_are_the_presets_on_the_projects_media(sqlite_store: Store):
    project = with_truth(draw_project(sqlite_store, 12, n_held_out=3, kernel_network="fnn"))
    for name in ("auto", "laptop"):
        found = simulation_requests.settings_of(sqlite_store, project.id, name)
        assert (found.preset, found.media.channels, found.kernel.network) == (name, 3, "fnn")
        assert found.training == preset(name).training


def test_accuracies_are_written_and_no_labels(sqlite_store: Store):
    drawn = draw_project(sqlite_store, 12, n_held_out=3)
    project = with_truth(drawn)
    simulation_id = simulation_requests.begin(sqlite_store, project.id, ASKED)
    fill(sqlite_store, simulation_id, 8)
    stored = simulation_requests.document(sqlite_store, simulation_id)
    fields = {"strategy", "seed", "round", "n_labels", "accuracy", "wrong_guesses", "seconds", "picks", "notes"}
    fields |= {"accuracy_with_propagation", "measure"}
    assert stored["version"] == 2
    assert len(stored["records"]) == 8 and all(set(record) == fields for record in stored["records"])
    assert not any(name in json.dumps(stored) for name in ("bars", "blobs", "checks"))
    assert Question.from_dict(stored["question"]).project == project.id


@pytest.mark.slow
def test_pages_read_simulations_without_torch_or_the_engine():
    code = "import sys; import app.simulation.requests; assert not {'torch', 'dbos'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_request_is_checked_and_counted():
    assert (ASKED.n_records, ASKED.n_trainings, ASKED.most_labels) == (8, 6, 5)
    for wrong in ({"strategies": ()}, {"seeds": 0}, {"batch": 0}, {"rounds": -1}):
        with pytest.raises(InvalidInput):
            SimulationRequest(**wrong)
