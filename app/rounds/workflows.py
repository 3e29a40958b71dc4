"""Rounds as durable workflows: each stage of `core.rounds.stages` is a step of the engine.

The engine stores the result of each finished step, which references the files of its output. If the worker of a round
is lost, another worker continues with the next stage. An interrupted stage is run again from its beginning or its last
checkpoint, with the same seed and inputs, and gives the same result.

Simulations have workflows of their own (`app.simulation.workflows`).

Large stages (prediction, kernel features) are divided into units: child workflows on a queue that all workers serve.

Exceptions of a stage do not reach the engine: an error or a cancellation ends the round in the store, with its message,
and the result of the step has the status. If the connection to the database is lost, the step is run again when the
database is reachable (`app.worker.outages`). After a long outage the engine stores an error, and the round is started
again, a limited number of times.

Step results of another version of the program are not read. If no living worker runs a round of another version, the
round starts again from its first step (`restart_outdated`).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from dbos import DBOS

from app.rounds import steps
from app.rounds.comparison import compare
from app.rounds.stage_outputs import Stored
from app.rounds.stored_round import FINISH, StepResult, StoredRound
from app.simulation import workflows as simulation_workflows
from app.worker import context as worker_context
from app.worker import engine
from app.worker.error_messages import sentence, traceback_text
from app.worker.heartbeat import Activity, Superseded
from app.worker.outages import through_outages
from core.errors import Cancelled, WinnowError
from core.types import Progress
from storage.database.store import Store, is_outage
from storage.rounds import comparisons
from storage.rounds.log import FINISHED, START, ProgressRow, RoundLog, RoundRow, project_of, unfinished_rounds

LOG = logging.getLogger("winnow.worker")
MOST_DEATHS = 5  # workers that may be lost in the same stage of a round
WATCH_SECONDS = 0.25


def round_workflow_id(round_id: int) -> str:
    return f"round-{round_id}"


@DBOS.workflow(name="winnow.round")
def round_workflow(project_id: int, round_id: int) -> str:
    """Run one round, from snapshot to picks. Returns its final status."""
    if ended := through_outages(worker_context.current().store, lambda: _begin(project_id, round_id)):
        return ended
    results: dict[str, Stored] = {}
    for stage in steps.ORDER:
        units: list[str] = []
        if stage in steps.SPLIT:
            name = steps.PLAN + stage
            results[name] = DBOS.run_step({"name": name}, _perform, name, project_id, round_id, results)
            plan = StepResult.from_dict(results[name])
            if plan.ended:
                return plan.ended
            units = [f"{round_workflow_id(round_id)}-{stage}-{i}" for i in range(len(plan.units))]
            for unit, rows in zip(units, plan.units, strict=True):
                engine.enqueue(engine.UNITS, unit_workflow, unit, stage, project_id, round_id, results, list(rows))
        results[stage] = DBOS.run_step({"name": stage}, _perform, stage, project_id, round_id, results, units)
        if ended := StepResult.from_dict(results[stage]).ended:
            return ended
    return "finished"


@DBOS.workflow(name="winnow.unit")
def unit_workflow(stage: str, project_id: int, round_id: int, results: dict[str, Stored], rows: list[int]) -> Stored:
    """Run the rows from rows[0] to rows[1] of a divided stage. Returns a `StepResult` as JSON."""
    return DBOS.run_step({"name": f"unit {stage}"}, _perform_unit, stage, project_id, round_id, results, rows)


@DBOS.workflow(name="winnow.comparison")
def comparison_workflow(project_id: int, round_id: int, ticket: str) -> str:
    """Compute the picks of other strategies from the arrays that the round stored."""
    return DBOS.run_step({"name": "compare"}, _compare, project_id, round_id, ticket)


def enqueue_waiting(store: Store) -> None:
    """Enqueue every waiting round, comparison and simulation that is not enqueued yet.

    A round whose workflow ended without a result is started again. If the workflow was cancelled from outside, the
    round is ended in the store.
    """
    waiting = unfinished_rounds(store)
    known = engine.statuses([round_workflow_id(round_id) for _, round_id in waiting]) if waiting else {}
    for project_id, round_id in waiting:
        row = known.get(round_workflow_id(round_id))
        if row is None:
            engine.enqueue(engine.ROUNDS, round_workflow, round_workflow_id(round_id), project_id, round_id)
        elif row.status not in engine.UNFINISHED:
            _restart_or_end(RoundLog(store, project_id), round_id, row)
    for asked in comparisons.requested(store):
        project_id = project_of(store, asked.round_id)
        workflow_id = f"comparison-{asked.round_id}-{asked.ticket}"
        engine.enqueue(engine.ROUNDS, comparison_workflow, workflow_id, project_id, asked.round_id, asked.ticket)
    simulation_workflows.enqueue_waiting(store)


def restart_outdated(living: Collection[str]) -> list[str]:
    """Delete the unfinished workflows of another version of the program that no living worker runs. Returns their ids.

    The next `enqueue_waiting` starts their rounds, comparisons and simulations again from the rows of the store.
    """
    outdated = engine.outdated(living)
    if outdated:
        engine.delete(outdated, with_children=True)
        engine.delete(simulation_workflows.parents_of(outdated))
        LOG.info("Started again, because another version of the program began them: %s", ", ".join(outdated))
    return outdated


def _restart_or_end(log: RoundLog, round_id: int, workflow: Any) -> None:
    """Restart or end an unfinished round whose workflow has ended.

    Errors of stages end the round in the store, so an error in the engine means that the store could not be used. The
    workflow is then deleted, so that `enqueue_waiting` starts the round again.
    """
    row = log.get(round_id)
    if not row.unfinished:
        return
    if row.cancel_requested:
        log.mark_cancelled(round_id)
    elif workflow.status != "ERROR":
        log.fail(
            round_id,
            f"The round was stopped from outside: the engine reports its status as {workflow.status}. Start a new one.",
        )
    elif _deaths(log.progress_of(round_id, limit=10_000)) >= MOST_DEATHS:
        log.fail(
            round_id,
            f"The worker lost the database in {MOST_DEATHS} attempts at the same stage, so the round was ended. Last "
            f"error: {_reason(workflow)} Check that the worker can reach its database and write to its disk, then "
            "start a new round.",
        )
    else:
        LOG.warning("round %s starts again, because its workflow ended with: %s", round_id, _reason(workflow))
        engine.delete([workflow.workflow_id], with_children=True)


def _reason(workflow: Any) -> str:
    """The error of a workflow as a sentence."""
    error = getattr(workflow, "error", None)
    text = sentence(error) if isinstance(error, BaseException) else str(error or "").strip()
    return f"{text.rstrip('.')}." if text else "the engine stored none."


def _begin(project_id: int, round_id: int) -> str:
    """Record that a worker starts or continues the round. Returns the status if it has ended, else an empty text."""
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
        over = {step.stage for step in progress if step.note == FINISHED}
        stage = next(stage for stage in steps.ORDER if stage not in over)
        error = (
            f"{deaths} workers were lost in the stage {stage}, probably for lack of memory. Lower the number of "
            "landmarks, views or candidates, or start a worker on a larger machine."
        )
        return log.fail(round_id, error).status
    log.progress(round_id, Progress(START, deaths + 1, 1, at.worker_id))
    return ""


def _deaths(progress: Sequence[ProgressRow]) -> int:
    """The number of workers lost since a stage last finished. The worker that finished it counts as lost, too."""
    after = 0
    for step in reversed(progress):
        if step.note == FINISHED:
            return after + 1
        after += step.stage == START
    return after


def _perform(
    step: str, project_id: int, round_id: int, results: dict[str, Stored], units: Sequence[str] = ()
) -> Stored:
    """Run one step in this worker, again after each outage of the database. An error ends the round; the result then
    has its status."""
    store = worker_context.current().store
    return through_outages(store, lambda: _perform_once(step, project_id, round_id, results, units))


def _perform_once(
    step: str, project_id: int, round_id: int, results: dict[str, Stored], units: Sequence[str]
) -> Stored:
    at = worker_context.current()
    log = RoundLog(at.store, project_id)
    row = log.get(round_id)
    if not row.unfinished:
        return StepResult(ended=row.status).to_dict()
    stage = step.removeprefix(steps.PLAN)
    try:
        with at.heartbeat.activity(round_workflow_id(round_id), round_id, stage) as activity:
            began = time.perf_counter()
            LOG.info("round %s: %s begins", round_id, step)
            blocks = _follow(units, activity) if units else []
            result = steps.perform(step, StoredRound(at.store, row, results, activity.report), blocks)
            activity.report(Progress(stage, 1, 1))
            _require_ownership(round_id)
        if step in steps.ORDER and step != FINISH:
            log.progress(round_id, Progress(step, 1, 1, FINISHED))
        LOG.info("round %s: %s ends", round_id, step)
        return dataclasses.replace(result, seconds=round(time.perf_counter() - began, 3)).to_dict()
    except Superseded:
        raise
    except Exception as error:
        if is_outage(error):
            raise
        engine.cancel(list(units))
        return StepResult(ended=_end(log, round_id, error)).to_dict()


def _require_ownership(round_id: int) -> None:
    if not engine.owns(round_workflow_id(round_id), worker_context.current().worker_id):
        raise Superseded("Another worker has taken over this round.")


def _end(log: RoundLog, round_id: int, error: Exception) -> str:
    if isinstance(error, Cancelled):
        return log.mark_cancelled(round_id).status
    LOG.warning("round %s failed: %s", round_id, sentence(error))
    return log.fail(round_id, sentence(error), traceback_text(error)).status


def _perform_unit(stage: str, project_id: int, round_id: int, results: dict[str, Stored], rows: list[int]) -> Stored:
    store = worker_context.current().store
    return through_outages(store, lambda: _perform_unit_once(stage, project_id, round_id, results, rows))


def _perform_unit_once(
    stage: str, project_id: int, round_id: int, results: dict[str, Stored], rows: list[int]
) -> Stored:
    at = worker_context.current()
    row: RoundRow = RoundLog(at.store, project_id).get(round_id)
    workflow_id = str(DBOS.workflow_id)
    try:
        with at.heartbeat.activity(workflow_id, round_id, stage, writes=False) as activity:
            LOG.info("round %s: unit %s begins", round_id, workflow_id)
            result = steps.perform_unit(stage, StoredRound(at.store, row, results, activity.report), rows[0], rows[1])
            if not engine.owns(workflow_id, at.worker_id):
                raise Superseded("Another worker took this unit over.")
        LOG.info("round %s: unit %s ends", round_id, workflow_id)
        return result.to_dict()
    except Superseded:
        raise
    except Exception as error:
        if is_outage(error):
            raise
        return StepResult(error=sentence(error), log=traceback_text(error)).to_dict()


def _follow(units: Sequence[str], activity: Activity) -> list[Stored]:
    """Wait for the units, which any worker may run. Returns their outputs in order."""
    while True:
        rows = engine.statuses(units)
        done = {unit: StepResult.from_dict(row.output or {}) for unit, row in rows.items() if row.status == "SUCCESS"}
        failed = [result.error for result in done.values() if result.error]
        lost = [row for row in rows.values() if row.status not in (*engine.UNFINISHED, "SUCCESS")]
        if failed or lost:
            raise WinnowError(failed[0] if failed else f"A part of the stage was lost: {_reason(lost[0])} Try again.")
        activity.report(Progress(activity.stage, len(done), len(units), f"{len(done)} of {len(units)} blocks"))
        if len(done) == len(units):
            return [done[unit].output or {} for unit in units]
        time.sleep(WATCH_SECONDS)


def _compare(project_id: int, round_id: int, ticket: str) -> str:
    return through_outages(worker_context.current().store, lambda: _compare_once(project_id, round_id, ticket))


def _compare_once(project_id: int, round_id: int, ticket: str) -> str:
    at = worker_context.current()
    asked = comparisons.get(at.store, round_id)
    if asked is None or asked.ticket != ticket or asked.status != "requested":
        return "superseded"
    try:
        answer: Any = compare(at.store, RoundLog(at.store, project_id).get(round_id), asked)
    except Exception as error:
        if is_outage(error):
            raise
        answer = comparisons.failed(asked, sentence(error))
    comparisons.store_result(at.store, answer)
    return str(answer.status)
