"""The processes of a drill: page server, worker and PostgreSQL, started as users start them and killed by their ids.

`Watchdog` restarts processes that ended, like a service manager.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from app.web import server_command
from tests.drills.shifted_clock import VARIABLE
from tests.postgres_server import Server, as_ordinary_user, dying_with_us

STOP_SECONDS = 30.0
START_SECONDS = 900.0  # on a machine with forty busy processes, 300 did not suffice
RETRY_SECONDS = 0.5
SAYS_READY = b" is ready."


@dataclass
class Managed:
    """One process that may be killed at any time."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    folder: Path = server_command.ROOT
    is_ready: Callable[[], bool] | None = None  # None: when its log says so
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started: float = 0.0
    ready: float | None = None  # when it was first seen to serve; None: not since its start

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_start, self.ready = log.tell(), None
            self.process = subprocess.Popen(
                list(self.command), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.starts += 1
        self.started = time.monotonic()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def look(self) -> None:
        """Record the time when it serves for the first time after its start."""
        if self.ready is None and self.running and (self.is_ready or self._said_ready)():
            self.ready = time.monotonic()

    def _said_ready(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return SAYS_READY in log.read()

    def has_served(self, seconds: float) -> bool:
        """Whether it has served for `seconds`, and for as long as its start took, because a busy machine is slow in
        both."""
        if self.ready is None or not self.running:
            return False
        return time.monotonic() - self.ready >= max(seconds, self.ready - self.started)

    def send(self, number: int) -> int:
        """Send a signal to this process alone; its id."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.pid

    def end(self) -> None:
        """Terminate it, and kill it and its children if that takes long."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: nobody else's processes
            self.process.wait()


def page_server(home: Path, port: int, environment: dict[str, str], logs: Path) -> Managed:
    command = server_command.command("127.0.0.1", port)
    shifted = [sys.executable, "-m", "tests.drills.shifted_clock", *command[2:]]  # without python -m
    values = server_command.environment("127.0.0.1", port, home) | environment
    return Managed("server", shifted, values, logs / "server.log", is_ready=lambda: is_ready(port))


def worker(home: Path, port: int, environment: dict[str, str], logs: Path) -> Managed:
    values = server_command.environment("127.0.0.1", port, home) | environment
    command = [sys.executable, "-m", "tests.drills.shifted_clock", "app", "worker"]
    return Managed("worker", command, values, logs / "worker.log")


def common_environment(clock: Path, url: str | None) -> dict[str, str]:
    values = {VARIABLE: str(clock), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return values | ({"WINNOW_DATABASE_URL": url} if url else {})


def is_ready(port: int) -> bool:
    try:
        address = f"http://127.0.0.1:{port}{server_command.HEALTH_PATH}"
        return bool(urllib.request.urlopen(address, timeout=5).status == 200)
    except OSError:
        return False


class Postgres:
    """A PostgreSQL server in `folder` that can be killed and started again; it listens on no network address."""

    def __init__(self, binaries: Path, folder: Path, logs: Path) -> None:
        folder.mkdir(parents=True)
        prefix = as_ordinary_user(folder)
        data = folder / "data"
        initdb = [*prefix, str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run([*initdb, "-E", "UTF8", "--locale=C.UTF-8"], cwd=folder, check=True, capture_output=True)
        settings = {
            "listen_addresses": "", "unix_socket_directories": folder, "max_connections": 60,
            "shared_buffers": "64MB", "max_wal_size": "64MB", "min_wal_size": "32MB",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*dying_with_us(prefix), str(binaries / "postgres"), "-D", str(data), *options]
        self.server = Server(folder)
        self.managed = Managed("postgresql", command, dict(os.environ), logs / "postgresql.log", folder, self.is_ready)

    def is_ready(self) -> bool:
        try:
            self.server.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def wait_until(ready: object, what: str, seconds: float = START_SECONDS) -> None:
    assert callable(ready)
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"The {what} was not ready after {seconds:.0f} s.")
        time.sleep(0.1)


class Watchdog(threading.Thread):
    """Restarts processes that ended, and records when they serve. PostgreSQL ends with the thread that started it, so
    stop the watchdog last."""

    def __init__(self, processes: Sequence[Managed]) -> None:
        super().__init__(daemon=True)
        self.processes, self.stopped = list(processes), threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        while not self.stopped.wait(RETRY_SECONDS):
            with self._lock:
                for one in self.processes:
                    if not one.running:
                        one.start()
                    one.look()

    def end(self, one: Managed) -> None:
        """End a process for good."""
        with self._lock:
            self.processes.remove(one)
        one.end()

    def stop(self) -> None:
        self.stopped.set()
        self.join()
