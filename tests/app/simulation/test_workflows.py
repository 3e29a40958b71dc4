"""Simulations in real worker processes: shared, killed, cancelled, resumed, failed, and paused for rounds."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from app.rounds import requests as round_requests
from app.simulation import requests as simulation_requests
from app.simulation.dataset import StudyData, pool_of
from app.simulation.requests import Simulation, SimulationRequest, question_of
from app.simulation.trial_process import Task, TrialSetting, make_trial
from app.simulation.workflows import MOST_LOST_WORKERS
from core.rounds.simulation_plan import RoundRecord
from storage.database.store import Store
from storage.media import shared as shared_media
from storage.rounds import simulations as rows
from storage.rounds import workers
from storage.rounds.log import RoundLog
from tests.app.simulation.test_requests import with_truth
from tests.app.worker_processes import Place, crew_in, quick_config, until
from tests.round_pools import draw_project

# Slow: every test starts worker processes.
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

TIMEOUT_SECONDS = 240.0
ASKED = SimulationRequest(strategies=("margin", "uniform"), start=3, batch=2, rounds=2, seeds=2, preset="smoke")


def shapes(store: Store) -> int:
    return with_truth(draw_project(store, 36, n_held_out=9)).id


def ask(store: Store, project_id: int, asked: SimulationRequest = ASKED) -> int:
    return simulation_requests.begin(store, project_id, asked, quick_config())


def shown(store: Store, project_id: int) -> Simulation:
    return simulation_requests.listed(store, project_id)[0]


def ended(store: Store, project_id: int) -> Simulation:
    until(lambda: not shown(store, project_id).running, TIMEOUT_SECONDS, "the end of the simulation")
    return shown(store, project_id)


def timeless(records: list[RoundRecord]) -> list[RoundRecord]:
    order = sorted(records, key=lambda one: (one.strategy, one.seed, one.round))
    return [dataclasses.replace(one, seconds={}) for one in order]


def undisturbed(store: Store, simulation_id: int, folder: Path) -> list[RoundRecord]:
    """The same trials in this process, one after another, with nothing shared."""
    row = rows.get(store, simulation_id)
    question = question_of(row)
    reader = shared_media.reader(store, row.project_id)
    data = StudyData(pool=pool_of(store, row.project_id), read=reader, store=store, project_id=row.project_id)
    place = TrialSetting(folder=str(folder / "models"), cache=str(folder / "rows"))
    trials = [make_trial(question, data, place, Task("trial", seed, name)) for name, seed in question.trials]
    return timeless([record for trial in trials for record in trial.run()])


def computed(crew) -> Counter[str]:
    """How often each record was computed, according to the logs of the workers."""
    return Counter(line.split(": ", 1)[1] for line in crew.lines(" is there"))


def test_two_workers_share_the_seeds_one_is_killed_and_every_record_exists_once(sqlite_store, crew, tmp_path):
    """One machine: the next worker finds the models of the killed one and continues after its last record."""
    project_id, gate = shapes(sqlite_store), tmp_path / "gate"
    place = Place(home=sqlite_store.home, records_gate=gate)
    victim, other = crew.start(place), crew.start(place)
    until(lambda: len(workers.living_workers(sqlite_store)) == 2, TIMEOUT_SECONDS, "two workers")
    simulation_id = ask(sqlite_store, project_id)
    until(lambda: victim.lines("is there") and other.lines("seed"), TIMEOUT_SECONDS, "both at work")
    victim.kill()
    gate.touch()
    one = ended(sqlite_store, project_id)
    assert (one.status, one.n_records, one.complete) == ("finished", 12, True), one.error
    expected = undisturbed(sqlite_store, simulation_id, tmp_path / "local")
    assert timeless(simulation_requests.records(sqlite_store, simulation_id)) == expected
    again = [record for record, times in computed(crew).items() if times > 1]
    assert len(computed(crew)) == 12 and not again
    until(
        lambda: not list((sqlite_store.home / "cache" / "simulations").glob("*/*")), TIMEOUT_SECONDS, "the tidying up"
    )


@pytest.mark.postgres
def test_machines_that_share_only_database_and_artifacts_lose_one_and_get_the_same_result(postgres_url, tmp_path):
    """The other machine does not have the models of the killed worker: it computes that trial again, and the records
    stay the same."""
    home, shared = tmp_path / "home", str(tmp_path / "artifacts")
    with Store.open(postgres_url, home) as opened, crew_in(tmp_path) as crew:
        store = Store(opened.url, home, shared)
        project_id = shapes(store)
        gate = tmp_path / "gate"
        common = {"url": postgres_url, "artifacts": shared, "records_gate": gate}
        here = crew.start(Place(home=home, **common))
        there = crew.start(Place(home=tmp_path / "elsewhere", **common))
        until(lambda: len(workers.living_workers(store)) == 2, TIMEOUT_SECONDS, "two workers")
        simulation_id = ask(store, project_id)
        until(lambda: there.lines("is there") and here.lines("seed"), TIMEOUT_SECONDS, "both at work")
        before = rows.records(store, simulation_id)
        there.kill()
        gate.touch()
        one = ended(store, project_id)
        assert (one.status, one.n_records) == ("finished", 12), one.error
        assert all(record in rows.records(store, simulation_id) for record in before)  # seconds and all
        expected = undisturbed(store, simulation_id, tmp_path / "local")
        assert timeless(simulation_requests.records(store, simulation_id)) == expected
        assert len({name.split(", round")[0] for name, times in computed(crew).items() if times > 1}) <= 1
        store.close()


def test_a_simulation_is_cancelled_within_seconds_and_resumes_after_its_records(sqlite_store, crew, tmp_path):
    project_id, gate = shapes(sqlite_store), tmp_path / "gate"
    asked = dataclasses.replace(ASKED, strategies=("uniform",), seeds=1)
    simulation_id = ask(sqlite_store, project_id, asked)
    assert shown(sqlite_store, project_id).without_worker
    worker = crew.start(Place(home=sqlite_store.home, records_gate=gate))
    until(lambda: worker.lines("round 0 is there"), TIMEOUT_SECONDS, "the first record")
    assert not shown(sqlite_store, project_id).without_worker
    simulation_requests.cancel(sqlite_store, simulation_id)
    one = shown(sqlite_store, project_id)
    assert one.status == "cancelled" and not one.complete
    gate.touch()
    until(
        lambda: all(not row.stage for row in workers.living_workers(sqlite_store)),
        TIMEOUT_SECONDS,
        "the end of the work",
    )
    kept = simulation_requests.records(sqlite_store, simulation_id)
    simulation_requests.resume(sqlite_store, simulation_id)
    assert ended(sqlite_store, project_id).status == "finished"
    assert simulation_requests.records(sqlite_store, simulation_id)[: len(kept)] == kept
    assert set(computed(crew).values()) == {1}


def test_a_round_takes_priority_and_the_simulation_resumes_after_it(sqlite_store, crew, tmp_path):
    records_gate, train_gate = tmp_path / "records", tmp_path / "train"
    drawn = draw_project(sqlite_store, 36, n_held_out=9)
    drawn.label(drawn.item_ids[9:15])
    project_id = with_truth(drawn).id
    simulation_id = ask(sqlite_store, project_id)
    worker = crew.start(Place(home=sqlite_store.home, gates={"train": train_gate}, records_gate=records_gate))
    until(lambda: worker.lines("is there"), TIMEOUT_SECONDS, "the first record")
    asked = round_requests.request_round(sqlite_store, project_id, config=quick_config())
    log = RoundLog(sqlite_store, project_id)
    until(lambda: worker.lines(": train begins"), TIMEOUT_SECONDS, "the beginning of the round's training")
    records_gate.touch()
    until(
        lambda: any("waiting for a round" in note for note in rows.get(sqlite_store, simulation_id).notes),
        TIMEOUT_SECONDS,
    )
    train_gate.touch()
    until(lambda: not log.get(asked.id).unfinished, TIMEOUT_SECONDS, "the end of the round")
    assert log.get(asked.id).status == "finished" and shown(sqlite_store, project_id).running
    assert ended(sqlite_store, project_id).status == "finished"
    assert set(computed(crew).values()) == {1}


def test_a_simulation_that_cannot_run_states_the_reason(sqlite_store, crew):
    project_id = shapes(sqlite_store)
    ask(sqlite_store, project_id, dataclasses.replace(ASKED, start=500, rounds=0))
    crew.start(Place(home=sqlite_store.home))
    one = ended(sqlite_store, project_id)
    assert one.status == "failed" and "500 initial labels were requested, but the pool has 27" in one.error


def test_a_seed_that_kills_its_workers_fails_with_a_message(sqlite_store, crew):
    project_id = shapes(sqlite_store)
    simulation_id = ask(sqlite_store, project_id)
    for _ in range(MOST_LOST_WORKERS):
        rows.start_seed(sqlite_store, simulation_id, 1)
    crew.start(Place(home=sqlite_store.home))
    one = ended(sqlite_store, project_id)
    assert one.status == "failed" and "5 workers were lost at seed 1" in one.error


def test_a_simulation_whose_engine_file_is_lost_resumes_from_its_records(sqlite_store, crew, tmp_path):
    project_id = shapes(sqlite_store)
    simulation_id = ask(sqlite_store, project_id, dataclasses.replace(ASKED, strategies=("margin",), seeds=1))
    worker = crew.start(Place(home=sqlite_store.home, records_gate=tmp_path / "never there"))
    until(lambda: worker.lines("round 0 is there"), TIMEOUT_SECONDS, "the first record")
    worker.kill()
    for path in sqlite_store.home.glob("engine.sqlite*"):
        path.unlink()
    crew.start(Place(home=sqlite_store.home))
    one = ended(sqlite_store, project_id)
    assert (one.status, one.n_records) == ("finished", 3), one.error
    assert len(simulation_requests.records(sqlite_store, simulation_id)) == 3
    assert set(computed(crew).values()) == {1}
