"""Rounds as durable workflows: the stages of `core.rounds.pipeline`, each a step of the engine.

A finished stage is remembered by the names of the files it left, so a round that lost its worker goes on with the next
stage in another. A stage that was cut off is done again from its beginning or its last checkpoint, with the same seed
and the same inputs, and gives the same result.

Simulations have workflows of their own (`app.simulation.workflows`).

Large stages (prediction, kernel features) are cut into units, child workflows on a queue that every worker serves.

No exception of a stage reaches the engine: a fault or a cancellation ends the round in the store, with its sentence,
and the stage says so in its parcel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from dbos import DBOS

from app.rounds import requests as round_requests
from app.rounds import steps
from app.rounds.comparison import compare
from app.rounds.stage_outputs import Parcel
from app.simulation import workflows as simulation_workflows
from app.worker import context as worker_context
from app.worker import engine
from app.worker.error_messages import sentence, story
from app.worker.heartbeat import Activity, Superseded
from core.errors import Cancelled, WinnowError
from core.types import Progress
from storage.database.store import Store
from storage.rounds import comparisons
from storage.rounds.log import ProgressRow, RoundLog, RoundRow, project_of, unfinished_rounds

LOG = logging.getLogger("winnow.worker")
MOST_DEATHS = 5  # of workers in the same stage of a round
WATCH_SECONDS = 0.25


def round_workflow_id(round_id: int) -> str:
    return f"round-{round_id}"


@DBOS.workflow(name="winnow.round")
def round_workflow(project_id: int, round_id: int) -> str:
    """One round, from snapshot to picks. Gives how it ended."""
    if ended := _begin(project_id, round_id):
        return ended
    parcels: dict[str, Parcel] = {}
    for stage in steps.ORDER:
        units = []
        if stage in steps.SHARED:
            plan = DBOS.run_step({"name": f"plan {stage}"}, _perform, f"plan {stage}", project_id, round_id, parcels)
            if "ended" in plan:
                return str(plan["ended"])
            parcels[f"plan {stage}"] = plan
            units = [f"{round_workflow_id(round_id)}-{stage}-{i}" for i in range(len(plan["units"]))]
            for unit, part in zip(units, plan["units"], strict=True):
                engine.enqueue(engine.UNITS, unit_workflow, unit, stage, project_id, round_id, parcels, part)
        parcel = DBOS.run_step({"name": stage}, _perform, stage, project_id, round_id, parcels, units)
        if "ended" in parcel:
            return str(parcel["ended"])
        parcels[stage] = parcel
    return "finished"


@DBOS.workflow(name="winnow.unit")
def unit_workflow(stage: str, project_id: int, round_id: int, parcels: dict[str, Parcel], part: list[int]) -> Parcel:
    """Rows part[0] to part[1] of a shared stage. Gives its parcel, or `error` and `log`."""
    return DBOS.run_step({"name": f"unit {stage}"}, _perform_unit, stage, project_id, round_id, parcels, part)


@DBOS.workflow(name="winnow.comparison")
def comparison_workflow(project_id: int, round_id: int, ticket: str) -> str:
    """What other strategies would have picked, on the arrays that the round stored."""
    return DBOS.run_step({"name": "compare"}, _compare, project_id, round_id, ticket)


def enqueue_waiting(store: Store) -> None:
    """Give the engine every round, comparison and simulation that waits. What it knows already stays as it is; what it
    ended without the store knowing (a workflow cancelled by hand) is ended in the store too."""
    waiting = unfinished_rounds(store)
    known = engine.statuses([round_workflow_id(round_id) for _, round_id in waiting]) if waiting else {}
    for project_id, round_id in waiting:
        row = known.get(round_workflow_id(round_id))
        if row is None:
            engine.enqueue(engine.ROUNDS, round_workflow, round_workflow_id(round_id), project_id, round_id)
        elif row.status not in engine.UNFINISHED:
            _end_orphan(RoundLog(store, project_id), round_id, row.status)
    for asked in comparisons.requested(store):
        project_id = project_of(store, asked.round_id)
        workflow_id = f"comparison-{asked.round_id}-{asked.ticket}"
        engine.enqueue(engine.ROUNDS, comparison_workflow, workflow_id, project_id, asked.round_id, asked.ticket)
    simulation_workflows.enqueue_waiting(store)


def _end_orphan(log: RoundLog, round_id: int, status: str) -> None:
    row = log.get(round_id)
    if row.unfinished:
        if row.cancel_requested:
            log.mark_cancelled(round_id)
        else:
            log.fail(round_id, f"The round's workflow ended as {status} without a result. Start the round again.")


def _begin(project_id: int, round_id: int) -> str:
    """Done each time a worker takes the round up. Gives how it ended, if it has."""
    at = worker_context.current()
    log = RoundLog(at.store, project_id)
    row = log.get(round_id)
    if not row.unfinished:
        return row.status
    if row.cancel_requested:
        return log.mark_cancelled(round_id).status
    log.start(round_id, round_workflow_id(round_id))
    progress = log.progress_of(round_id, limit=10_000)
    deaths = _deaths(progress)
    if deaths >= MOST_DEATHS:
        over = {step.stage for step in progress if step.note == steps.FINISHED}
        stage = next(stage for stage in steps.ORDER if stage not in over)
        error = (
            f"{deaths} workers were lost in the stage {stage}, probably for lack of memory. Lower the number of "
            "landmarks, views or candidates, or start a worker on a larger machine."
        )
        return log.fail(round_id, error).status
    log.progress(round_id, Progress(round_requests.START, deaths + 1, 1, at.worker_id))
    return ""


def _deaths(progress: Sequence[ProgressRow]) -> int:
    """Workers lost since a stage was last finished; the one that finished it is lost too, or it would still work."""
    after = 0
    for step in reversed(progress):
        if step.note == steps.FINISHED:
            return after + 1
        after += step.stage == round_requests.START
    return after


def _perform(
    stage: str, project_id: int, round_id: int, parcels: dict[str, Parcel], units: Sequence[str] = ()
) -> Parcel:
    """One stage, in this worker. Faults end the round and come back as {"ended": status}."""
    at = worker_context.current()
    log = RoundLog(at.store, project_id)
    row = log.get(round_id)
    if not row.unfinished:
        return {"ended": row.status}
    try:
        with at.heartbeat.activity(round_workflow_id(round_id), round_id, stage.removeprefix("plan ")) as activity:
            began = time.perf_counter()
            LOG.info("round %s: %s begins", round_id, stage)
            done = _follow(units, activity) if units else []
            bench = steps.StageContext(at.store, row, parcels, activity.report)
            parcel = steps.perform(stage, bench, done)
            activity.report(Progress(stage.removeprefix("plan "), 1, 1))
            _require_ownership(round_id)
        if stage in steps.ORDER and stage != "finish":
            log.progress(round_id, Progress(stage, 1, 1, steps.FINISHED))
        LOG.info("round %s: %s ends", round_id, stage)
        return parcel | {"seconds": round(time.perf_counter() - began, 3)}
    except Superseded:
        raise
    except Exception as error:
        engine.cancel(list(units))
        return {"ended": _end(log, round_id, error)}


def _require_ownership(round_id: int) -> None:
    if not engine.owns(round_workflow_id(round_id), worker_context.current().worker_id):
        raise Superseded("Another worker took this round over.")


def _end(log: RoundLog, round_id: int, error: Exception) -> str:
    if isinstance(error, Cancelled):
        return log.mark_cancelled(round_id).status
    LOG.warning("round %s failed: %s", round_id, sentence(error))
    return log.fail(round_id, sentence(error), story(error)).status


def _perform_unit(stage: str, project_id: int, round_id: int, parcels: dict[str, Parcel], part: list[int]) -> Parcel:
    at = worker_context.current()
    row: RoundRow = RoundLog(at.store, project_id).get(round_id)
    workflow_id = str(DBOS.workflow_id)
    try:
        with at.heartbeat.activity(workflow_id, round_id, stage, writes=False) as activity:
            LOG.info("round %s: unit %s begins", round_id, workflow_id)
            bench = steps.StageContext(at.store, row, parcels, activity.report)
            parcel = steps.perform_unit(stage, bench, part[0], part[1])
            if not engine.owns(workflow_id, at.worker_id):
                raise Superseded("Another worker took this unit over.")
        LOG.info("round %s: unit %s ends", round_id, workflow_id)
        return parcel
    except Superseded:
        raise
    except Exception as error:
        return {"error": sentence(error), "log": story(error)}


def _follow(units: Sequence[str], activity: Activity) -> list[Parcel]:
    """Wait for the units, wherever they run. Gives their parcels in order."""
    while True:
        rows = engine.statuses(units)
        done: dict[str, Parcel] = {unit: row.output or {} for unit, row in rows.items() if row.status == "SUCCESS"}
        failed = [str(parcel["error"]) for parcel in done.values() if "error" in parcel]
        lost = [row for row in rows.values() if row.status not in (*engine.UNFINISHED, "SUCCESS")]
        if failed or lost:
            raise WinnowError(failed[0] if failed else f"A unit of the round ended as {lost[0].status}.")
        activity.report(Progress(activity.stage, len(done), len(units), f"{len(done)} of {len(units)} blocks"))
        if len(done) == len(units):
            return [done[unit] for unit in units]
        time.sleep(WATCH_SECONDS)


def _compare(project_id: int, round_id: int, ticket: str) -> str:
    at = worker_context.current()
    asked = comparisons.get(at.store, round_id)
    if asked is None or asked.ticket != ticket or asked.status != "requested":
        return "superseded"
    try:
        answer: Any = compare(at.store, RoundLog(at.store, project_id).get(round_id), asked)
    except Exception as error:
        answer = comparisons.failed(asked, sentence(error))
    comparisons.store_result(at.store, answer)
    return str(answer.status)
