"""A worker: the process that runs rounds and simulations. Start as many as you like, anywhere that reaches the store.

    python -m app worker

It is made to be killed. Everything that matters is in the store, the engine's tables and the artifact folder; a worker
that dies, however it dies, is noticed by its missing signs of life, and another (or the next one started) goes on from
the last finished stage. Stopping a worker is therefore the same as killing it, only announced.

The loop of each worker, about once a second: hand what was requested to the engine (again, if the engine lost it), ask
for the next round where a batch is done, and, in the longest-serving living worker only, take over from the dead.
Beside it, a thread serves the watched folders of this machine (`app.worker.folder_watcher`).
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
from app.worker.heartbeat import BEAT_SECONDS, Heartbeat, Questions
from core.errors import Cancelled
from core.types import Progress
from storage.database.store import Store
from storage.media import shared as shared_media
from storage.rounds import simulations, workers
from storage.rounds.log import RoundLog, is_cancelled, unfinished_rounds
from storage.rounds.workers import WorkerRow
from storage.system.processes import is_running

if TYPE_CHECKING:
    from app.worker.folder_watcher import WatchThread

LOG = logging.getLogger("winnow.worker")
SHARING_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo:
    """How often a worker looks around, in seconds. Tests run faster."""

    loop: float = 1.0
    pulse: float = 1.0
    queues: float = 1.0
    stale: float = workers.STALE_SECONDS
    watch: float = 2.0


def machine() -> str:
    """Names the space in which process ids mean something: this boot of this machine, this container."""
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
    """No sign of life for too long; or a process of this machine that is gone, which is known at once."""
    if not worker.living:
        return True
    if not worker.id.startswith(here + "-"):
        return False
    return not is_running(worker.pid)


class Worker:
    """One worker in this process."""

    def __init__(self, store: Store, tempo: Tempo | None = None, device: str = "") -> None:
        self.store = store
        self.tempo = tempo or Tempo()
        self.device = device or describe_device()
        self.id = new_worker_id()
        beat_seconds = min(BEAT_SECONDS, self.tempo.stale / 4)
        self.pulse = Heartbeat(store, self.id, self._questions(), self.tempo.pulse, beat_seconds)
        self._stopped = threading.Event()
        self._watching: WatchThread | None = None

    def _questions(self) -> Questions:
        return Questions(
            owns=lambda workflow_id: engine.owns(workflow_id, self.id),
            is_cancelled=lambda round_id: is_cancelled(self.store, round_id),
            write=lambda round_id, progress: round_requests.write_progress(self.store, round_id, progress),
        )

    def start(self) -> None:
        """Show up, then start the engine: from here on it takes work."""
        import app.rounds.workflows  # noqa: F401  # the engine must know every workflow before it takes work

        engine.migrate(self.store)
        worker_context.take(worker_context.WorkerContext(self.store, self.id, self.pulse))
        workers.register(self.store, self.id, host=socket.gethostname(), pid=os.getpid(), device=self.device)
        engine.launch(self.store, self.id, self.tempo.queues)
        self.pulse.start()
        from app.worker.folder_watcher import WatchThread

        self._watching = WatchThread(self.store, self.tempo.watch)
        self._watching.start()

    def run(self) -> None:
        """Work until `stop`."""
        while not self._stopped.wait(self.tempo.loop):
            try:
                self.look_around()
            except Exception as error:
                LOG.warning("The worker could not check for work and will retry: %s", error)

    def look_around(self) -> None:
        from app.rounds import workflows

        here = machine()
        present = workers.list_workers(self.store, self.tempo.stale)
        living = [worker for worker in present if not is_dead(worker, here)]
        if self.id not in {worker.id for worker in living}:  # back from a long pause
            if self.id not in {worker.id for worker in present}:
                workers.register(self.store, self.id, host=socket.gethostname(), pid=os.getpid(), device=self.device)
            return
        if living[0].id == self.id:
            adopted = engine.adopt({worker.id for worker in living})
            for workflow_id in adopted:
                LOG.info("Took over %s from a worker that is gone.", workflow_id)
            if gone := [w.id for w in present if w.living and is_dead(w, here)]:
                workers.remove(self.store, gone)
            round_requests.request_automatic(self.store)
        workflows.hand_over(self.store)
        self.share_media()

    def share_media(self) -> None:
        """Copy media that a worker elsewhere waits for into the artifact folder, a few seconds at a time."""
        if not (shared_media.is_shared(self.store) and shared_media.holds_media(self.store)):
            return
        until = time.monotonic() + SHARING_SECONDS

        def patience(progress: Progress) -> None:
            if time.monotonic() > until:
                raise Cancelled("The rest is shared the next time.")

        waiting = [
            (project_id, RoundLog(self.store, project_id).get(round_id).last_item_id)
            for project_id, round_id in unfinished_rounds(self.store)
        ]
        waiting += [(row.project_id, row.last_item_id) for row in simulations.unfinished(self.store)]
        for project_id, last_item_id in waiting:
            with contextlib.suppress(Cancelled):
                shared_media.share(self.store, project_id, last_item_id, patience)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Leave: others see it at once and go on with what this worker has not finished."""
        self.stop()
        self.pulse.end()
        if self._watching is not None:
            self._watching.end()
        workers.remove(self.store, [self.id])
        engine.shut_down()


def describe_device() -> str:
    """The device this worker computes on, as people know it."""
    import torch

    from core.runtime import default_device

    device = default_device()
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"[:80]
    return f"{device} x{torch.get_num_threads()}"


def main(tempo: Tempo | None = None) -> int:
    """`python -m app worker`: work until a signal comes. Stops at once: unfinished stages are done again by others."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with Store.open() as store:
        worker = Worker(store, tempo)

        def leave(number: int, frame: FrameType | None) -> None:
            worker.stop()

        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGINT, leave)
        worker.start()
        LOG.info("Worker %s on %s is ready.", worker.id, worker.device)
        worker.run()
        workers.remove(store, [worker.id])
    logging.shutdown()
    os._exit(0)  # a stage may be running in another thread; it is repeated by the next worker, so do not wait for it
