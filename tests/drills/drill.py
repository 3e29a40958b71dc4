"""One drill: a running system, annotators who label, rounds that run, and random faults for a given time.

Everything runs on loopback in a temporary folder, on a separate small file system if mounting is permitted. The drill
ends only the processes that it started.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqlalchemy.exc import SQLAlchemyError

from app.rounds import requests as round_requests
from app.web import tickets
from core.errors import WinnowError
from storage.database.store import Store
from storage.projects.annotators import annotator_named
from storage.rounds.log import RoundLog, RoundRow
from tests.drills import processes
from tests.drills.annotators import Annotator, Place
from tests.drills.cutting_proxy import CuttingProxy
from tests.drills.faults import Faults, Target
from tests.drills.uploads import Uploader
from tests.drills.verdict import judge
from tests.free_ports import free_port
from tests.postgres_server import find_binaries
from tests.round_pools import draw_project

DISK_BYTES = 1 << 30
TICKET_SECONDS = 30 * 365 * 86_400.0  # valid after every jump of the clock
DRAIN_SECONDS = 600.0
ROUND_SECONDS = 600.0  # for each stage
MOST_STAGES = 12
UNREACHABLE = (WinnowError, SQLAlchemyError, OSError)


@dataclass(frozen=True, kw_only=True)
class Options:
    seconds: float
    seed: int
    database: Literal["sqlite", "postgresql"] = "sqlite"
    n_items: int = 90
    n_annotators: int = 4
    between_faults: tuple[float, float] = (0.5, 3.0)
    pause: float = 0.2  # mean seconds between two actions of an annotator
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings of the project's rounds, on top of its preset
    logs: Path | None = None  # where logs of the processes are kept; None: deleted with the rest


class Rounds(threading.Thread):
    """Requests the next round whenever none is running."""

    def __init__(self, store: Store, project_id: int) -> None:
        super().__init__(daemon=True, name="rounds")
        self.store, self.project_id, self.stopped = store, project_id, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.5):
            try:
                latest = RoundLog(self.store, self.project_id).latest()
                if latest is None or not latest.unfinished:
                    round_requests.request_round(self.store, self.project_id)
            except UNREACHABLE:
                continue  # the database is down or the disk is full: later

    def stop(self) -> None:
        self.stopped.set()
        self.join()


@dataclass
class System:
    """The processes and the project of a drill."""

    store: Store
    home: Path
    target: Target
    port: int
    watched: list[processes.Managed]
    annotators: list[Annotator]
    rounds: Rounds
    project_id: int
    notes: list[str] = field(default_factory=list)


def run_drill(
    options: Options, say: Callable[[str], None] = lambda line: None, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Run one drill; return the result as JSON values. `stop` ends the faults early."""
    say(f"seed {options.seed}, {options.seconds:.0f} s, {options.database}")
    with _scratch() as (folder, disk), _running(options, folder, disk) as system:
        if disk is None:
            system.notes.append("No disk was filled: mounting a file system is not permitted here.")
        faults = Faults(system.target, random.Random(options.seed))
        watchdog = processes.Watchdog(system.watched)
        for thread in (watchdog, system.rounds, system.target.uploader, *system.annotators):
            thread.start()
        try:
            _disturb(options, faults, say, stop or threading.Event())
            faults.end_due(everything=True)
            faults.lasted = time.monotonic() - faults.began
            result = _finish(system, watchdog, faults, say)
        finally:
            watchdog.stop()
        return result | {"seconds": round(faults.lasted, 1), "seed": options.seed, "database": options.database}


def _disturb(options: Options, faults: Faults, say: Callable[[str], None], stop: threading.Event) -> None:
    end, due = time.monotonic() + options.seconds, time.monotonic() + 2.0
    while (moment := time.monotonic()) < end and not stop.is_set():
        faults.end_due()
        if moment >= due:
            faults.next(say)
            due = moment + faults.chance.uniform(*options.between_faults)
        time.sleep(0.05)


def _finish(system: System, watchdog: processes.Watchdog, faults: Faults, say: Callable[[str], None]) -> dict[str, Any]:
    """After the faults: everything is sent, a round finishes, the store is compared with the annotators' records."""
    system.rounds.stop()
    processes.wait_until(lambda: processes.is_ready(system.port), "page server")
    deadline = time.monotonic() + DRAIN_SECONDS
    for annotator in system.annotators:
        annotator.labeling.clear()
    for annotator in system.annotators:
        annotator.drain(deadline)
    system.target.uploader.stop()
    say("all events sent" if not any(one.waiting for one in system.annotators) else "events remain unsent")
    problem = _last_round(system)
    for one in (system.target.worker, system.target.server):
        watchdog.end(one)
    verdict = judge(system.store, system.project_id, system.annotators)
    history = RoundLog(system.store, system.project_id).list()
    statuses = Counter(row.status for row in history)
    errors = Counter(row.error.splitlines()[0][:200] for row in history if row.status == "failed" and row.error)
    return {
        "acknowledged": verdict.acknowledged,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "faults": faults.counts(),
        "rounds_finished": statuses["finished"],
        "rounds_failed": dict(errors),
        "inconsistencies": verdict.inconsistencies + system.target.uploader.damaged + ([problem] if problem else []),
        "starts": {one.name: one.starts for one in system.watched},
        "answers": dict(sum((one.statuses for one in system.annotators), Counter())),
        "connections_cut": system.target.proxy.cuts,
        "uploads": {"completed": system.target.uploader.completed, "cut": system.target.uploader.interrupted},
        "notes": system.notes,
        "fault_log": faults.log,
    }


