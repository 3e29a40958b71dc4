"""The process that works on a simulation's tasks, one after another, as `app.simulation.local_runner` hands them out.

    start   the model of a seed's initial labels, shared by all strategies
    pool    the kernel features of the pool, shared by all trials
    trial   one strategy with one seed; each record is in results.json before it is told

A task is done under a lock of its own, so that two runs in one folder never compute the same: the second waits and then
finds the result. The process ends by itself, within moments, when the one that started it is gone, however it went.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.simulation.results import Question, ResultsFile
from core.errors import WinnowError
from core.types import Progress
from storage.database.file_lock import try_lock

if TYPE_CHECKING:
    from app.simulation.dataset import StudyData

TELL_SECONDS = 0.5
LOCK_SECONDS = 0.2
POLITE = 10  # niceness beside a project's pages and rounds


@dataclass(frozen=True, slots=True)
class Task:
    kind: Literal["start", "pool", "trial"]
    seed: int
    strategy: str = ""

    def __str__(self) -> str:
        what = {"start": "initial labels", "pool": "kernel features", "trial": self.strategy}[self.kind]
        return what if self.kind == "pool" else f"{what}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where tasks are done."""

    folder: str  # of the results
    cache: str  # of prepared inputs and kernel features
    threads: int = 1


Message = tuple[Literal["progress", "record", "done", "failed"], Any]


def work(line: Connection, asked: Mapping[str, Any], place: Workplace) -> None:
    """Tasks come through `line`, messages go back; None ends the process."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    import torch

    torch.set_num_threads(place.threads)
    question = Question.from_dict(asked)
    if question.project is not None:
        os.nice(POLITE)
    bench: _TrialRunner | None = None
    while (task := line.recv()) is not None:
        try:
            bench = bench or _TrialRunner(question, place)
            bench.perform(task, _Teller(line))
            line.send(("done", task))
        except WinnowError as error:
            line.send(("failed", (type(error), f"{task}: {error}")))
        except Exception as error:
            line.send(("failed", (WinnowError, f"{task}: {type(error).__name__}: {error}")))


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Teller:
    """Messages of the task under way, progress at most twice a second."""

    def __init__(self, line: Connection) -> None:
        self.line, self._last = line, 0.0

    def progress(self, progress: Progress) -> None:
        if time.monotonic() - self._last >= TELL_SECONDS:
            self._last = time.monotonic()
            self.line.send(("progress", progress))

    def record(self, record: Any) -> None:
        self.line.send(("record", record))


class _TrialRunner:
    """The data and the files of one question."""

    def __init__(self, question: Question, place: Workplace) -> None:
        from app.simulation.dataset import open_study

        self.question, self.place, self.folder = question, place, Path(place.folder)
        self.data = open_study(question, self.folder)
        self.perform_by: dict[str, Callable[[Task, _Teller], None]] = {
            "start": self._start, "pool": self._pool, "trial": self._trial,
        }  # fmt: skip

    def perform(self, task: Task, tell: _Teller) -> None:
        name = "-".join(part for part in (task.kind, task.strategy, str(task.seed)) if part)
        with _held(self.folder / "locks" / name, lambda: tell.progress(Progress("waiting", 0, 0))):
            self.perform_by[task.kind](task, tell)

    def _start(self, task: Task, tell: _Teller) -> None:
        if not start_file(self.folder, task.seed).exists():
            self._make(task).train_start(tell.progress)

    def _pool(self, task: Task, tell: _Teller) -> None:
        self._make(task).fit_pool(tell.progress)

    def _trial(self, task: Task, tell: _Teller) -> None:
        results = ResultsFile(self.folder, self.question)
        for record in self._make(task).run(results.of_trial(task.strategy, task.seed), tell.progress):
            results.add(record)
            tell.record(record)

    def _make(self, task: Task) -> Any:
        return make_trial(self.question, self.data, self.place, task)


def make_trial(question: Question, data: StudyData, place: Workplace, task: Task) -> Any:
    """The `core.rounds.simulation.Trial` of a task, with its models in the folder of the results."""
    from core.rounds.simulation import Trial
    from core.runtime import Runtime
    from storage.rounds.row_cache import FolderRowCache

    config, folder = question.config, Path(place.folder)
    selection = dataclasses.replace(config.selection, strategy=task.strategy or question.strategies[0])
    return Trial(
        pool=data.pool,
        plan=question.plan,
        config=dataclasses.replace(config, seed=task.seed, selection=selection),
        seed=task.seed,
        read=data.read,
        cache=FolderRowCache(place.cache),
        runtime=Runtime.create(task.seed),
        folder=folder / "models" / f"{task.strategy or task.kind}-{task.seed}",
        start_file=start_file(folder, task.seed),
    )


def start_file(folder: Path, seed: int) -> Path:
    return folder / "models" / f"start-{seed}.safetensors"


@contextlib.contextmanager
def _held(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock on a file, however long another process keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not try_lock(descriptor):
            waiting()
            time.sleep(LOCK_SECONDS)
        yield
    finally:
        os.close(descriptor)
