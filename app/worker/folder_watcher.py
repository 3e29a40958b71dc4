"""Serves watched folders: imports new files and updates the buffer of candidates.

    scan            files that no longer change -> `storage.importing.run`, at most `FILES_AT_ONCE` -> one outcome each
    fill_buffer     full batches of waiting items -> `core.rounds.stream_buffer` -> the buffer, saved as a whole

The process can be killed at any point: a file without a stored outcome is imported again and recognized by its bytes,
and a batch that was not saved is added again. A file lock in the store's home ensures that only one process serves a
watch at a time: a worker, or `python -m app watch`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.rounds.requests import round_config
from app.worker.error_messages import sentence
from core.coresets.library.streaming import Slot
from core.errors import WinnowError
from core.rounds import stream_buffer
from core.runtime import Runtime
from storage.database.store import Store
from storage.importing import watches
from storage.importing.run import ImportOptions, run_import
from storage.importing.watch_folder import Arrival, FolderScanner, SettledFiles
from storage.importing.watches import FileRow, Outcome, WatchRow
from storage.importing.windows.kept import kept_windows
from storage.media import shared as shared_media
from storage.projects.projects import get_project
from storage.rounds import candidate_buffer
from storage.rounds.candidate_buffer import Buffer
from storage.rounds.row_cache import FolderRowCache
from storage.system.file_lock import try_lock

LOG = logging.getLogger("winnow.watching")
FILES_AT_ONCE = 128
SETTLE_SECONDS = 5.0
FIRST_WINDOW = " 00:00:00.000-"  # in the name of a recording's first window; the others share its outcome
SCAN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The counts of one scan."""

    files: int = 0  # files that were imported or rejected
    moving: int = 0  # files that are still being written; a later scan imports them
    batches: int = 0  # batches that were added to the buffer

    @property
    def busy(self) -> bool:
        """Whether an immediate next scan may find more work."""
        return self.files > 0 or self.batches > 0


class FolderWatcher:
    """Serves the watches of this machine, except those that another process serves."""

    def __init__(self, store: Store, settle_seconds: float | None = None) -> None:
        self.store, self.settle_seconds = store, SETTLE_SECONDS if settle_seconds is None else settle_seconds
        self._scanners: dict[tuple[int, str], FolderScanner] = {}

    def scan(self, watch: WatchRow) -> ScanResult | None:
        """Scan the folder once. A problem is stored with the watch. None if another process serves the watch."""
        with _exclusive(self.store, watch.project_id) as mine:
            if not mine:
                return None
            try:
                done = self._scan(watch)
                problem = ""
            except WinnowError as error:
                done, problem = ScanResult(), str(error)
            except Exception as error:
                LOG.exception("A scan of %s failed.", watch.folder)
                done, problem = ScanResult(), sentence(error)
            watches.record_scan(self.store, watch.project_id, problem)
        return done

    def _scan(self, watch: WatchRow) -> ScanResult:
        root = watches.checked_folder(self.store, watch.folder)
        scanner = self._scanners.setdefault((watch.project_id, watch.folder), FolderScanner(self.settle_seconds))
        most = FILES_AT_ONCE if watch.remaining is None else min(FILES_AT_ONCE, max(watch.remaining, 1))
        arrivals = scanner.scan(self.store, watch.project_id, root, most)
        if arrivals:
            import_arrivals(self.store, watch, arrivals)
        return ScanResult(len(arrivals), scanner.n_changing, fill_buffer(self.store, watch.project_id))


@contextlib.contextmanager
def _exclusive(store: Store, project_id: int) -> Iterator[bool]:
    """Try to take the lock of the watch, and hold it until the block ends. Yields whether it was taken."""
    folder = store.home / "watching"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / f"{project_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


def import_arrivals(store: Store, watch: WatchRow, arrivals: list[Arrival]) -> None:
    """Import the files and store the outcome of each."""
    windows = kept_windows(get_project(store, watch.project_id))
    options = ImportOptions(labels=watch.labels, classes="add", skip_problems=True, windows=windows)
    done = run_import(store, watch.project_id, SettledFiles(Path(watch.folder), arrivals), options)
    outcomes: dict[str, tuple[Outcome, str]] = {}
    for outcome, listed in (("duplicate", done.duplicates), ("unreadable", done.unreadable), ("refused", done.refused)):
        outcomes |= {name: (outcome, reason) for name, reason in listed}  # type: ignore[misc]
    recordings = {name.rpartition(FIRST_WINDOW)[0]: found for name, found in outcomes.items()}
    files = []
    for arrival in arrivals:
        name = arrival.entry.name
        result, reason = outcomes.get(name) or recordings.get(name) or ("taken", "")
        files.append(
            FileRow(
                path=arrival.path,
                name=name,
                n_bytes=arrival.n_bytes,
                mtime_ns=arrival.mtime_ns,
                outcome=result,
                reason=reason,
            )
        )
    watches.record(store, watch.project_id, files)


def fill_buffer(store: Store, project_id: int, most: int = 4) -> int:
    """Add up to `most` full batches of waiting items to the buffer. Returns the number of batches added."""
    watch = watches.get(store, project_id)
    assert watch is not None
    buffer = Buffer.of(watch.buffer)
    size = stream_buffer.slot_size(watch.buffer_size)
    for done in range(most):
        batch = candidate_buffer.next_waiting(store, project_id, buffer.last_item_id, size)
        if len(batch) < size:
            return done
        waiting = candidate_buffer.still_waiting(store, buffer.item_ids)
        slots = [Slot(np.array([i for i in ids if i in waiting], np.int64), n) for n, ids in buffer.slots]
        extractor = _feature_extractor(store, project_id)

        def features(
            ids: NDArray[np.int64], extractor: stream_buffer.FeatureExtractor = extractor
        ) -> NDArray[np.float32]:
            return extractor.features(candidate_buffer.hashes(store, ids))

        added = stream_buffer.add_batch(slots, np.array(batch, np.int64), watch.buffer_size, features)
        kept = tuple((slot.batches, tuple(slot.rows.tolist())) for slot in added)
        buffer = Buffer(slots=kept, last_item_id=batch[-1], batch=size)
        watches.save_buffer(store, project_id, buffer.as_dict())
    return most


def _feature_extractor(store: Store, project_id: int) -> stream_buffer.FeatureExtractor:
    project = get_project(store, project_id)
    config = round_config(project.settings, project.kind)
    return stream_buffer.FeatureExtractor(
        kind=project.kind,
        media=config.media,
        kernel=config.kernel,
        read=shared_media.reader(store, project_id),
        cache=FolderRowCache(Path(store.home) / "cache" / "rows"),
        device=Runtime.create(0).device,
    )


class WatchThread(threading.Thread):
    """Serves watches in a worker process, concurrently with its rounds, until `end` is called."""

    def __init__(self, store: Store, seconds: float = SCAN_SECONDS) -> None:
        super().__init__(name="winnow-watching", daemon=True)
        self.store, self.seconds = store, seconds
        self.watcher = FolderWatcher(store)
        self._ended = threading.Event()

    def run(self) -> None:
        """Scan the active watches of this machine periodically. An error is logged, and the next scan retries."""
        while not self._ended.wait(self.seconds):
            try:
                for watch in watches.active_here(self.store):
                    while not self._ended.is_set() and (done := self.watcher.scan(watch)) and done.busy:
                        watch = watches.get(self.store, watch.project_id) or watch
                        if not watch.active:
                            break
            except Exception as error:
                LOG.warning("The watched folders could not be scanned; the next scan tries again: %s", error)

    def end(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(timeout=10.0)
