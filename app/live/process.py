"""The process of the live heads: `python -m app live`. It is started together with the page server and the worker.

It polls the revisions of all projects several times a second. If the labels of a project have changed, it refits the
head and replaces the project's file of predictions (`app.live.results`). It writes nothing to the store. Rounds do not
read live predictions, so they stay reproducible. A project that fails is tried again after a pause that doubles up to
LONGEST_PAUSE, and at once when it changes.

A project has no live predictions if its setting `live` is off, or if its newest round has more than MOST_ITEMS items.
Test items are not used and get no live predictions.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.live.features import LivePool, live_pool
from app.live.results import LiveFit, LiveResult, Suspect, remove_result, write_result
from core.errors import WinnowError
from core.types import UNLABELED
from storage.database.store import Store
from storage.labeling.state_arrays import ItemStates, item_states
from storage.projects import class_rows
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, list_projects

if TYPE_CHECKING:
    from app.live.head import LiveHead

LOG = logging.getLogger("winnow.live")
PAUSE = 0.1  # seconds between polls
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds after a failure of a project
MOST_ITEMS = 50_000
FEWEST_CHECKED = 20  # with fewer labels there is no cross-validation
MOST_SUSPECTS = 500
KEPT_BYTES = 1 << 30  # limit of prepared features in memory; the most recently used project always stays


@dataclass
class Followed:
    """The state of one project in memory."""

    pool: LivePool
    head: LiveHead
    labels: NDArray[np.int64]  # (n,) labels of the last fit: columns, or UNLABELED
    best: NDArray[np.int64]  # (n,) predicted columns of the last fit


@dataclass(frozen=True)
class Failure:
    """The next attempt after a failed update of a project."""

    due: float  # time by the follower's clock
    pause: float  # seconds before it


class Follower:
    """Keeps the live predictions of all projects of a store up to date."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.home, self._clock = store, store.home, clock
        self._revisions: dict[int, int] = {}
        self._failures: dict[int, Failure] = {}
        self._followed: OrderedDict[int, Followed] = OrderedDict()

    def look(self) -> int:
        """Refit the projects that have changed. Returns the number of fits."""
        fits = 0
        for project in list_projects(self.store):
            changed, failure = self._revisions.get(project.id) != project.revision, self._failures.get(project.id)
            if not changed and (failure is None or self._clock() < failure.due):
                continue
            try:
                fits += self.update(project)
                self._failures.pop(project.id, None)
            except (WinnowError, OSError, ValueError, np.linalg.LinAlgError) as problem:
                LOG.warning("no live predictions for project %d: %s", project.id, problem)
                self._forget(project.id)
                pause = FIRST_PAUSE if changed or failure is None else min(2 * failure.pause, LONGEST_PAUSE)
                self._failures[project.id] = Failure(self._clock() + pause, pause)
            self._revisions[project.id] = project.revision
        return fits

    def update(self, project: ProjectRow) -> bool:
        """Refit the head of one project if its labels have changed. Returns whether it was refitted."""
        states = item_states(self.store, project.id)
        known = self._followed.get(project.id)
        pool = None
        if project.settings.live:
            pool = live_pool(self.store, project.id, states, known.pool if known else None)
        if pool is None or not 0 < len(pool.item_ids) <= MOST_ITEMS:
            self._forget(project.id)
            return False
        followed = self._follow(project.id, pool)
        labels = self._labels(project.id, states, pool)
        if np.array_equal(labels, followed.labels):
            return False
        self._fit(project.id, states, followed, labels)
        return True

    def _forget(self, project_id: int) -> None:
        self._followed.pop(project_id, None)
        remove_result(self.home, project_id)

    def _follow(self, project_id: int, pool: LivePool) -> Followed:
        known = self._followed.get(project_id)
        if known is None or known.pool is not pool:
            from app.live.head import FROZEN, TRAINED, LiveHead  # loads scipy, which a store without rounds never needs

            remove_result(self.home, project_id)  # it belongs to another round
            found = pool.found
            assert found.embeddings is not None
            stored = np.asarray(found.probabilities[pool.rows], np.float32)
            features = np.asarray(found.embeddings[pool.rows], np.float32)
            temperature = float(found.round.metrics.get("temperature") or 1.0)
            head = LiveHead(features, stored, pool.labels, FROZEN if pool.frozen else TRAINED, temperature)
            known = Followed(pool, head, pool.labels, stored.argmax(1))
            self._followed[project_id] = known
            while len(self._followed) > 1 and sum(one.head.n_bytes for one in self._followed.values()) > KEPT_BYTES:
                self._followed.popitem(last=False)
        self._followed.move_to_end(project_id)
        return known

    def _labels(self, project_id: int, states: ItemStates, pool: LivePool) -> NDArray[np.int64]:
        """(n,) the column of each item's label; UNLABELED without a label or if the class is newer than the round."""
        known = list_classes(self.store, project_id, include_inactive=True)
        counts_as = class_rows.counts_as(known)
        column_of = {class_id: column for column, class_id in enumerate(pool.found.column_classes)}
        given = states.class_id[states.positions(pool.item_ids)]
        labels = np.full(len(given), UNLABELED)
        for class_id in np.unique(given[given > 0]).tolist():
            column = column_of.get(counts_as.get(class_id, class_id), column_of.get(class_id, UNLABELED))
            labels[given == class_id] = column
        return labels

    def _fit(self, project_id: int, states: ItemStates, followed: Followed, labels: NDArray[np.int64]) -> None:
        found = followed.head.predict(labels)
        best, open_ = found.probabilities.argmax(1), labels == UNLABELED
        fit = LiveFit(
            round_id=followed.pool.round_id,
            revision=states.revision,
            n_labels=int((~open_).sum()),
            n_new=int((labels != followed.labels).sum()),
            n_changed=int((best != followed.best)[open_].sum()),
            seconds=round(found.seconds, 4),
        )
        suspects: tuple[Suspect, ...] = ()
        if followed.pool.frozen and fit.n_labels >= FEWEST_CHECKED:
            fit, suspects = self._check(followed, labels, fit)
        result = LiveResult(
            fit=fit,
            suspects=suspects,
            item_ids=followed.pool.item_ids,
            probabilities=found.probabilities,
            class_ids=followed.pool.found.column_classes,
            trained=~open_ | (followed.pool.labels != UNLABELED),
        )
        write_result(self.home, project_id, result)
        followed.labels, followed.best = labels, best

    def _check(
        self, followed: Followed, labels: NDArray[np.int64], fit: LiveFit
    ) -> tuple[LiveFit, tuple[Suspect, ...]]:
        """Cross-validate the labels: count those that are predicted correctly, and list those that may be wrong."""
        from core.labels.errors import suspect_labels  # loads scipy

        rows = np.flatnonzero(labels != UNLABELED)
        found = followed.head.cross_validate(labels)[rows]
        checked = np.isfinite(found).all(1)
        agreeing = int((found[checked].argmax(1) == labels[rows][checked]).sum())
        ids, classes = followed.pool.item_ids[rows], followed.pool.found.column_classes
        suspects = suspect_labels(found, labels[rows])
        made = tuple(
            Suspect(
                item_id=int(ids[row]),
                class_id=classes[int(labels[rows][row])],
                predicted=classes[int(predicted)],
                given=round(float(given), 4),
                probability=round(float(probability), 4),
            )
            for row, predicted, given, probability in zip(
                suspects.rows[:MOST_SUSPECTS], suspects.predicted, suspects.given, suspects.probability, strict=False
            )
        )
        return replace(fit, n_checked=int(checked.sum()), n_agreeing=agreeing), made


def main() -> int:
    """Follow all projects until SIGTERM or Ctrl-C."""
    shutdown = threading.Event()

    def request_shutdown(number: int, frame: FrameType | None) -> None:
        shutdown.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_shutdown)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with Store.open() as store:
        run(Follower(store), shutdown)
    return 0


def run(follower: Follower, shutdown: threading.Event) -> None:
    """Poll until `shutdown` is set. If the store cannot be read, wait before the next poll."""
    while not shutdown.wait(PAUSE):
        try:
            follower.look()
        except WinnowError as problem:
            LOG.warning("the store cannot be read: %s", problem)
            shutdown.wait(2.0)
