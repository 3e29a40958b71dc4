"""A worker's heartbeat: a thread that writes heartbeats and progress, and stops work that was cancelled.

The work itself calls `report`, which only keeps the newest record in memory and raises if the work must stop, so ten
thousand calls a second are cheap. Every `interval` seconds the thread

  writes the newest progress of each activity (and the newest with metrics), and the worker's heartbeat;
  checks in the store whether the round or simulation was cancelled;
  checks in the engine whether this worker still runs the workflow. After a long pause (such as a suspended laptop)
  another worker may have taken over; the work then stops at its next report, and nothing more is written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from core.errors import Cancelled, WinnowError
from core.types import Progress
from storage.database.store import Store
from storage.rounds import workers

LOG = logging.getLogger("winnow.worker")
HEARTBEAT_SECONDS = 5.0

Owns = Callable[[str], bool]
IsCancelled = Callable[[int], bool]
WriteProgress = Callable[[int, Progress], None]


class Superseded(WinnowError):
    """Another worker now runs this workflow. The results of this worker are discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityCallbacks:
    """The functions through which an activity reads and writes the store and the engine. Tests replace them."""

    owns: Owns  # workflow_id -> whether this worker still runs it
    is_cancelled: IsCancelled  # id of the round (or simulation) -> whether it was cancelled
    write: WriteProgress
    of_rounds: bool = True  # False for simulations, which pause while a round runs


@dataclass(slots=True, eq=False)
class Activity:
    """One step that this worker is running."""

    workflow_id: str
    subject: int  # the id of the round, or of the simulation
    stage: str
    writes: bool  # False for a unit of a round: the round itself counts finished units
    callbacks: ActivityCallbacks
    newest: Progress | None = None
    measured: Progress | None = None  # the newest record with metrics, a point of a curve; written in addition
    written: Progress | None = None
    curve_written: Progress | None = None
    stop: WinnowError | None = None
    writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def round_id(self) -> int | None:
        return self.subject if self.callbacks.of_rounds else None

    def report(self, progress: Progress) -> None:
        """The `core.types.Report` of the work. Raises if the work must stop."""
        self.newest = progress
        if progress.metrics:
            self.measured = progress
        if self.stop is not None:
            raise self.stop


class Heartbeat(threading.Thread):
    """The heartbeat thread of a worker. Use `activity` around each piece of work, and call `end` to stop it."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        callbacks: ActivityCallbacks,
        interval: float = 1.0,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(name="winnow-heartbeat", daemon=True)
        self.store, self.worker_id, self.callbacks = store, worker_id, callbacks
        self.interval, self.heartbeat_seconds = interval, heartbeat_seconds
        self._activities: list[Activity] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._written_at = 0.0
        self._written: tuple[int | None, str] = (None, "")

    @contextmanager
    def activity(
        self,
        workflow_id: str,
        subject: int,
        stage: str,
        writes: bool = True,
        callbacks: ActivityCallbacks | None = None,
    ) -> Iterator[Activity]:
        """Show this stage in the worker's row and write the progress of the activity while the block runs."""
        activity = Activity(workflow_id, subject, stage, writes, callbacks or self.callbacks)
        with self._lock:
            self._activities.append(activity)
        try:
            self._check_and_write(activity)
            activity.report(Progress(stage, 0, 1))
            yield activity
            self._check_and_write(activity)
        finally:
            with self._lock:
                self._activities.remove(activity)

    @property
    def runs_round(self) -> bool:
        """Whether this worker runs a stage or a unit of a round."""
        with self._lock:
            return any(activity.round_id is not None for activity in self._activities)

    def run(self) -> None:
        while not self._ended.wait(self.interval):
            self.tick()

    def end(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(timeout=10.0)

    def tick(self) -> None:
        """Perform one heartbeat. An unreachable store or engine does not stop the work; the next heartbeat retries."""
        with self._lock:
            activities = list(self._activities)
        for activity in activities:
            self._check_and_write(activity)
        try:
            self._write_heartbeat(activities)
        except Exception as error:
            LOG.warning("A heartbeat could not be stored: %s", error)

    def _check_and_write(self, activity: Activity) -> None:
        try:
            self._check(activity)
            self._write(activity)
        except Exception as error:
            LOG.warning("The progress of %s could not be stored or checked: %s", activity.workflow_id, error)

    def _check(self, activity: Activity) -> None:
        if activity.stop is not None:
            return
        if not activity.callbacks.owns(activity.workflow_id):
            activity.stop = Superseded("Another worker took this over.")
        elif activity.callbacks.is_cancelled(activity.subject):
            activity.stop = Cancelled("This was cancelled.")

    def _write(self, activity: Activity) -> None:
        with activity.writing:
            if not activity.writes or activity.stop is not None:
                return
            measured, newest = activity.measured, activity.newest
            if measured is not None and measured is not activity.curve_written:
                activity.callbacks.write(activity.subject, measured)
                activity.curve_written = measured
            if newest is not None and newest is not measured and newest is not activity.written:
                activity.callbacks.write(activity.subject, newest)
                activity.written = newest

    def _write_heartbeat(self, activities: list[Activity]) -> None:
        newest = [one for one in activities if one.round_id is not None] or activities
        shown = (newest[-1].round_id, newest[-1].stage) if newest else (None, "")
        if shown == self._written and time.monotonic() - self._written_at < self.heartbeat_seconds:
            return
        workers.beat(self.store, self.worker_id, round_id=shown[0], stage=shown[1])
        self._written, self._written_at = shown, time.monotonic()
