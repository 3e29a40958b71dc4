"""Real worker processes for tests, forked from a server that has loaded torch already, so that each starts at once.

A worker here is the worker that users start, with shorter intervals. `slow` delays a stage before and after its work,
while it still reports, so that a test can act in the middle of it. A gate holds a stage until the test creates a file.
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
CONTEXT.set_forkserver_preload(["tests.app.warm", "app.rounds.workflows", "app.worker.worker"])
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def start_fork_server() -> None:
    """With one thread for arithmetic: a process must not be forked while other threads compute in it."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ |= ONE_THREAD
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def quick_config(**selection: Any) -> RoundConfig:
    """All stages of a round with as little computation as possible. The map shows the principal components."""
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
    """The environment of a worker process."""

    home: Path
    url: str | None = None
    artifacts: str | None = None
    slow: Mapping[str, float] = field(default_factory=dict)  # stage -> seconds before and after its work
    gates: Mapping[str, Path] = field(default_factory=dict)  # stage -> file that must exist before its work
    records_gate: Path | None = None  # file that must exist before any record of a simulation after the first
    unit_rows: int | None = None
    stale_seconds: float = 30.0  # a killed process is detected at once, and a slow one does not count as dead
    memory_bytes: int | None = None  # beyond what the process has when it first selects, with all threads running
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None  # of the engine's workflows; None: that of this program


def work(place: Place, log: Path) -> None:
    """The main function of the process; it ends by a signal."""
    os.environ |= {**ONE_THREAD, **place.environment}
    if place.unit_rows:
        os.environ["WINNOW_UNIT_ROWS"] = str(place.unit_rows)
    import torch

    from app.rounds import steps
    from app.worker import engine
    from app.worker.worker import Intervals, Worker
    from core.limits import current_limits
    from storage.database.store import Store
    from storage.rounds import simulations

    current_limits.cache_clear()  # the process that this one was forked from may have read other limits
    torch.set_num_threads(1)
    engine.VERSION = place.version or engine.VERSION
    logging.basicConfig(filename=log, level=logging.INFO, format="%(message)s", force=True)
    for stage in {*place.slow, *place.gates}:
        table: dict[str, Any] = steps.UNIT_STEPS if stage.startswith("unit ") else steps.STEPS
        name = stage.removeprefix("unit ")
        table[name] = lingering(table[name], place.slow.get(stage, 0.0), place.gates.get(stage))
    if place.records_gate is not None:
        simulations.add = held(simulations.add, place.records_gate)
    store = Store.open(place.url, place.home)
    if place.artifacts:
        store.artifacts_address = place.artifacts
    # An idle worker that polls ten times a second uses a tenth of a core, which other processes need.
    intervals = Intervals(loop=0.2, heartbeat=0.2, queues=0.2, stale=place.stale_seconds)
    worker = Worker(store, intervals, device="cpu")
    if place.memory_bytes:
        steps.STEPS["select"] = confined(steps.STEPS["select"], place.memory_bytes)
    worker.start()
    worker.run()


def confined(function: Callable[..., Any], n_bytes: int) -> Callable[..., Any]:
    def confine(*args: Any) -> Any:
        if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + n_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return function(*args)

    return confine


def lingering(function: Callable[..., Any], seconds: float, gate: Path | None) -> Callable[..., Any]:
    def linger(of: Any, *args: Any) -> Any:
        from core.types import Progress

        def wait(gate: Path | None) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until or (gate is not None and not gate.exists()):
                of.report(Progress("linger", 0, 1))
                time.sleep(0.01)

        wait(gate)
        result = function(of, *args)
        wait(None)
        return result

    return linger


def held(function: Callable[..., Any], gate: Path) -> Callable[..., Any]:
    """The first call is not held; later ones wait until the gate exists."""
    calls = iter(range(1_000_000))

    def hold(*args: Any) -> Any:
        first = next(calls) == 0
        while not first and not gate.exists():
            time.sleep(0.02)
        return function(*args)

    return hold


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
        """Send SIGKILL, and wait until the process has ended."""
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join(120)
        assert not self.process.is_alive()

    def lines(self, containing: str = "") -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if containing in line]


class Crew:
    """Workers of one test, which end with it."""

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


def until(holds: Callable[[], Any], seconds: float = 120.0, what: str = "it") -> Any:
    """Wait until `holds()` returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.06)
    raise AssertionError(f"{what} did not happen within {seconds:.0f} s")
