"""`python -m app run`: the store made ready, the page server and a worker started, and both ended together.

The children have sessions of their own, so that Ctrl-C reaches only this process, which then ends them in order. Should
this process die without a chance to do so, the kernel ends them (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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

from app.cli.output import progress_bar, tell
from app.web import server_command
from core.errors import Conflict, WinnowError
from storage.database import backups
from storage.database.locations import Locations, from_environment
from storage.database.store import Store
from storage.projects.sample_projects import load_sample_projects

READY_SECONDS = 120.0
LEAVE_SECONDS = 10.0
LOG_BYTES = 5_000_000
PARENT_DIED = 1  # PR_SET_PDEATHSIG


@dataclass
class Child:
    """One process that is kept running; what it says goes to a log file."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started: float = field(default=0.0)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".old.log"))
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=server_command.ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        self.started = time.monotonic()

    def ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self.process.poll() if self.process is not None else None

    def ask_to_leave(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def make_leave(self, deadline: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """In the child, before its program starts: SIGTERM when the launcher is gone."""
    assert _libc is not None
    _libc.prctl(PARENT_DIED, signal.SIGTERM)


def launch(host: str | None = None, port: int | None = None, samples: bool = True) -> int:
    """Run until Ctrl-C or SIGTERM; returns the exit code."""
    known = from_environment()
    place = Locations(
        home=known.home,
        database_url=known.database_url,
        artifacts=known.artifacts,
        host=host or known.host,
        port=port or known.port,
    )
    leaving = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        leaving.set()

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        refuse_taken_port(place.host, place.port)
        with Store.open() as store:
            prepare(store, samples)
            return _Run(store, place, leaving).until_told()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_taken_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            plug.bind((host, port))
        except OSError as problem:
            raise Conflict(
                f"Winnow cannot listen on {host} port {port}: {problem.strerror}. "
                "Stop the other process, or use another port: WINNOW_PORT=8502 make run"
            ) from problem


def prepare(store: Store, samples: bool) -> None:
    """What must be there before the children start."""
    for warning in store.warnings:
        tell(warning)
    if samples:
        with progress_bar("Loading the sample projects") as report:
            load_sample_projects(store, report)


class _Run:
    def __init__(self, store: Store, place: Locations, leaving: threading.Event) -> None:
        self.store, self.place, self.leaving = store, place, leaving
        environment = server_command.environment(place.host, place.port, place.home)
        environment |= {"WINNOW_DATABASE_URL": place.database_url, "WINNOW_ARTIFACTS": place.artifacts}
        logs = place.home / "logs"
        command = server_command.command(place.host, place.port)
        self.server = Child("server", command, environment, logs / "server.log")
        self.worker = Child("worker", [sys.executable, "-m", "app", "worker"], environment, logs / "worker.log")
        self.token = environment.get("WINNOW_TOKEN")

    def until_told(self) -> int:
        try:
            self.server.start()
            if not self._wait_until_ready():
                return 0 if self.leaving.is_set() else 1
            self.worker.start()
            address = server_command.address(self.place.host, self.place.port, self.token)
            sys.stdout.write(f"Winnow is ready at {address if self.token else address.rstrip('/')}\n")
            sys.stdout.flush()
            return self._watch()
        finally:
            self._end()

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and not self.leaving.wait(0.1):
            code = self.server.ended()
            if code is not None:
                tell(f"The page server stopped with code {code} before it was ready. Log: {self.server.log}")
                return False
            if healthy(self.place.host, self.place.port):
                return True
        if not self.leaving.is_set():
            tell(f"The page server was not ready after {READY_SECONDS:.0f} s. Log: {self.server.log}")
        return False

    def _watch(self) -> int:
        """Until told to leave; a worker that dies is started again, later each time it dies at once."""
        backup_at, restart_at = time.monotonic(), 0.0
        while not self.leaving.wait(0.5):
            code = self.server.ended()
            if code is not None:
                tell(f"The page server stopped with code {code}. Log: {self.server.log}")
                return 1
            if self.worker.ended() is not None and self.worker.process is not None:
                quick = time.monotonic() - self.worker.started < 60
                self.worker.failures = self.worker.failures + 1 if quick else 1
                pause = min(60.0, 2.0 ** (self.worker.failures - 1))
                tell(f"The worker stopped and restarts in {pause:.0f} s. Log: {self.worker.log}")
                restart_at, self.worker.process = time.monotonic() + pause, None
            if self.worker.process is None and time.monotonic() >= restart_at:
                self.worker.start()
            if time.monotonic() >= backup_at:
                backup_at = time.monotonic() + 3600
                self._daily_backup()
        return 0

    def _daily_backup(self) -> None:
        try:
            backups.daily(self.store)
        except (WinnowError, OSError) as problem:
            tell(f"The daily backup failed: {problem}")

    def _end(self) -> None:
        children = (self.worker, self.server)
        for child in children:
            child.ask_to_leave()
        deadline = time.monotonic() + LEAVE_SECONDS
        for child in children:
            child.make_leave(deadline)


def healthy(host: str, port: int) -> bool:
    address = server_command.address(host, port).rstrip("/") + server_command.HEALTH_PATH
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
