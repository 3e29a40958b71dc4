"""One process at a time, by a lock on a file: released by the kernel when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from core.errors import StoreUnusable


def try_lock(descriptor: int) -> bool:
    """Take the lock now, or say that another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_for_lock(descriptor: int, what: str, seconds: float) -> None:
    """Take the lock within `seconds`, asking every few milliseconds; then give up with a sentence."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise StoreUnusable(
                f"{what} has been held by another process for {seconds:.0f} s. "
                "If a Winnow process hangs, end it; then try again."
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.004)


@contextlib.contextmanager
def file_lock(path: Path, what: str, seconds: float = 60.0) -> Iterator[None]:
    """Hold the lock on `path` (made when missing) for the length of the block."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        wait_for_lock(descriptor, what, seconds)
        yield
    finally:
        os.close(descriptor)
