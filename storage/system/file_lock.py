"""Mutual exclusion between processes by a lock on a file, which the kernel releases when its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from core.errors import StoreUnusable

QUEUE_PAUSE = 0.002  # seconds between attempts on the queue lock, where many may wait
LOCK_PAUSE = 0.0005  # seconds between attempts on the lock itself, where one process waits


def try_lock(descriptor: int) -> bool:
    """Acquire the lock without waiting; False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_for_lock(descriptor: int, what: str, deadline: float, pause: float) -> None:
    """Acquire the lock, trying every `pause` seconds; raise StoreUnusable after `deadline` (monotonic)."""
    started = time.monotonic()
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise StoreUnusable(
                f"{what} was not free for {max(deadline - started, 0):.0f} s: another process holds it. "
                "If a Winnow process hangs, end it; then try again."
            )
        time.sleep(pause)


@contextlib.contextmanager
def file_lock(path: Path, what: str, seconds: float = 60.0) -> Iterator[None]:
    """Hold the lock on `path` (created if missing) for the length of the block.

    A process first acquires a second lock, the queue lock, and keeps it until it has the first one. So only one
    process waits for the lock, and a process that has just released it cannot acquire it again before the waiting one.
    Without the queue lock, one of eight writers on a busy machine waited for a minute.
    """
    deadline = time.monotonic() + seconds
    with _opened(queue_path(path)) as queue, _opened(path) as descriptor:
        wait_for_lock(queue, what, deadline, QUEUE_PAUSE)
        wait_for_lock(descriptor, what, deadline, LOCK_PAUSE)
        unlock(queue)
        yield


def forget(path: Path) -> None:
    """Delete the files of a lock that is no longer used."""
    for name in (path, queue_path(path)):
        name.unlink(missing_ok=True)


def queue_path(path: Path) -> Path:
    return Path(f"{path}.gate")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """An open file descriptor; closing it releases its lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
