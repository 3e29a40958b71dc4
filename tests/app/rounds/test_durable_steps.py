"""The durable steps of a round without an engine: what runs in which order, what is enqueued, and how a round ends."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from app.rounds import steps, workflows
from app.rounds.stored_round import FINISH, StepResult
from app.worker import outages
from app.worker.heartbeat import Superseded
from core.config import RoundConfig
from core.errors import Cancelled, InvalidInput, StoreUnreachable, WinnowError
from core.types import Progress
from storage.rounds import comparisons
from storage.rounds.log import FINISHED, START, RoundLog
from tests.storage.pools import make_pool

UNIT_STAGE = steps.SPLIT[0]
UNITS = ((0, 5), (5, 9))


class Engine:
    """Replaces the engine and the worker: steps run immediately, units are recorded."""

    def __init__(self, store: Any, project_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.monkeypatch = RoundLog(store, project_id), monkeypatch
        self.round_id = self.log.request(RoundConfig()).id
        self.performed: list[tuple[str, list[Any]]] = []
        self.enqueued: list[tuple[Any, ...]] = []
        self.deleted: list[tuple[list[str], bool]] = []
        self.cancelled: list[str] = []
        self.asked_for: list[list[str]] = []
        self.activities: list[tuple[Any, ...]] = []
        self.reports: list[Progress] = []
        self.waits: list[float] = []
        self.results: dict[str, StepResult | Exception] = {}
        self.statuses: list[dict[str, Any]] = []
        self.owner = True
        context = SimpleNamespace(store=store, worker_id="worker 7", heartbeat=SimpleNamespace(activity=self.activity))
        monkeypatch.setattr(workflows.worker_context, "current", lambda: context)
        monkeypatch.setattr(workflows, "DBOS", SimpleNamespace(run_step=self.run_step, workflow_id="unit-3"))
        monkeypatch.setattr(workflows.time, "sleep", self.waits.append)
        for name, value in {
            "enqueue": lambda *given: self.enqueued.append(given),
            "delete": lambda ids, with_children=False: self.deleted.append((list(ids), with_children)),
            "cancel": lambda ids: self.cancelled.extend(ids),
            "owns": lambda workflow, worker: self.owner and worker == "worker 7",
            "statuses": self.next_statuses,
        }.items():
            monkeypatch.setattr(workflows.engine, name, value)
        monkeypatch.setattr(workflows.steps, "perform", self.perform)
        monkeypatch.setattr(
            workflows.steps, "perform_unit", lambda stage, of, a, b: self.perform(f"{stage} {a} {b}", of)
        )

    def run_step(self, options: dict[str, str], function: Any, *given: Any) -> Any:
        return function(*given)

    @contextmanager
    def activity(self, workflow_id: str, subject: int, stage: str, writes: bool = True) -> Any:
        self.activities.append((workflow_id, subject, stage, writes))
        yield SimpleNamespace(stage=stage, report=self.reports.append)

    def next_statuses(self, ids: list[str]) -> dict[str, Any]:
        self.asked_for.append(list(ids))
        return self.statuses.pop(0)

    def perform(self, name: str, of: Any, blocks: Any = ()) -> StepResult:
        self.performed.append((name, list(blocks)))
        result = self.results.get(name, StepResult())
        if isinstance(result, Exception):
            raise result
        return result

    def run(self) -> str:
        return str(inspect.unwrap(workflows.round_workflow)(self.log.project_id, self.round_id))

    def status(self) -> str:
        return self.log.get(self.round_id).status


@pytest.fixture
def engine(sqlite_store, monkeypatch):
    return Engine(sqlite_store, make_pool(sqlite_store, 2).project_id, monkeypatch)


def ended_as(status: str, output: dict[str, Any] | None = None, error: str = "") -> SimpleNamespace:
    return SimpleNamespace(status=status, output=StepResult(output=output, error=error).to_dict())


def test_a_round_runs_every_stage_once_and_divided_ones_after_their_plan(engine):
    engine.results[steps.PLAN + UNIT_STAGE] = StepResult(units=UNITS)
    names = [f"round-{engine.round_id}-{UNIT_STAGE}-{k}" for k in range(2)]
    waiting = {names[0]: SimpleNamespace(status="PENDING", output=None), names[1]: ended_as("SUCCESS", {"b": 1})}
    done = {names[1]: ended_as("SUCCESS", {"b": 1}), names[0]: ended_as("SUCCESS", {"a": 1})}
    engine.statuses = [waiting, done]
    assert engine.run() == "finished"
    expected = [
        name for stage in steps.ORDER for name in ([steps.PLAN + stage] if stage in steps.SPLIT else []) + [stage]
    ]
    assert [name for name, _ in engine.performed] == expected
    blocks = dict(engine.performed)
    assert blocks.pop(UNIT_STAGE) == [{"a": 1}, {"b": 1}] and not any(blocks.values())
    assert [(queue, workflow, unit, stage, rows) for queue, workflow, unit, stage, *_, rows in engine.enqueued] == [
        (workflows.engine.UNITS, workflows.unit_workflow, name, UNIT_STAGE, list(rows))
        for name, rows in zip(names, UNITS, strict=True)
    ]
    results = engine.enqueued[0][6]
    assert results[steps.PLAN + UNIT_STAGE]["units"] == [[0, 5], [5, 9]]
    assert engine.waits == [workflows.WATCH_SECONDS] and 0 < workflows.WATCH_SECONDS <= 1
    told = [(one.done, one.total, one.note) for one in engine.reports if "blocks" in one.note]
    assert told == [(1, 2, "1 of 2 blocks"), (2, 2, "2 of 2 blocks")]
    assert {(one.done, one.total) for one in engine.reports if not one.note} == {(1, 1)}
    marks = [(one.stage, one.done, one.total, one.note) for one in engine.log.progress_of(engine.round_id)]
    assert marks[0] == (START, 1, 1, "worker 7")
    assert marks[1:] == [(stage, 1, 1, FINISHED) for stage in steps.ORDER if stage != FINISH]
    assert all(0 <= one["seconds"] < 60 and round(one["seconds"], 3) == one["seconds"] for one in results.values())
    assert {activity[3] for activity in engine.activities} == {True}


@pytest.mark.parametrize("name", [steps.PLAN + UNIT_STAGE, UNIT_STAGE, "snapshot"])
def test_a_step_that_ended_the_round_is_the_last_one(engine, name):
    engine.results[name] = StepResult(ended="failed")
    assert engine.run() == "failed" and engine.performed[-1][0] == name


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_round_that_has_ended_is_not_run(engine, end):
    if end == "cancel":
        engine.log.start(engine.round_id)
    engine.log.cancel(engine.round_id) if end == "cancel" else engine.log.fail(engine.round_id, "no")
    assert engine.run() == engine.status() == ("cancelled" if end == "cancel" else "failed")
    assert not engine.performed and not engine.log.progress_of(engine.round_id)


def test_a_stage_of_a_round_that_ended_meanwhile_is_not_run(engine):
    engine.log.fail(engine.round_id, "no")
    result = workflows._perform("snapshot", engine.log.project_id, engine.round_id, {})
    assert StepResult.from_dict(result).ended == "failed" and not engine.performed


@pytest.mark.parametrize("after_a_stage", [False, True])
def test_five_lost_workers_in_a_stage_end_the_round(engine, after_a_stage):
    engine.log.start(engine.round_id)
    if after_a_stage:
        engine.log.progress(engine.round_id, Progress(START, 1, 1, "a"))
        engine.log.progress(engine.round_id, Progress("snapshot", 1, 1, FINISHED))
    lost = workflows.MOST_DEATHS - 1 - after_a_stage  # the worker that finished the stage is lost too
    for _ in range(lost):
        engine.log.progress(engine.round_id, Progress(START, 1, 1, "a"))
        engine.log.progress(engine.round_id, Progress("prepare", 1, 9, "under way"))
    assert workflows._begin(engine.log.project_id, engine.round_id) == ""
    newest = engine.log.progress_of(engine.round_id)[-1]
    assert (newest.stage, newest.done, newest.note) == (START, workflows.MOST_DEATHS, "worker 7")
    assert workflows._begin(engine.log.project_id, engine.round_id) == "failed"
    stage = steps.ORDER[1] if after_a_stage else steps.ORDER[0]
    assert engine.log.get(engine.round_id).error.startswith(f"5 workers were lost in the stage {stage}, ")


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidInput("Too few."), "failed"), (ValueError("odd"), "failed"), (Cancelled(), "cancelled")],
)
def test_an_error_ends_the_round_with_its_message_and_cancels_the_units(engine, error, status):
    engine.log.start(engine.round_id)
    if status == "cancelled":
        engine.log.cancel(engine.round_id)
    engine.results[UNIT_STAGE] = error
    engine.statuses = [{"u": ended_as("SUCCESS")}]
    result = workflows._perform(UNIT_STAGE, engine.log.project_id, engine.round_id, {}, ["u"])
    assert StepResult.from_dict(result).ended == engine.status() == status and engine.cancelled == ["u"]
    if status == "failed":
        assert str(error) in engine.log.get(engine.round_id).error


def test_a_worker_that_lost_the_round_writes_nothing(engine):
    engine.log.start(engine.round_id)
    engine.owner = False
    with pytest.raises(Superseded):
        workflows._perform("snapshot", engine.log.project_id, engine.round_id, {})
    assert engine.status() == "running" and not engine.log.progress_of(engine.round_id) and not engine.cancelled
    with pytest.raises(Superseded):
        workflows._perform_unit(UNIT_STAGE, engine.log.project_id, engine.round_id, {}, [2, 4])


def test_a_unit_computes_its_rows_and_returns_its_error(engine):
    run = inspect.unwrap(workflows.unit_workflow)
    engine.results[f"{UNIT_STAGE} 2 4"] = StepResult(output={"x": 1})
    given = (UNIT_STAGE, engine.log.project_id, engine.round_id, {}, [2, 4])
    assert StepResult.from_dict(run(*given)).output == {"x": 1}
    assert engine.activities == [("unit-3", engine.round_id, UNIT_STAGE, False)]
    engine.results[f"{UNIT_STAGE} 2 4"] = InvalidInput("Too few.")
    failed = StepResult.from_dict(run(*given))
    assert failed.error == "Too few." and "InvalidInput" in failed.log and engine.log.get(engine.round_id).unfinished


@pytest.mark.parametrize(
    ("unit", "words"),
    [(ended_as("SUCCESS", error="Full."), "Full."), (ended_as("ERROR"), "A part of the stage was lost")],
)
def test_a_failed_unit_ends_the_wait(engine, unit, words):
    engine.statuses = [{"a": SimpleNamespace(status="ENQUEUED", output=None), "b": unit}]
    with pytest.raises(WinnowError, match=words):
        workflows._follow(["a", "b"], SimpleNamespace(stage="x", report=engine.reports.append))  # type: ignore[arg-type]


def test_waiting_rounds_are_enqueued_once_and_orphans_end(engine, monkeypatch):
    store, later = engine.log.store, []
    monkeypatch.setattr(workflows.simulation_workflows, "enqueue_waiting", later.append)
    name = f"round-{engine.round_id}"
    engine.statuses = [{}]
    workflows.enqueue_waiting(store)
    round_ = (workflows.engine.ROUNDS, workflows.round_workflow, name, engine.log.project_id, engine.round_id)
    assert engine.enqueued == [round_] and engine.asked_for == [[name]] and later == [store]
    engine.statuses = [{name: ended_as("PENDING")}, {name: ended_as("CANCELLED")}]
    workflows.enqueue_waiting(store)
    assert engine.enqueued == [round_] and engine.status() == "requested"
    workflows.enqueue_waiting(store)
    assert engine.status() == "failed" and "stopped from outside" in engine.log.get(engine.round_id).error
    workflows.enqueue_waiting(store)  # nothing waits: the engine is not queried
    assert len(engine.asked_for) == 3
    asked = comparisons.request(store, engine.round_id, ["badge"])
    workflows.enqueue_waiting(store)
    assert engine.enqueued[1:] == [
        (workflows.engine.ROUNDS, workflows.comparison_workflow, f"comparison-{engine.round_id}-{asked.ticket}",
         engine.log.project_id, engine.round_id, asked.ticket)
    ]  # fmt: skip


def test_a_round_whose_workflow_lost_the_database_starts_again_and_ends_with_the_reason(engine, monkeypatch):
    store, name = engine.log.store, f"round-{engine.round_id}"
    monkeypatch.setattr(workflows.simulation_workflows, "enqueue_waiting", lambda store: None)
    lost = SimpleNamespace(workflow_id=name, status="ERROR", error=WinnowError("The database closed the connection."))
    for attempt in range(workflows.MOST_DEATHS):
        assert workflows._begin(engine.log.project_id, engine.round_id) == ""
        if attempt < workflows.MOST_DEATHS - 1:
            engine.statuses = [{name: lost}]
            workflows.enqueue_waiting(store)
            assert engine.deleted == [([name], True)] * (attempt + 1), "with its units; the next poll enqueues it"
            assert engine.log.get(engine.round_id).unfinished
    engine.statuses = [{name: lost}]
    workflows.enqueue_waiting(store)
    assert len(engine.deleted) == workflows.MOST_DEATHS - 1
    assert engine.log.get(engine.round_id).error == (
        "The worker lost the database in 5 attempts at the same stage, so the round was ended. Last error: The "
        "database closed the connection. Check that the worker can reach its database and write to its disk, then "
        "start a new round."
    )


@pytest.mark.parametrize("times", [1, 3])
def test_a_step_that_lost_the_database_is_run_again(engine, times):
    stage, kept = steps.ORDER[1], engine.perform
    lost = [
        StoreUnreachable("The database closed the connection."),
        OperationalError("SELECT", {}, Exception("connection refused")),  # of the engine's own tables
        StoreUnreachable("Once more."),
    ][:times]

    def perform(name: str, of: Any, blocks: Any = ()) -> StepResult:
        result: StepResult = kept(name, of, blocks)
        if name == stage and lost:
            raise lost.pop()
        return result

    engine.monkeypatch.setattr(workflows.steps, "perform", perform)
    engine.monkeypatch.setattr(workflows.steps, "SPLIT", ())
    assert engine.run() == "finished"
    performed = [name for name, _ in engine.performed]
    assert performed == [one for one in steps.ORDER for _ in range(times + 1 if one == stage else 1)]
    assert engine.log.get(engine.round_id).unfinished and engine.cancelled == []


def test_a_unit_and_a_comparison_that_lost_the_database_are_run_again(engine, monkeypatch):
    lost = [StoreUnreachable("Away."), StoreUnreachable("Away.")]

    def perform_unit(stage: str, of: Any, a: int, b: int) -> StepResult:
        if lost:
            raise lost.pop()
        return StepResult(output={"x": 1})

    monkeypatch.setattr(workflows.steps, "perform_unit", perform_unit)
    given = (UNIT_STAGE, engine.log.project_id, engine.round_id, {}, [2, 4])
    assert StepResult.from_dict(inspect.unwrap(workflows.unit_workflow)(*given)).output == {"x": 1}
    store, away = engine.log.store, [StoreUnreachable("Away.")]
    asked = comparisons.request(store, engine.round_id, ["badge"])

    def compare(store: Any, row: Any, asked: Any) -> Any:
        raise away.pop() if away else InvalidInput("No arrays.")

    monkeypatch.setattr(workflows, "compare", compare)
    run = inspect.unwrap(workflows.comparison_workflow)
    assert run(engine.log.project_id, engine.round_id, asked.ticket) == "failed" and not away


def test_a_database_that_stays_unavailable_ends_the_wait(engine, monkeypatch):
    class Away:
        def read(self) -> Any:
            raise StoreUnreachable("The database closed the connection.")

    waits: list[float] = []
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(outages, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=waits.append))
    with pytest.raises(StoreUnreachable, match="closed the connection"):
        outages.wait_for(Away())  # type: ignore[arg-type]
    assert len(waits) == 6
    with pytest.raises(OperationalError):  # not a lost connection: not repeated
        outages.through_outages(
            engine.log.store, lambda: (_ for _ in ()).throw(OperationalError("", {}, Exception("")))
        )


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_work_continues_after_postgresql_ended_its_connection(store):
    runs: list[int] = []

    def work() -> str:
        runs.append(1)
        with store.read() as connection:
            if len(runs) < 3:
                connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return "done"

    assert outages.through_outages(store, work) == "done" and len(runs) == 3


def test_an_orphan_that_was_to_be_cancelled_is_cancelled_and_an_ended_one_stays(engine):
    engine.log.start(engine.round_id)
    engine.log.cancel(engine.round_id)
    workflows._restart_or_end(engine.log, engine.round_id, ended_as("CANCELLED"))
    assert engine.status() == "cancelled"
    workflows._restart_or_end(engine.log, engine.round_id, ended_as("ERROR"))
    assert engine.status() == "cancelled" and not engine.log.get(engine.round_id).error


def test_workflows_of_another_version_are_deleted_with_their_children(engine, monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(workflows.engine, "outdated", lambda living: found)
    assert workflows.restart_outdated(["w"]) == [] and engine.deleted == []
    found.append("round-3")
    monkeypatch.setattr(workflows.simulation_workflows, "parents_of", lambda ids: [f"parent of {ids[0]}"])
    assert workflows.restart_outdated(["w"]) == ["round-3"]
    assert engine.deleted == [(["round-3"], True), (["parent of round-3"], False)]


def test_only_the_comparison_that_is_requested_is_computed(engine, monkeypatch):
    store, given = engine.log.store, (engine.log.project_id, engine.round_id)
    run = inspect.unwrap(workflows.comparison_workflow)
    assert run(*given, "none") == "superseded"
    asked = comparisons.request(store, engine.round_id, ["badge"])

    def compare(store: Any, row: Any, asked: Any) -> Any:
        raise InvalidInput("No arrays.")

    monkeypatch.setattr(workflows, "compare", compare)
    assert run(*given, "another") == "superseded" and comparisons.get(store, engine.round_id) == asked
    assert run(*given, asked.ticket) == "failed"
    stored = comparisons.get(store, engine.round_id)
    assert stored is not None and (stored.status, stored.error) == ("failed", "No arrays.")
    assert run(*given, asked.ticket) == "superseded", "it was answered"
