"""A worker: the process that runs rounds and simulations. Any number can run, on any machine that reaches the store.

    python -m app worker

A worker may be killed at any time. All state is in the store, the engine's tables and the artifact folder. A dead
worker is recognized by its missing heartbeat, and another worker (or the next one to start) continues from the last
finished stage. Stopping a worker has the same effect as killing it, and also removes its row.

About once a second, each worker enqueues the rounds and simulations that were requested. The longest-running worker
also requeues the workflows of dead workers and requests the next round of projects whose batch is labeled. A thread
serves the watched folders of this machine (`app.worker.folder_watcher`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from app.rounds import requests as round_requests
from app.worker import context as worker_context
from app.worker import engine
from app.worker.heartbeat import HEARTBEAT_SECONDS, ActivityCallbacks, Heartbeat
from core.errors import Cancelled
from core.types import Progress
from storage.database.store import Store
from storage.database.strings import count
from storage.media import shared as shared_media
from storage.media.checks import holds_media, is_shared
from storage.rounds import simulations, workers
from storage.rounds.log import RoundLog, is_cancelled, unfinished_rounds
from storage.rounds.workers import WorkerRow
from storage.system.processes import is_running

if TYPE_CHECKING:
    from app.worker.folder_watcher import WatchThread

LOG = logging.getLogger("winnow.worker")
SHARING_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Seconds between the periodic tasks of a worker. Tests use shorter ones."""

    loop: float = 1.0
    heartbeat: float = 1.0
    queues: float = 1.0
    stale: float = workers.STALE_SECONDS
    watch: float = 2.0


def machine() -> str:
    """An identifier of the process id namespace: this boot of this machine or container."""
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(path) if path.endswith("pid") else Path(path).read_text())
        except OSError:
            parts.append("")
    return hashlib.sha256("".join([socket.gethostname(), *parts]).encode()).hexdigest()[:8]


def new_worker_id() -> str:
    return f"{machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def is_dead(worker: WorkerRow, here: str) -> bool:
    """Whether the worker's heartbeat is stale, or its process was on this machine and no longer exists."""
    if not worker.living:
        return True
    if not worker.id.startswith(here + "-"):
        return False
    return not is_running(worker.pid)


class Worker:
    """One worker in this process."""

    def __init__(self, store: Store, intervals: Intervals | None = None, device: str = "") -> None:
        self.store = store
        self.intervals = intervals or Intervals()
        self.device = device or describe_device()
        self.id = new_worker_id()
        heartbeat_seconds = min(HEARTBEAT_SECONDS, self.intervals.stale / 4)
        self.heartbeat = Heartbeat(store, self.id, self._callbacks(), self.intervals.heartbeat, heartbeat_seconds)
        self._stopped = threading.Event()
        self._watching: WatchThread | None = None

    def _callbacks(self) -> ActivityCallbacks:
        return ActivityCallbacks(
            owns=lambda workflow_id: engine.owns(workflow_id, self.id),
            is_cancelled=lambda round_id: is_cancelled(self.store, round_id),
            write=lambda round_id, progress: round_requests.write_progress(self.store, round_id, progress),
        )

    def start(self) -> None:
        """Register this worker, then start the engine, which runs workflows from then on."""
        import app.rounds.workflows  # noqa: F401  # every workflow must be registered before the engine starts

        engine.migrate(self.store)
        worker_context.set_context(worker_context.WorkerContext(self.store, self.id, self.heartbeat))
        workers.register(self.store, self.id, host=socket.gethostname(), pid=os.getpid(), device=self.device)
        engine.launch(self.store, self.id, self.intervals.queues)
        self.heartbeat.start()
        from app.worker.folder_watcher import WatchThread

        self._watching = WatchThread(self.store, self.intervals.watch)
        self._watching.start()

    def run(self) -> None:
        """Poll until `stop` is called."""
        while not self._stopped.wait(self.intervals.loop):
            try:
                self.poll()
            except Exception as error:
                LOG.warning("The worker could not poll the store; it tries again: %s", error)

    def poll(self) -> None:
        """Enqueue requested work. The longest-running worker also requeues the workflows of dead workers."""
        from app.rounds import workflows

        here = machine()
        present = workers.list_workers(self.store, self.intervals.stale)
        living = [worker for worker in present if not is_dead(worker, here)]
        if self.id not in {worker.id for worker in living}:  # its heartbeat was stale after a long pause
            if self.id not in {worker.id for worker in present}:
                workers.register(self.store, self.id, host=socket.gethostname(), pid=os.getpid(), device=self.device)
            return
        if living[0].id == self.id:
            workflows.restart_outdated({worker.id for worker in living})
            adopted = engine.adopt({worker.id for worker in living})
            for workflow_id in adopted:
                LOG.info("Requeued %s of a dead worker.", workflow_id)
            if gone := [w.id for w in present if w.living and is_dead(w, here)]:
                workers.remove(self.store, gone)
            round_requests.request_automatic(self.store)
        workflows.enqueue_waiting(self.store)
        self.share_media()

    def share_media(self) -> None:
        """Copy media that other workers need into the artifact folder, for at most `SHARING_SECONDS`."""
        if not (is_shared(self.store) and holds_media(self.store)):
            return
        until = time.monotonic() + SHARING_SECONDS

        def stop_when_late(progress: Progress) -> None:
            if time.monotonic() > until:
                raise Cancelled("The remaining files are shared at the next poll.")

        waiting = [
            (project_id, RoundLog(self.store, project_id).get(round_id).last_item_id)
            for project_id, round_id in unfinished_rounds(self.store)
        ]
        waiting += [(row.project_id, row.last_item_id) for row in simulations.unfinished(self.store)]
        for project_id, last_item_id in waiting:
            with contextlib.suppress(Cancelled):
                shared_media.share(self.store, project_id, last_item_id, stop_when_late)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Remove this worker's row, so that another worker continues its work at once."""
        self.stop()
        self.heartbeat.end()
        if self._watching is not None:
            self._watching.end()
        workers.remove(self.store, [self.id])
        engine.shut_down()


def describe_device() -> str:
    """A description of this worker's device, such as "cuda:0 NVIDIA …" or "CPU, 4 threads"."""
    import torch

    from core.runtime import default_device

    device = default_device()
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"[:80]
    return f"{str(device).upper()}, {count(torch.get_num_threads(), 'thread')}"


def main(intervals: Intervals | None = None) -> int:
    """`python -m app worker`: run until SIGTERM or SIGINT, then exit at once. Unfinished stages are repeated later."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with Store.open() as store:
        worker = Worker(store, intervals)

        def leave(number: int, frame: FrameType | None) -> None:
            worker.stop()

        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGINT, leave)
        worker.start()
        LOG.info("Worker %s on %s is ready.", worker.id, worker.device)
        worker.run()
        workers.remove(store, [worker.id])
    logging.shutdown()
    os._exit(0)  # do not wait for a stage in another thread: the next worker repeats it
