"""Running a simulation: tasks in parallel, results on disk as they come, going on after an interruption.

Starting again with the same question computes only what is missing; another question in the same folder is refused by
name. What several trials share is a task of its own and done once: the model of a seed's initial labels, the kernel
features of the pool. Tasks run in processes of their own (`app.simulation.trial_process`), with the cores shared out
between them; they are children of this one and end with it.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from app.simulation.results import Question, ResultsFile
from app.simulation.trial_process import Message, Task, Workplace, start_file, work
from core.errors import WinnowError
from core.rounds.simulation_plan import RoundRecord
from core.types import Progress, Report, ignore

POLL_SECONDS = 0.5


def simulate(
    question: Question,
    folder: Path,
    *,
    processes: int | None = None,
    cache: Path | None = None,
    report: Report = ignore,
) -> list[RoundRecord]:
    """All records of the question; those already in `folder` are not computed again. `cache` may be shared by
    simulations on the same data; by default it lies in the folder, or is the project's."""
    from app.simulation.dataset import cache_of, open_study

    folder.mkdir(parents=True, exist_ok=True)
    results = ResultsFile(folder, question)
    waiting = [
        Task("trial", seed, strategy)
        for strategy, seed in question.trials
        if len(results.of_trial(strategy, seed)) <= question.plan.rounds
    ]
    follow = _Follow(question, results, report)
    follow.tell()
    if waiting:
        data = open_study(question, folder, report)
        data.store.close()
        n, threads = shared_cores(processes, len(waiting))
        results.write(about={"machine": machine(n, threads)})
        place = Workplace(folder=str(folder), cache=str(cache or cache_of(question, folder)), threads=threads)
        _Crew(question, place, n, follow).run([*shared_tasks(question, folder, waiting), *waiting])
    return question.of_mine(ResultsFile(folder, question).records)


def shared_tasks(question: Question, folder: Path, trials: Sequence[Task]) -> list[Task]:
    """What these trials need first. A pool that is thinned out by seed has features of its own for each seed."""
    seeds = list(dict.fromkeys(task.seed for task in trials))
    pools = seeds if question.plan.rare_class else seeds[:1]
    pools = pools if question.plan.rounds else []
    starts = [Task("start", seed) for seed in seeds if not start_file(folder, seed).exists()]
    return [*(Task("pool", seed) for seed in pools), *starts]


def shared_cores(processes: int | None, n_trials: int) -> tuple[int, int]:
    """(processes, threads of each). One thread each by default, because trials in parallel use cores better than
    threads do; one process on a GPU. OMP_NUM_THREADS, when set, is the number of threads."""
    cores = os.cpu_count() or 1
    on_gpu = os.environ.get("WINNOW_DEVICE", "").startswith("cuda") or (not processes and _has_gpu())
    n = min(processes or (1 if on_gpu else cores), n_trials)
    return n, int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, cores // n)


def _has_gpu() -> bool:
    from core.runtime import default_device

    return default_device().type == "cuda"


def machine(processes: int, threads: int) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "processes": processes,
        "threads": threads,
    }


@dataclass
class _Hand:
    """One process and what it works on."""

    process: Any
    line: Connection
    task: Task | None = None
    note: str = ""


@dataclass
class _Crew:
    """Hands tasks to processes until all are done."""

    question: Question
    place: Workplace
    n_processes: int
    follow: _Follow
    hands: list[_Hand] = field(default_factory=list)

    def run(self, tasks: Sequence[Task]) -> None:
        waiting = list(tasks)
        try:
            while waiting or any(hand.task for hand in self.hands):
                self._hand_out(waiting)
                self._listen()
        finally:
            for hand in self.hands:
                hand.process.kill()
            for hand in self.hands:
                hand.process.join()
                hand.line.close()

    def _hand_out(self, waiting: list[Task]) -> None:
        """Every idle process gets the first task whose needs are met."""
        while True:
            busy = [hand.task for hand in self.hands if hand.task]
            rare = bool(self.question.plan.rare_class)
            task = next((one for one in waiting if not must_wait(one, [*waiting, *busy], rare)), None)
            idle = next((hand for hand in self.hands if hand.task is None), None)
            if task is None or (idle is None and len(self.hands) >= self.n_processes):
                return
            hand = idle or self._new_hand()
            hand.line.send(task)
            hand.task, hand.note = task, str(task)
            waiting.remove(task)

    def _new_hand(self) -> _Hand:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self.question.to_dict(), self.place), daemon=True)
        process.start()
        theirs.close()
        self.hands.append(_Hand(process, mine))
        return self.hands[-1]

    def _listen(self) -> None:
        for line in wait([hand.line for hand in self.hands], POLL_SECONDS):
            hand = next(hand for hand in self.hands if hand.line is line)
            try:
                self._hear(hand, hand.line.recv())
            except EOFError:
                hand.process.join(5)
                raise WinnowError(
                    f"The process for {hand.task} stopped with code {hand.process.exitcode}, often for lack of "
                    "memory. Finished records are kept. Run the command again with fewer --processes to resume."
                ) from None
        self.follow.tell([hand.note for hand in self.hands if hand.task])

    def _hear(self, hand: _Hand, message: Message) -> None:
        kind, told = message
        if kind == "failed":
            error, sentence = told
            raise error(sentence)
        if kind == "done":
            hand.task, hand.note = None, ""
        elif kind == "record":
            self.follow.keep(told)
        else:
            share = f" {told.done:,}/{told.total:,}" if told.total > 1 else ""
            hand.note = f"{hand.task}: {told.stage}{share}"


def must_wait(task: Task, unfinished: Sequence[Task], pool_by_seed: bool) -> bool:
    """Whether something that this trial shares with others is not there yet."""
    shared = [one for one in unfinished if one.kind == "start" or pool_by_seed]
    pools = [one for one in unfinished if one.kind == "pool" and not pool_by_seed]
    return task.kind == "trial" and (bool(pools) or any(one.seed == task.seed for one in shared if one.kind != "trial"))


class _Follow:
    """Counts records, tells progress with the time left."""

    def __init__(self, question: Question, results: ResultsFile, report: Report) -> None:
        self.question, self.report = question, report
        self.done = {(one.strategy, one.seed, one.round) for one in question.of_mine(results.records)}
        self.began, self.fresh, self.newest = time.monotonic(), 0, ""

    def keep(self, record: RoundRecord) -> None:
        self.done.add((record.strategy, record.seed, record.round))
        self.fresh += 1
        self.newest = (
            f"{record.strategy}, seed {record.seed}: {100 * record.accuracy:.1f} % at {record.n_labels} labels"
        )

    def tell(self, at_work: Sequence[str] = ()) -> None:
        done, total = len(self.done), self.question.n_records
        notes = [self.newest] if self.newest else []
        if self.fresh and done < total:
            left = (time.monotonic() - self.began) / self.fresh * (total - done)
            notes.insert(0, f"about {duration(left)} left")
        self.report(Progress("simulate", done, total, " · ".join([*notes, *at_work])))


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