def _last_round(system: System) -> str:
    """Request a round when all faults are over; return "" when it finishes, or the problem. Each stage has a separate
    time limit, because a busy machine is slow."""
    deadline = time.monotonic() + ROUND_SECONDS
    log = RoundLog(system.store, system.project_id)
    requested: RoundRow | None = None
    reached: tuple[int, str, str] | None = None
    end = time.monotonic() + MOST_STAGES * ROUND_SECONDS
    while time.monotonic() < min(deadline, end):
        time.sleep(0.5)
        try:
            latest = log.latest()
            if latest is not None and (latest.id, latest.status, latest.stage) != reached:
                reached, deadline = (latest.id, latest.status, latest.stage), time.monotonic() + ROUND_SECONDS
            if latest is not None and latest.unfinished:
                continue
            if requested is None:
                requested = round_requests.request_round(system.store, system.project_id)
                continue
            assert latest is not None
            return "" if latest.status == "finished" else f"The round after the faults {latest.status}: {latest.error}"
        except UNREACHABLE:
            continue  # the database recovers
    return f"After the faults no stage of a round ended within {ROUND_SECONDS:.0f} s."


@contextmanager
def _scratch() -> Iterator[tuple[Path, Path | None]]:
    """A folder, and in it a separate small file system for all data, or None if mounting is not permitted."""
    folder = Path(tempfile.mkdtemp(prefix="winnow-drill-"))
    disk = folder / "disk"
    disk.mkdir()
    folder.chmod(0o711)  # PostgreSQL runs as another user
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0711", "winnow-drill", str(disk)]
    permitted = os.getuid() == 0 and shutil.which("mount") is not None
    mounted = permitted and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield folder, disk if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(options: Options, folder: Path, disk: Path | None) -> Iterator[System]:
    """The page server, a worker and, if requested, PostgreSQL, with a project; all processes end with the block."""
    home, clock, logs = folder / "disk" / "home", folder / "clock", options.logs or folder / "logs"
    for path in (home, logs):
        path.mkdir(parents=True, exist_ok=True)
    clock.write_text("0")
    started: list[processes.Managed] = []
    url = None
    try:
        database = _postgresql(folder, logs, started) if options.database == "postgresql" else None
        url = database.server.new_database() if database is not None else None
        with Store.open(url, home) as store:
            port = free_port()
            environment = processes.common_environment(clock, url)
            server = processes.page_server(home, port, environment, logs)
            worker = processes.worker(home, port, environment, logs)
            for one in (server, worker):
                started.append(one)
                one.start()
            processes.wait_until(lambda: processes.is_ready(port), "page server")
            yield _system(options, store, port, started, Target(
                home=home, clock=clock, server=server, worker=worker, disk=disk,
                proxy=(proxy := CuttingProxy(port, options.seed)),
                uploader=Uploader(proxy.port, _ticket(home, 1), home / "uploads", options.seed),
                database=database.managed if database is not None else None,
            ))  # fmt: skip
            proxy.close()
    finally:
        for one in reversed(started):
            one.end()


def _postgresql(folder: Path, logs: Path, started: list[processes.Managed]) -> processes.Postgres:
    binaries = find_binaries()
    if binaries is None:
        raise RuntimeError("There is no PostgreSQL server. Install Debian's postgresql package.")
    database = processes.Postgres(binaries, folder / "disk" / "postgresql", logs)
    started.append(database.managed)
    database.managed.start()
    processes.wait_until(database.is_ready, "database")
    return database


def _system(options: Options, store: Store, port: int, started: list[processes.Managed], target: Target) -> System:
    drawn = draw_project(store, options.n_items, labels_per_item=2, changes=dict(options.changes))
    truth = {item: drawn.classes[position] for item, position in drawn.truth.items()}
    place = Place(target.proxy.port, drawn.project_id, drawn.item_ids, truth, drawn.classes, options.pause)
    people = [annotator_named(store, f"Person {number}").id for number in range(options.n_annotators)]
    annotators = [
        Annotator(number, person, _ticket(target.home, person), place, options.seed)
        for number, person in enumerate(people)
    ]
    rounds = Rounds(store, drawn.project_id)
    return System(store, target.home, target, port, started, annotators, rounds, drawn.project_id)


def _ticket(home: Path, annotator: int) -> str:
    return tickets.issue(tickets.signing_key(home), annotator, TICKET_SECONDS)
