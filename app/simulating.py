"""Running a simulation: trials in parallel, results on disk as they come, going on after an interruption.

`results.json` in the output folder holds every record so far and is replaced whole after each (temporary name, then
rename). Starting again with the same question computes only what is missing; another question is refused by name.
Each trial runs in a process of its own, with the cores shared out between them.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.study_data import open_data
from core.config import RoundConfig, from_dict, to_json
from core.errors import Cancelled, Conflict, WinnowError
from core.simulation import Plan, RoundRecord, Trial
from core.types import Progress, Report, ignore

POLL_SECONDS = 0.5
OnRecord = Callable[[RoundRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: which data, which strategies, how many seeds, under which settings."""

    data: str
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    plan: Plan = field(default_factory=Plan)
    config: RoundConfig = field(default_factory=RoundConfig)

    def same_as(self, stored: Mapping[str, Any]) -> bool:
        """More strategies or seeds are the same question; other data, plan or settings are not."""
        mine = self.to_dict()
        return all(stored.get(name) == mine[name] for name in ("data", "plan", "config"))

    def to_dict(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "strategies": list(self.strategies),
            "seeds": list(self.seeds),
            "plan": dataclasses.asdict(self.plan),
            "config": json.loads(to_json(self.config)),
        }

    @property
    def n_records(self) -> int:
        return len(self.strategies) * len(self.seeds) * (self.plan.rounds + 1)


class ResultsFile:
    """`results.json`: the question and every record so far."""

    def __init__(self, folder: Path, question: Question) -> None:
        self.path = folder / "results.json"
        self.question = question
        self.records: list[RoundRecord] = []
        if self.path.exists():
            stored = json.loads(self.path.read_text())
            if not question.same_as(stored["question"]):
                raise Conflict(f"{self.path} holds the results of another question. Choose another folder with --out.")
            self.records = [record_from(values) for values in stored["records"]]

    def of_trial(self, strategy: str, seed: int) -> list[RoundRecord]:
        found = [one for one in self.records if one.strategy == strategy and one.seed == seed]
        return sorted(found, key=lambda one: one.round)

    def add(self, record: RoundRecord) -> None:
        mine = (record.strategy, record.seed, record.round)
        self.records = [one for one in self.records if (one.strategy, one.seed, one.round) != mine]
        self.records.append(record)
        self.write()

    def write(self, more: Mapping[str, Any] | None = None) -> None:
        order = sorted(self.records, key=lambda one: (one.strategy, one.seed, one.round))
        body = {"question": self.question.to_dict(), "records": [dataclasses.asdict(one) for one in order]}
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(body | dict(more or {}), indent=1))
        os.replace(draft, self.path)


def record_from(values: Mapping[str, Any]) -> RoundRecord:
    return RoundRecord(**(dict(values) | {"picks": tuple(values["picks"]), "notes": tuple(values["notes"])}))


def simulate(
    question: Question, folder: Path, *, processes: int | None = None, report: Report = ignore
) -> list[RoundRecord]:
    """All records of the question; those already in `folder` are not computed again."""
    folder.mkdir(parents=True, exist_ok=True)
    results = ResultsFile(folder, question)
    trials = [(s, seed) for seed in question.seeds for s in question.strategies]
    waiting = [(s, seed) for s, seed in trials if len(results.of_trial(s, seed)) <= question.plan.rounds]
    follow = _Follow(question, results, report)
    follow.tell()
    if waiting:
        open_data(Path(question.data), folder / "data", report).store.close()
        _run_all(question, folder, waiting, processes or shared_cores()[0], follow)
    asked = set(trials)
    return [one for one in results.records if (one.strategy, one.seed) in asked]


def shared_cores() -> tuple[int, int]:
    """(processes, threads of each): one thread each, because trials in parallel use cores better than threads do."""
    named = os.environ.get("WINNOW_DEVICE", "")
    return (1, os.cpu_count() or 1) if named.startswith("cuda") else (os.cpu_count() or 1, 1)


class _Follow:
    """Keeps records, tells progress with the time left."""

    def __init__(self, question: Question, results: ResultsFile, report: Report) -> None:
        self.question, self.results, self.report = question, results, report
        self.began, self.fresh = time.monotonic(), 0

    def keep(self, record: RoundRecord) -> None:
        self.results.add(record)
        self.fresh += 1
        self.tell(f"{record.strategy}, seed {record.seed}: {100 * record.accuracy:.1f} % at {record.n_labels} labels")

    def tell(self, note: str = "") -> None:
        asked = {(s, seed) for s in self.question.strategies for seed in self.question.seeds}
        done = sum((one.strategy, one.seed) in asked for one in self.results.records)
        if self.fresh and done < self.question.n_records:
            left = (time.monotonic() - self.began) / self.fresh * (self.question.n_records - done)
            note = f"{note} · about {_duration(left)} left"
        self.report(Progress("simulate", done, self.question.n_records, note))


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _run_all(
    question: Question, folder: Path, waiting: Sequence[tuple[str, int]], processes: int, follow: _Follow
) -> None:
    """Every waiting trial in a spawned process; records come through one queue as they are known."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        records, stop = manager.Queue(), manager.Event()
        with ProcessPoolExecutor(min(processes, len(waiting)), mp_context=context) as pool:
            running = [
                pool.submit(_trial, question.to_dict(), str(folder), (s, seed), records, stop)
                for s, seed in waiting
            ]
            try:
                _collect(running, records, follow)
            except BaseException:
                stop.set()
                for one in running:
                    one.cancel()
                raise


def _collect(running: Sequence[Future[None]], records: Any, follow: _Follow) -> None:
    while True:
        try:
            follow.keep(records.get(timeout=POLL_SECONDS))
        except queue.Empty:
            follow.tell()
            if all(one.done() for one in running):
                break
    for one in running:
        one.result()


def _trial(asked: Mapping[str, Any], folder: str, which: tuple[str, int], records: Any, stop: Any) -> None:
    """One trial, in its own process."""
    import torch

    from core.runtime import Runtime
    from storage.row_cache import FolderRowCache

    torch.set_num_threads(shared_cores()[1])
    place, (strategy, seed) = Path(folder), which
    data = open_data(Path(asked["data"]), place / "data")
    plan = Plan(**asked["plan"])
    settings = from_dict(RoundConfig, asked["config"])
    settings = dataclasses.replace(
        settings, seed=seed, selection=dataclasses.replace(settings.selection, strategy=strategy)
    )
    (place / "models").mkdir(exist_ok=True)
    trial = Trial(
        pool=data.pool,
        plan=plan,
        config=settings,
        seed=seed,
        read=data.read,
        cache=FolderRowCache(place / "cache"),
        runtime=Runtime.create(seed),
        model_file=place / "models" / f"{strategy}-{seed}.safetensors",
    )
    stored = json.loads((place / "results.json").read_text())["records"] if (place / "results.json").exists() else []
    done = [record_from(values) for values in stored if values["strategy"] == strategy and values["seed"] == seed]

    def check(progress: Progress) -> None:
        if stop.is_set():
            raise Cancelled("The simulation was stopped.")

    try:
        for record in trial.run(sorted(done, key=lambda one: one.round), check):
            records.put(record)
    except Cancelled:
        return
    except WinnowError as error:
        raise type(error)(f"{strategy}, seed {seed}: {error}") from None
