"""The process that runs tasks of a simulation, one after another: `python -m app.simulation.trial_process`.

    start   the model of a seed's initial labels, shared by all strategies
    pool    the kernel features of the pool, shared by all trials
    trial   one strategy with one seed; each record is in results.json before it is sent

`app.simulation.local_runner` starts it as an `app.processes.child.PipedChild`. The first request is a `TrialSetting`
with the question; every further request is a `Task`. The replies are progress, records, and one result or error for
each task. Each task has its own lock, so two runs in one folder never compute the same task: the second run waits and
then finds the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.processes.channel import Channel
from app.processes.messages import Message, error_message
from app.simulation.results import Question, ResultsFile
from core.errors import WinnowError
from core.types import Progress
from storage.system.file_lock import try_lock

if TYPE_CHECKING:
    from app.simulation.dataset import StudyData

LOCK_SECONDS = 0.2
NICENESS = 10  # lower priority than pages and rounds


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a simulation. Its kind is explained in the module's docstring; `strategy` is set for trials."""

    kind: Literal["start", "pool", "trial"]
    seed: int
    strategy: str = ""

    def __str__(self) -> str:
        what = {"start": "initial labels", "pool": "kernel features", "trial": self.strategy}[self.kind]
        return what if self.kind == "pool" else f"{what}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """The folders that tasks write to, and their number of threads."""

    folder: str  # folder of the results
    cache: str  # folder of prepared inputs and kernel features
    threads: int = 1


def main() -> None:
    """Run the parent's tasks until it closes the pipe."""
    channel = Channel()
    requests = channel.requests()
    first = next(requests)
    question, setting = Question.from_dict(first["question"]), TrialSetting(**first["setting"])
    import torch

    torch.set_num_threads(setting.threads)
    if question.project is not None:
        os.nice(NICENESS)
    runner: _TrialRunner | None = None
    for request in requests:
        task = Task(**request)
        try:
            runner = runner or _TrialRunner(question, setting, channel)
            runner.run(task)
            channel.send(Message("result"))
        except WinnowError as error:
            channel.send(error_message(error, f"{task}: {error}"))
        except Exception as error:
            channel.send(error_message(error, f"{task}: {type(error).__name__}: {error}"))


class _TrialRunner:
    """Runs tasks with the data and the folders of one question."""

    def __init__(self, question: Question, setting: TrialSetting, channel: Channel) -> None:
        from app.simulation.dataset import open_study

        self.question, self.setting, self.channel = question, setting, channel
        self.folder = Path(setting.folder)
        self.data = open_study(question, self.folder)

    def run(self, task: Task) -> None:
        """Run a task while holding its lock. A task whose result exists is not repeated."""
        name = "-".join(part for part in (task.kind, task.strategy, str(task.seed)) if part)
        with _held(self.folder / "locks" / name, lambda: self.channel.report(Progress("waiting", 0, 0))):
            if task.kind == "trial":
                self._run_trial(task)
            elif task.kind == "pool":
                self._trial(task).fit_pool(self.channel.report)
            elif not start_file(self.folder, task.seed).exists():
                self._trial(task).train_start(self.channel.report)

    def _run_trial(self, task: Task) -> None:
        results = ResultsFile(self.folder, self.question)
        for record in self._trial(task).run(results.of_trial(task.strategy, task.seed), self.channel.report):
            results.add(record)
            self.channel.send(Message("record", dataclasses.asdict(record)))

    def _trial(self, task: Task) -> Any:
        return make_trial(self.question, self.data, self.setting, task)


def make_trial(question: Question, data: StudyData, setting: TrialSetting, task: Task) -> Any:
    """The `core.rounds.simulation.Trial` of a task. Its models are stored in the folder of the results."""
    from core.encoders.choice import encoder_of
    from core.encoders.folders import encoders_folder
    from core.rounds.simulation import Trial
    from core.runtime import Runtime
    from storage.rounds.row_cache import FolderRowCache

    config, folder = question.config, Path(setting.folder)
    selection = dataclasses.replace(config.selection, strategy=task.strategy or question.strategies[0])
    own = (encoders_folder(folder) / config.encoder.name).is_dir()  # an encoder that was specified as a folder
    return Trial(
        pool=data.pool,
        plan=question.plan,
        config=dataclasses.replace(config, seed=task.seed, selection=selection),
        seed=task.seed,
        read=data.read,
        cache=FolderRowCache(setting.cache),
        runtime=Runtime.create(task.seed),
        folder=folder / "models" / f"{task.strategy or task.kind}-{task.seed}",
        start_file=start_file(folder, task.seed),
        encoder=encoder_of(config.encoder, folder if own else data.store.home),
    )


def start_file(folder: Path, seed: int) -> Path:
    return folder / "models" / f"start-{seed}.safetensors"


@contextlib.contextmanager
def _held(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Take the lock of a file and hold it while the block runs. `waiting` is called repeatedly while another process
    holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not try_lock(descriptor):
            waiting()
            time.sleep(LOCK_SECONDS)
        yield
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
