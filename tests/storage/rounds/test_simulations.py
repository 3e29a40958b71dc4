"""Simulations as rows, on both databases."""

from __future__ import annotations

import threading

import pytest

from core.errors import Conflict, NotFound
from storage.database.store import Store
from storage.projects.projects import archive_project
from storage.rounds import simulations
from tests.storage.pools import make_pool

ASKED = {"strategies": ["margin"], "seeds": 2}
SETTINGS = {"preset": "auto"}


def record(seed: int, number: int, accuracy: float = 0.5) -> dict:
    return {"strategy": "margin", "seed": seed, "round": number, "accuracy": accuracy, "picks": ["a", "b"]}


@pytest.fixture
def asked(store: Store) -> int:
    return simulations.request(store, make_pool(store, 5).project_id, ASKED, SETTINGS)


def begun(store: Store, simulation_id: int, attempt: int = 1, pool: str = "p") -> bool:
    return simulations.begin(store, simulation_id, attempt, {"preset": "laptop"}, pool)


def test_a_simulation_is_requested_started_filled_and_ended_by_its_last_seed(store, asked):
    row = simulations.get(store, asked)
    assert (row.status, row.asked, row.settings, row.attempt, row.n_records) == ("requested", ASKED, SETTINGS, 1, 0)
    assert row.last_item_id > 0 and [one.id for one in simulations.unfinished(store)] == [asked]
    assert begun(store, asked) and begun(store, asked)  # a second worker that begins it changes nothing
    row = simulations.get(store, asked)
    assert (row.status, row.settings, row.pool) == ("running", {"preset": "laptop"}, "p")
    simulations.start_seed(store, asked, 0)
    simulations.note(store, asked, 0, "margin, seed 0: train 3/8")
    assert simulations.get(store, asked).notes == ("margin, seed 0: train 3/8",)
    for number in range(2):
        assert simulations.add(store, asked, record(0, number))
    simulations.seed_done(store, asked, 1, 0, n_wanted=4)
    assert simulations.get(store, asked).status == "running" and simulations.get(store, asked).notes == ()
    for number in range(2):
        simulations.add(store, asked, record(1, number))
    simulations.seed_done(store, asked, 1, 1, n_wanted=4)
    row = simulations.get(store, asked)
    assert (row.status, row.n_records, row.n_fresh) == ("finished", 4, 4) and row.finished_at is not None
    assert simulations.records(store, asked, "margin", 1) == [record(1, 0), record(1, 1)]


def test_a_record_is_written_once_even_when_it_is_computed_again(store, asked):
    begun(store, asked)
    assert simulations.add(store, asked, record(0, 0, 0.25))
    assert not simulations.add(store, asked, record(0, 0, 0.75))
    assert simulations.records(store, asked) == [record(0, 0, 0.25)]
    at_once = [threading.Thread(target=simulations.add, args=(store, asked, record(0, 1))) for _ in range(4)]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    assert simulations.records(store, asked) == [record(0, 0, 0.25), record(0, 1)]


def test_numbers_that_are_not_finite_are_stored(store, asked):
    simulations.add(store, asked, record(0, 0, float("nan")))
    assert simulations.records(store, asked)[0]["accuracy"] is None


def test_cancelling_ends_it_at_once_and_resuming_is_a_new_attempt_on_the_same_records(store, asked):
    begun(store, asked)
    simulations.add(store, asked, record(0, 0))
    with pytest.raises(Conflict, match="already running"):
        simulations.resume(store, asked)
    with pytest.raises(Conflict, match="cancel it first"):
        simulations.remove(store, asked)
    simulations.cancel(store, asked)
    assert simulations.get(store, asked).status == "cancelled" and not simulations.is_wanted(store, asked, 1)
    simulations.fail(store, asked, 1, "too late")
    simulations.seed_done(store, asked, 1, 0, n_wanted=1)
    assert simulations.get(store, asked).status == "cancelled"
    assert simulations.resume(store, asked) == 2
    assert simulations.is_wanted(store, asked, 2) and not simulations.is_wanted(store, asked, 1)
    assert not begun(store, asked, attempt=1)  # a worker of the first attempt
    simulations.fail(store, asked, 1, "of the first attempt")
    assert begun(store, asked, attempt=2)
    row = simulations.get(store, asked)
    assert (row.status, row.attempt, row.n_records, row.n_fresh, row.error) == ("running", 2, 1, 0, "")


def test_a_failed_simulation_states_the_reason_and_a_changed_pool_is_refused(store, asked):
    begun(store, asked)
    simulations.fail(store, asked, 1, "No memory.", "the whole story")
    row = simulations.get(store, asked)
    assert (row.status, row.error, row.log) == ("failed", "No memory.", "the whole story")
    simulations.resume(store, asked)
    with pytest.raises(Conflict, match="changed since this simulation started"):
        begun(store, asked, attempt=2, pool="another")


def test_workers_that_start_a_seed_are_counted_from_its_last_record(store, asked):
    begun(store, asked)
    assert [simulations.start_seed(store, asked, 0) for _ in range(3)] == [1, 2, 3]
    assert simulations.start_seed(store, asked, 1) == 1
    simulations.add(store, asked, record(0, 0))
    assert simulations.start_seed(store, asked, 0) == 2  # the one that wrote it is lost too


def test_a_simulation_is_removed_with_its_records_and_late_workers_change_nothing(store, asked):
    begun(store, asked)
    simulations.start_seed(store, asked, 0)
    simulations.add(store, asked, record(0, 0))
    simulations.cancel(store, asked)
    simulations.remove(store, asked)
    assert not simulations.add(store, asked, record(0, 1)) and not begun(store, asked)
    simulations.seed_done(store, asked, 1, 0, n_wanted=4)
    simulations.fail(store, asked, 1, "late")
    simulations.cancel(store, asked)
    assert simulations.records(store, asked) == [] and simulations.not_finished(store) == []
    for function in (simulations.get, simulations.resume, simulations.remove):
        with pytest.raises(NotFound, match="no longer exists"):
            function(store, asked)


def test_simulations_are_listed_newest_first_and_an_archived_project_refuses_new_ones(store):
    project_id = make_pool(store, 3).project_id
    first, second = (simulations.request(store, project_id, ASKED, SETTINGS) for _ in range(2))
    assert [row.id for row in simulations.listed(store, project_id)] == [second, first]
    assert [row.id for row in simulations.unfinished(store)] == [first, second]
    archive_project(store, project_id)
    with pytest.raises(Conflict, match="archived"):
        simulations.request(store, project_id, ASKED, SETTINGS)
