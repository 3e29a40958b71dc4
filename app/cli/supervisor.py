"""`python -m app run`: prepares the store; starts and stops the page server, a worker and the live predictions.

The child processes have their own sessions, so Ctrl-C reaches only this process, which then stops them in order. If
this process is killed, the kernel stops them (Linux).
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from app.cli.output import print_note, progress_bar
from app.processes import child
from app.web import server_command
from core.errors import Conflict, WinnowError
from core.module_processes import module_command
from storage.database import backups
from storage.database.health import note_backup
from storage.database.locations import Locations, from_environment
from storage.database.store import Store
from storage.importing.runs import end_interrupted
from storage.projects.sample_projects import load_sample_projects

READY_SECONDS = 120.0
SHUTDOWN_SECONDS = 10.0
LOG_BYTES = 5_000_000
QUICK_SECONDS = 60.0  # a process that ran for less time counts as failed again
LONGEST_PAUSE = 60.0  # the longest pause before a restart, in seconds
BACKUP_SECONDS = 3600.0  # between checks for the daily backup


@dataclass
class Service:
    """One supervised process. Its output goes to a log file."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started: float = field(default=0.0)

    def start(self) -> None:
        """Start the process and append its output to the log file. A large log file is rotated first."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".old.log"))
        with open(self.log, "ab") as log:
            streams = child.Streams(stdout=log, stderr=log)
            self.process = child.start(self.command, streams, environment=self.environment, end_with_parent=True)
        self.started = time.monotonic()

    def exit_code(self) -> int | None:
        """The exit code, or None while the process is running."""
        return self.process.poll() if self.process is not None else None

    def terminate(self) -> None:
        """Send SIGTERM to the process and all its children."""
        if self.process is not None:
            child.signal_group(self.process, signal.SIGTERM)

    def kill_after(self, deadline: float) -> None:
        """Wait for the process to end until `deadline` (monotonic clock), then kill it."""
        if self.process is not None:
            child.end_group(self.process, max(0.1, deadline - time.monotonic()))

    def restart_pause(self) -> float:
        """Seconds to wait before a restart: doubled after each consecutive failure, at most `LONGEST_PAUSE`."""
        quick = time.monotonic() - self.started < QUICK_SECONDS
        self.failures = self.failures + 1 if quick else 1
        return min(LONGEST_PAUSE, 2.0 ** (self.failures - 1))


def launch(host: str | None = None, port: int | None = None, samples: bool = True) -> int:
    """Run until Ctrl-C or SIGTERM. Returns the exit code."""
    known = from_environment()
    place = Locations(
        home=known.home,
        database_url=known.database_url,
        artifacts=known.artifacts,
        host=host or known.host,
        port=port or known.port,
    )
    shutdown = threading.Event()

    def request_shutdown(number: int, frame: FrameType | None) -> None:
        shutdown.set()

    before = {number: signal.signal(number, request_shutdown) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        refuse_taken_port(place.host, place.port)
        with Store.open() as store:
            prepare(store, samples)
            return Supervisor(store, place, shutdown).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_taken_port(host: str, port: int) -> None:
    """Raise `Conflict` if the page server cannot listen on this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as problem:
            raise Conflict(
                f"Winnow cannot listen on {host} port {port}: {problem.strerror}. "
                "Stop the other process, or use another port: WINNOW_PORT=8502 make run"
            ) from problem


def prepare(store: Store, samples: bool) -> None:
    """Print the store's warnings on stderr and load the sample projects. Called before the child processes start."""
    end_interrupted(store)
    for warning in store.warnings:
        print_note(warning)
    if samples:
        with progress_bar("Loading the sample projects") as report:
            load_sample_projects(store, report)


class Supervisor:
    """Runs the page server, one worker and the live predictions until shutdown."""

    def __init__(self, store: Store, place: Locations, shutdown: threading.Event) -> None:
        self.store, self.place, self.shutdown = store, place, shutdown
        environment = server_command.environment(place.host, place.port, place.home)
        environment |= {"WINNOW_DATABASE_URL": place.database_url, "WINNOW_ARTIFACTS": place.artifacts}
        logs = place.home / "logs"
        command = server_command.command(place.host, place.port)
        self.server = Service("server", command, environment, logs / "server.log")
        worker = module_command("app", "worker")
        self.worker = Service("worker", worker, environment, logs / "worker.log")
        one_thread = environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # fits are short
        self.live = Service("live process", module_command("app", "live"), one_thread, logs / "live.log")
        self.token = environment.get("WINNOW_TOKEN")

    def run(self) -> int:
        """Start the processes, print the address and supervise until shutdown. Returns the exit code."""
        try:
            self.server.start()
            if not self._wait_until_ready():
                return 0 if self.shutdown.is_set() else 1
            self.worker.start()
            self.live.start()
            address = server_command.address(self.place.host, self.place.port, self.token)
            sys.stdout.write(f"Winnow is ready at {address if self.token else address.rstrip('/')}\n")
            sys.stdout.flush()
            return self._supervise()
        finally:
            self._end()

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and not self.shutdown.wait(0.1):
            code = self.server.exit_code()
            if code is not None:
                print_note(f"The page server stopped with code {code} before it was ready. Log: {self.server.log}")
                return False
            if healthy(self.place.host, self.place.port):
                return True
        if not self.shutdown.is_set():
            print_note(f"The page server was not ready after {READY_SECONDS:.0f} s. Log: {self.server.log}")
        return False

    def _supervise(self) -> int:
        """Supervise until shutdown; restart the other processes with exponential backoff."""
        backup_at, restart_at = time.monotonic(), dict.fromkeys(("worker", "live process"), 0.0)
        while not self.shutdown.wait(0.5):
            code = self.server.exit_code()
            if code is not None:
                print_note(f"The page server stopped with code {code}. Log: {self.server.log}")
                return 1
            for service in (self.worker, self.live):
                if service.exit_code() is not None:
                    pause = service.restart_pause()
                    print_note(f"The {service.name} stopped and restarts in {pause:.0f} s. Log: {service.log}")
                    restart_at[service.name], service.process = time.monotonic() + pause, None
                if service.process is None and time.monotonic() >= restart_at[service.name]:
                    service.start()
            if time.monotonic() >= backup_at:
                backup_at = time.monotonic() + BACKUP_SECONDS
                self._daily_backup()
        return 0

    def _daily_backup(self) -> None:
        try:
            backups.daily(self.store)
            note_backup(self.place.home, "")
        except (WinnowError, OSError) as problem:
            print_note(f"The daily backup failed: {problem}")
            note_backup(self.place.home, str(problem))

    def _end(self) -> None:
        services = (self.live, self.worker, self.server)
        for service in services:
            service.terminate()
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for service in services:
            service.kill_after(deadline)


def healthy(host: str, port: int) -> bool:
    """Whether the page server answers its health check with status 200."""
    address = server_command.address(host, port).rstrip("/") + server_command.HEALTH_PATH
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
