"""A worker's pulse: one thread that gives signs of life, stores the newest progress and notices when work must stop.

The work itself only calls `report`, which keeps the newest record in memory and raises when the work has to stop: ten
thousand calls a second cost nothing. Once in `interval` seconds the pulse

  writes the newest progress of each activity (and the newest with metrics), and the worker's sign of life;
  asks the store whether someone cancelled the round (or the simulation: an activity may bring its own questions);
  asks the engine whether this worker still runs the workflow. After a long pause (a laptop's sleep) it may not: another
  worker took over, and this one stops at its next report without writing anything more.
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
BEAT_SECONDS = 5.0

Ask = Callable[[str], bool]
IsCancelled = Callable[[int], bool]
WriteProgress = Callable[[int, Progress], None]


class Superseded(WinnowError):
    """Another worker runs this workflow now; what this one computes is not wanted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What the pulse asks and tells others, so that it can be tried without them."""

    owns: Ask  # workflow_id -> does this worker still run it?
    is_cancelled: IsCancelled  # id of the round (or simulation) -> did someone ask to stop?
    write: WriteProgress
    of_rounds: bool = True  # False: about simulations, which give way to rounds


@dataclass(slots=True, eq=False)
class Activity:
    """One step that this worker runs at present."""

    workflow_id: str
    subject: int  # the id of the round, or of what `questions` are about
    stage: str
    writes: bool  # False: a unit of a round, whose progress is counted by the round itself
    questions: Questions
    newest: Progress | None = None
    measured: Progress | None = None  # the newest with metrics: a point of a curve, not to be lost among the others
    written: Progress | None = None
    curve_written: Progress | None = None
    stop: WinnowError | None = None
    writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def round_id(self) -> int | None:
        return self.subject if self.questions.of_rounds else None

    def report(self, progress: Progress) -> None:
        """`core.types.Report` for the work."""
        self.newest = progress
        if progress.metrics:
            self.measured = progress
        if self.stop is not None:
            raise self.stop


class Heartbeat(threading.Thread):
    def __init__(
        self,
        store: Store,
        worker_id: str,
        questions: Questions,
        interval: float = 1.0,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        super().__init__(name="winnow-pulse", daemon=True)
        self.store, self.worker_id, self.questions = store, worker_id, questions
        self.interval, self.beat_seconds = interval, beat_seconds
        self._activities: list[Activity] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beaten = 0.0
        self._shown: tuple[int | None, str] = (None, "")

    @contextmanager
    def activity(
        self, workflow_id: str, subject: int, stage: str, writes: bool = True, questions: Questions | None = None
    ) -> Iterator[Activity]:
        """While the block runs, the worker shows this stage and the activity's `report` is listened to."""
        activity = Activity(workflow_id, subject, stage, writes, questions or self.questions)
        with self._lock:
            self._activities.append(activity)
        try:
            self._attend(activity)
            activity.report(Progress(stage, 0, 1))
            yield activity
            self._attend(activity)
        finally:
            with self._lock:
                self._activities.remove(activity)

    @property
    def round_at_work(self) -> bool:
        """Whether this worker is at a stage or a unit of a round."""
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
        """One beat. A store or engine that cannot be reached for a while stops nothing: the next beat tries again."""
        with self._lock:
            activities = list(self._activities)
        for activity in activities:
            self._attend(activity)
        try:
            self._beat(activities)
        except Exception as error:
            LOG.warning("A heartbeat could not be stored: %s", error)

    def _attend(self, activity: Activity) -> None:
        try:
            self._question(activity)
            self._write(activity)
        except Exception as error:
            LOG.warning("A heartbeat of %s failed: %s", activity.workflow_id, error)

    def _question(self, activity: Activity) -> None:
        if activity.stop is not None:
            return
        if not activity.questions.owns(activity.workflow_id):
            activity.stop = Superseded("Another worker took this over.")
        elif activity.questions.is_cancelled(activity.subject):
            activity.stop = Cancelled("This was cancelled.")

    def _write(self, activity: Activity) -> None:
        with activity.writing:
            if not activity.writes or activity.stop is not None:
                return
            measured, newest = activity.measured, activity.newest
            if measured is not None and measured is not activity.curve_written:
                activity.questions.write(activity.subject, measured)
                activity.curve_written = measured
            if newest is not None and newest is not measured and newest is not activity.written:
                activity.questions.write(activity.subject, newest)
                activity.written = newest

    def _beat(self, activities: list[Activity]) -> None:
        newest = [one for one in activities if one.round_id is not None] or activities
        shown = (newest[-1].round_id, newest[-1].stage) if newest else (None, "")
        if shown == self._shown and time.monotonic() - self._beaten < self.beat_seconds:
            return
        workers.beat(self.store, self.worker_id, round_id=shown[0], stage=shown[1])
        self._shown, self._beaten = shown, time.monotonic()
