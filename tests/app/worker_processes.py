"""Real worker processes for tests, forked from a server that has loaded torch already, so that each starts at once.

A worker here is the worker that users start, with a faster tempo. `slow` makes a stage linger (and listen) before and
after its work, so that a test can strike in the middle of it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from core.config import KernelConfig, MapConfig, MediaConfig, RoundConfig, SelectionConfig, TrainingConfig

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.app.warm", "app.workflows", "app.worker"])
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def start_fork_server() -> None:
    """With one thread for arithmetic: a process must not be forked while others compute in it."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ |= ONE_THREAD
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def quick_config(**selection: Any) -> RoundConfig:
    """Everything a round does, in as little arithmetic as it takes. The map shows the main directions."""
    return RoundConfig(
        preset="smoke",
        media=MediaConfig(image_size=8, channels=3),
        training=TrainingConfig(steps=8, warm_steps=4, labeled_batch=4, unlabeled_batch=4, bank_views=0),
        kernel=KernelConfig(network="fnn", n_landmarks=12),
        selection=SelectionConfig(**({"strategy": "bico", "batch_size": 4, "n_views": 2} | selection)),
        map=MapConfig(n_neighbors=500),
    )


@dataclass(frozen=True)
class Place:
    """Where a worker works."""

    home: Path
    url: str | None = None
    artifacts: str | None = None
    slow: Mapping[str, float] = field(default_factory=dict)  # stage -> seconds before and after its work
    slow_records: float = 0.0  # seconds after each record of a simulation
    unit_rows: int | None = None
    stale_seconds: float = 1.5
    memory_bytes: int | None = None  # beyond what the process has when it starts to work
    environment: Mapping[str, str] = field(default_factory=dict)


def work(place: Place, log: Path) -> None:
    """What the process runs; ends by a signal."""
    os.environ |= {**ONE_THREAD, **place.environment}
    if place.unit_rows:
        os.environ["WINNOW_UNIT_ROWS"] = str(place.unit_rows)
    import torch

    from app import stages
    from app.worker import Tempo, Worker
    from storage import simulations
    from storage.database import Store

    torch.set_num_threads(1)
    logging.basicConfig(filename=log, level=logging.INFO, format="%(message)s", force=True)
    for stage, seconds in place.slow.items():
        table: dict[str, Any] = stages.UNIT if stage.startswith("unit ") else stages.ALL  # type: ignore[assignment]
        table[stage.removeprefix("unit ")] = lingering(table[stage.removeprefix("unit ")], seconds)
    simulations.add = pausing(simulations.add, place.slow_records)
    store = Store.open(place.url, place.home)
    if place.artifacts:
        store.artifacts_address = place.artifacts
    worker = Worker(store, Tempo(loop=0.1, pulse=0.1, queues=0.1, stale=place.stale_seconds), device="cpu")
    worker.start()
    if place.memory_bytes:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + place.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    worker.run()


def lingering(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def linger(bench: Any, *args: Any) -> Any:
        from core.types import Progress

        def wait() -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                bench.report(Progress("linger", 0, 1))
                time.sleep(0.01)

        wait()
        result = function(bench, *args)
        wait()
        return result

    return linger


def pausing(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def pause(*args: Any) -> Any:
        result = function(*args)
        time.sleep(seconds)
        return result

    return pause


class WorkerProcess:
    def __init__(self, place: Place, log: Path) -> None:
        self.log = log
        start_fork_server()
        self.process = CONTEXT.Process(target=work, args=(place, log), daemon=True)
        self.process.start()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """-9, and wait until it is gone."""
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join(10)

    def lines(self, containing: str = "") -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if containing in line]


class Crew:
    """Workers of one test; none of them outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers = folder, list[WorkerProcess]()

    def start(self, place: Place) -> WorkerProcess:
        worker = WorkerProcess(place, self.folder / f"worker-{len(self.workers)}.log")
        self.workers.append(worker)
        return worker

    def lines(self, containing: str = "") -> list[str]:
        return [line for worker in self.workers for line in worker.lines(containing)]


@contextmanager
def crew_in(folder: Path) -> Iterator[Crew]:
    crew = Crew(folder)
    try:
        yield crew
    finally:
        for worker in crew.workers:
            worker.kill()


def until(holds: Callable[[], Any], seconds: float = 60.0, what: str = "it") -> Any:
    """Wait until `holds()` gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.03)
    raise AssertionError(f"{what} did not happen within {seconds:.0f} s")
