"""Runs a simulation on this machine: tasks run in parallel, and each result is written to disk immediately.

Running the same question again computes only the missing results. A different question in the same folder raises
`Conflict`. Results that several trials share are computed once, as separate tasks: the model of a seed's initial labels
and the kernel features of the pool. Tasks run in child processes (`app.simulation.trial_process`) that share the cores
and end with this process. Progress goes to `report`. If `report` raises, the child processes are killed; finished
records are kept.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from app.processes.child import PipedChild, explain_exit
from app.processes.messages import Message
from app.simulation.results import Question, ResultsFile, record_from
from app.simulation.trial_process import Task, TrialSetting, start_file
from app.views.durations import duration
from core.errors import WinnowError
from core.module_processes import module_command
from core.rounds.simulation_plan import RoundRecord
from core.types import Progress, Report, ignore
from storage.labeling.groups import both_sides_warning

POLL_SECONDS = 0.5


def simulate(
    question: Question,
    folder: Path,
    *,
    processes: int | None = None,
    cache: Path | None = None,
    report: Report = ignore,
    warn: Callable[[str], None] = lambda warning: None,
) -> list[RoundRecord]:
    """Compute all records of the question that are not in `folder` yet, and return all of them.

    Simulations on the same data may share `cache`. By default it is in the folder, or the project's cache is used.
    `warn` gets a sentence if groups of items are divided between the pool and the test items.
    """
    from app.simulation.dataset import cache_of, open_study

    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    results = ResultsFile(folder, question)
    waiting = [
        Task("trial", seed, strategy)
        for strategy, seed in question.trials
        if len(results.of_trial(strategy, seed)) <= question.plan.rounds
    ]
    tracker = _ProgressTracker(question, results, report)
    tracker.report_progress()
    if waiting:
        data = open_study(question, folder, report)
        for warning in both_sides_warning(data.store, data.project_id):
            warn(warning)
        data.store.close()
        n, threads = shared_cores(processes, len(waiting))
        results.write(about={"machine": machine(n, threads)})
        cache = (cache or cache_of(question, folder)).absolute()
        setting = TrialSetting(folder=str(folder), cache=str(cache), threads=threads)
        _ProcessPool(question, setting, n, tracker).run([*shared_tasks(question, folder, waiting), *waiting])
    return question.of_mine(ResultsFile(folder, question).records)


def shared_tasks(question: Question, folder: Path, trials: Sequence[Task]) -> list[Task]:
    """The tasks that these trials depend on. If the pool is reduced by seed, each seed has its own pool features."""
    seeds = list(dict.fromkeys(task.seed for task in trials))
    pools = seeds if question.plan.rare_class else seeds[:1]
    pools = pools if question.plan.rounds else []
    starts = [Task("start", seed) for seed in seeds if not start_file(folder, seed).exists()]
    return [*(Task("pool", seed) for seed in pools), *starts]


def shared_cores(processes: int | None, n_trials: int) -> tuple[int, int]:
    """(number of processes, threads per process).

    By default there is one process per core with one thread each, because parallel trials use cores better than threads
    do. With a GPU there is one process. OMP_NUM_THREADS overrides the number of threads.
    """
    cores = os.cpu_count() or 1
    on_gpu = os.environ.get("WINNOW_DEVICE", "").startswith("cuda") or (not processes and _has_gpu())
    n = min(processes or (1 if on_gpu else cores), n_trials)
    return n, int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, cores // n)


def _has_gpu() -> bool:
    from core.runtime import default_device

    return default_device().type == "cuda"


def machine(processes: int, threads: int) -> dict[str, Any]:
    """A description of this machine for the results."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "processes": processes,
        "threads": threads,
    }


@dataclass(eq=False)
class _TrialProcess:
    """One child process and its current task."""

    child: PipedChild
    task: Task | None = None
    note: str = ""

    def assign(self, task: Task) -> None:
        self.child.send(dataclasses.asdict(task))
        self.task, self.note = task, str(task)


