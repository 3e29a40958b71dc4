"""Simulations of a project as durable workflows: one workflow starts the simulation, and each seed is a workflow.

A seed trains the model of its initial labels, then runs its trials, one strategy after another
(`core.rounds.simulation.Trial`). Each record is written to the store before the next round begins, so another worker
can continue a seed after its last record. Models are in the cache of the machine that trains them. If they are missing,
the trial is repeated from its beginning and yields the same records. Only ids pass through the engine.

Rounds have priority: they have separate queues, and a seed pauses while its worker runs a stage of a round (the seconds
of a record include the pause).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from dbos import DBOS

from app.simulation.dataset import StudyData, pool_of
from app.simulation.requests import SimulationRequest, question_of
from app.simulation.results import record_from, refuse_earlier
from app.simulation.trial_process import Task, TrialSetting, make_trial, start_file
from app.worker import context as worker_context
from app.worker import engine
from app.worker.context import WorkerContext
from app.worker.error_messages import sentence, traceback_text
from app.worker.heartbeat import Activity, ActivityCallbacks, Superseded
from app.worker.outages import through_outages
from core.config import RoundConfig, from_dict, from_stored, to_json
from core.encoders.choice import resolve_encoder
from core.errors import Cancelled, NotFound, WinnowError
from core.rounds.approach.presets import resolve_at_start
from core.rounds.simulation_plan import RoundRecord
from core.runtime import Runtime
from core.types import Progress, Report
from storage.database.store import Store, is_outage
from storage.media import shared as shared_media
from storage.projects.projects import get_project
from storage.rounds import simulations
from storage.rounds.simulations import SimulationRow

LOG = logging.getLogger("winnow.worker")
ANEW = "Start a new simulation."
MOST_LOST_WORKERS = 5  # at the same record of a seed
PAUSE_SECONDS = 0.2
STAGE = "simulate"
SEED_ID = re.compile(r"(simulation-\d+-\d+)-\d+")  # as `workflow_id` makes it; the group is the parent


def workflow_id(row: SimulationRow, seed: int | None = None) -> str:
    return f"simulation-{row.id}-{row.attempt}" + ("" if seed is None else f"-{seed}")


@DBOS.workflow(name="winnow.simulation")
def simulation_workflow(simulation_id: int, attempt: int) -> str:
    """Store the settings that all seeds share and enqueue the seeds. The seed that ends last ends the simulation."""
    seeds = DBOS.run_step({"name": "begin"}, _begin, simulation_id, attempt)
    for seed in range(seeds):
        name = f"{DBOS.workflow_id}-{seed}"
        engine.enqueue(engine.STUDIES, seed_workflow, name, simulation_id, attempt, seed)
    return "begun" if seeds else "ended"


@DBOS.workflow(name="winnow.simulation-seed")
def seed_workflow(simulation_id: int, attempt: int, seed: int) -> str:
    """Run all trials of a seed. Returns the status with which it ended."""
    return DBOS.run_step({"name": "trials"}, _seed, simulation_id, attempt, seed)


def parents_of(workflow_ids: Sequence[str]) -> list[str]:
    """The parent workflows of these seeds. Only its parent can enqueue a seed again."""
    return sorted({found[1] for one in workflow_ids if (found := SEED_ID.fullmatch(one))} - set(workflow_ids))


def enqueue_waiting(store: Store) -> None:
    """Enqueue every waiting simulation, and fail those whose workflows ended without a result."""
    for row in simulations.unfinished(store):
        seeds = [workflow_id(row, seed) for seed in range(from_dict(SimulationRequest, dict(row.asked)).seeds)]
        known = engine.statuses([workflow_id(row), *seeds])
        lost = [one for one in known.values() if one.status not in (*engine.UNFINISHED, "SUCCESS")]
        if workflow_id(row) not in known:
            engine.enqueue(engine.STUDIES, simulation_workflow, workflow_id(row), row.id, row.attempt)
        elif lost:
            reason = str(getattr(lost[0], "error", None) or f"the engine reports {lost[0].status}").rstrip(".")
            error = f"A part of the simulation was lost: {reason}. Resume the simulation: finished parts are kept."
            simulations.fail(store, row.id, row.attempt, error)


def _begin(simulation_id: int, attempt: int) -> int:
    """Start the simulation. Returns the number of seeds to enqueue."""
    store = worker_context.current().store
    return through_outages(store, lambda: _begin_once(store, simulation_id, attempt))


def _begin_once(store: Store, simulation_id: int, attempt: int) -> int:
    try:
        row = simulations.get(store, simulation_id)
        asked = from_stored(RoundConfig, dict(row.settings))
        config = resolve_encoder(asked, store.home, get_project(store, row.project_id).kind)
        config = resolve_at_start(config, Runtime.create(0))
        pool = pool_of(store, row.project_id).digest
        _tidy(store)
        if simulations.begin(store, simulation_id, attempt, json.loads(to_json(config)), pool):
            return from_dict(SimulationRequest, dict(row.asked)).seeds
    except NotFound:
        LOG.info("simulation %s no longer exists", simulation_id)
    except Exception as error:
        if is_outage(error):
            raise
        _fail(store, simulation_id, attempt, error)
    return 0


def _seed(simulation_id: int, attempt: int, seed: int) -> str:
    return through_outages(worker_context.current().store, lambda: _seed_once(simulation_id, attempt, seed))


def _seed_once(simulation_id: int, attempt: int, seed: int) -> str:
    at, name = worker_context.current(), str(DBOS.workflow_id)
    if not simulations.is_wanted(at.store, simulation_id, attempt):
        return "superseded"
    try:
        row = simulations.get(at.store, simulation_id)
        _check_lost_workers(simulations.start_seed(at.store, simulation_id, seed), seed)
        LOG.info("simulation %s: seed %s begins", simulation_id, seed)
        with at.heartbeat.activity(name, simulation_id, STAGE, callbacks=_callbacks(at, row, seed)) as activity:
            _Seed(at, row, seed, activity).work()
            if not engine.owns(name, at.worker_id):
                raise Superseded("Another worker took this seed over.")
        simulations.seed_done(at.store, simulation_id, attempt, seed, question_of(row).n_records)
        shutil.rmtree(scratch(at.store, row, seed), ignore_errors=True)
        LOG.info("simulation %s: seed %s ends", simulation_id, seed)
        return "finished"
    except Superseded:
        raise
    except Cancelled:
        return "cancelled"
    except Exception as error:
        if is_outage(error):
            raise
        _fail(at.store, simulation_id, attempt, error)
        return "failed"


def _check_lost_workers(starts: int, seed: int) -> None:
    """Raise an error if too many workers were lost while they ran this seed."""
    if starts > MOST_LOST_WORKERS:
        raise WinnowError(
            f"{starts - 1} workers were lost at seed {seed}, probably for lack of memory. Start a worker on a "
            "machine with more memory and resume, or use a smaller training preset."
        )


def _fail(store: Store, simulation_id: int, attempt: int, error: Exception) -> None:
    LOG.warning("simulation %s failed: %s", simulation_id, sentence(error))
    simulations.fail(store, simulation_id, attempt, sentence(error), traceback_text(error))


def _callbacks(at: WorkerContext, row: SimulationRow, seed: int) -> ActivityCallbacks:
    return ActivityCallbacks(
        owns=lambda name: engine.owns(name, at.worker_id),
        is_cancelled=lambda simulation_id: not simulations.is_wanted(at.store, simulation_id, row.attempt),
        write=lambda simulation_id, progress: simulations.note(at.store, simulation_id, seed, progress.note),
        of_rounds=False,
    )


class _Seed:
    """Runs the trials of one seed on this machine."""

    def __init__(self, at: WorkerContext, row: SimulationRow, seed: int, activity: Activity) -> None:
        self.at, self.row, self.seed, self.activity = at, row, seed, activity
        self.question = question_of(row)
        self.setting = TrialSetting(
            folder=str(scratch(at.store, row, seed)), cache=str(at.store.home / "cache" / "rows")
        )

    def work(self) -> None:
        """Run the unfinished trials. Raises an error if items or known labels have changed since the request."""
        store, project_id = self.at.store, self.row.project_id
        start = Task("start", self.seed)
        tasks = [task for task in self._trials() if self._missing(task)]
        if not tasks:
            return
        refuse_earlier("The simulation", [one for task in self._trials() for one in self._done(task)], ANEW)
        shared_media.share(store, project_id, self.row.last_item_id, self._report(start))
        read = shared_media.reader(store, project_id)
        data = StudyData(pool=pool_of(store, project_id), read=read, store=store, project_id=project_id)
        if data.pool.digest != self.row.pool:
            raise WinnowError("Items or known labels changed since this simulation started. Start a new one.")
        if not start_file(Path(self.setting.folder), self.seed).exists():
            make_trial(self.question, data, self.setting, start).train_start(self._report(start))
        for task in tasks:
            trial = make_trial(self.question, data, self.setting, task)
            for record in trial.run(self._done(task), self._report(task)):
                simulations.add(store, self.row.id, dataclasses.asdict(record))
                LOG.info("simulation %s: %s, round %s is there", self.row.id, task, record.round)

    def _trials(self) -> list[Task]:
        return [Task("trial", self.seed, strategy) for strategy in self.question.strategies]

    def _done(self, task: Task) -> list[RoundRecord]:
        found = simulations.records(self.at.store, self.row.id, task.strategy, task.seed)
        return [record_from(values) for values in found]

    def _missing(self, task: Task) -> bool:
        return len(self._done(task)) <= self.question.plan.rounds

    def _report(self, task: Task) -> Report:
        """A report that adds the task's name, and that pauses while this worker runs a round."""

        def report(progress: Progress) -> None:
            share = f" {progress.done:,}/{progress.total:,}" if progress.total > 1 else ""
            self.activity.report(Progress(STAGE, progress.done, progress.total, f"{task}: {progress.stage}{share}"))
            while self.at.heartbeat.runs_round:
                self.activity.report(Progress(STAGE, 0, 1, f"{task}: waiting for a round"))
                time.sleep(PAUSE_SECONDS)

        return report


def scratch(store: Store, row: SimulationRow, seed: int | None = None) -> Path:
    """The folder of models and checkpoints on this machine. Its name contains the time of the request, because a
    restored store may reuse an id."""
    folder = store.home / "cache" / "simulations" / f"{row.id}-{row.requested_at:%Y%m%d%H%M%S%f}"
    return folder if seed is None else folder / str(seed)


def _tidy(store: Store) -> None:
    """Remove the folders of simulations that are finished or deleted."""
    kept = {scratch(store, row).name for row in simulations.not_finished(store)}
    for folder in (store.home / "cache" / "simulations").glob("*-*"):
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)