@dataclass
class _ProcessPool:
    """Assigns tasks to child processes until all tasks are done."""

    question: Question
    setting: TrialSetting
    n_processes: int
    tracker: _ProgressTracker
    processes: list[_TrialProcess] = field(default_factory=list)

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks. Raises the error of the first task that fails. The child processes never outlive this call."""
        waiting = list(tasks)
        try:
            while waiting or any(process.task for process in self.processes):
                self._assign(waiting)
                self._receive()
        finally:
            for process in self.processes:
                process.child.close()

    def _assign(self, waiting: list[Task]) -> None:
        """Assign to each idle process the first waiting task whose dependencies are finished."""
        while True:
            running = [process.task for process in self.processes if process.task]
            rare = bool(self.question.plan.rare_class)
            task = next((one for one in waiting if not is_blocked(one, [*waiting, *running], rare)), None)
            idle = next((process for process in self.processes if process.task is None), None)
            if task is None or (idle is None and len(self.processes) >= self.n_processes):
                return
            (idle or self._start()).assign(task)
            waiting.remove(task)

    def _start(self) -> _TrialProcess:
        child = PipedChild(module_command("app.simulation.trial_process"), cwd=Path.cwd())
        child.send({"question": self.question.to_dict(), "setting": dataclasses.asdict(self.setting)})
        self.processes.append(_TrialProcess(child))
        return self.processes[-1]

    def _receive(self) -> None:
        ready = wait([process.child.fileno() for process in self.processes], POLL_SECONDS)
        for process in [one for one in self.processes if one.child.fileno() in ready]:
            try:
                messages = process.child.read()
            except EOFError:
                code = process.child.close()
                raise WinnowError(
                    f"The process for {process.task} stopped ({explain_exit(code)}), often for lack of memory. "
                    "Finished records are kept. Run the command again with fewer --processes to resume."
                ) from None
            for message in messages:
                self._handle(process, message)
        self.tracker.report_progress([process.note for process in self.processes if process.task])

    def _handle(self, process: _TrialProcess, message: Message) -> None:
        if message.kind == "error":
            raise message.error()
        if message.kind == "result":
            process.task, process.note = None, ""
        elif message.kind == "record":
            self.tracker.add(record_from(message.body))
        else:
            progress = message.progress()
            share = f" {progress.done:,}/{progress.total:,}" if progress.total > 1 else ""
            process.note = f"{process.task}: {progress.stage}{share}"


def is_blocked(task: Task, unfinished: Sequence[Task], pool_by_seed: bool) -> bool:
    """Whether `task` depends on an unfinished task."""
    shared = [one for one in unfinished if one.kind == "start" or pool_by_seed]
    pools = [one for one in unfinished if one.kind == "pool" and not pool_by_seed]
    return task.kind == "trial" and (bool(pools) or any(one.seed == task.seed for one in shared if one.kind != "trial"))


class _ProgressTracker:
    """Counts records and reports progress with the remaining time."""

    def __init__(self, question: Question, results: ResultsFile, report: Report) -> None:
        self.question, self.report = question, report
        self.done = {(one.strategy, one.seed, one.round) for one in question.of_mine(results.records)}
        self.began, self.fresh, self.newest = time.monotonic(), 0, ""

    def add(self, record: RoundRecord) -> None:
        """Count a new record."""
        self.done.add((record.strategy, record.seed, record.round))
        self.fresh += 1
        self.newest = (
            f"{record.strategy}, seed {record.seed}: {100 * record.accuracy:.1f} % at {record.n_labels} labels"
        )

    def report_progress(self, running: Sequence[str] = ()) -> None:
        """Report the number of records, the newest record, the time left and the running tasks."""
        done, total = len(self.done), self.question.n_records
        notes = [self.newest] if self.newest else []
        if self.fresh and done < total:
            left = (time.monotonic() - self.began) / self.fresh * (total - done)
            notes.insert(0, f"about {duration(left)} left")
        self.report(Progress("simulate", done, total, " · ".join([*notes, *running])))
