"""One process at a time, by a lock on a file: released by the kernel when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from core.errors import StoreUnusable

GATE_PAUSE = 0.002  # seconds; many may wait here
DOOR_PAUSE = 0.0005  # and one here


def try_lock(descriptor: int) -> bool:
    """Take the lock now, or say that another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_for_lock(descriptor: int, what: str, deadline: float, pause: float) -> None:
    """Take the lock before `deadline` (monotonic), asking every `pause` seconds; then give up with a sentence."""
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
    """Hold the lock on `path` (made when missing) for the length of the block.

    Whoever wants it passes a second lock, the gate, and keeps that until it has the first: one waits at the door, and a
    process that has just let go cannot take it again before the one that waits. Without the gate, eight writers on a
    busy machine left one of them waiting for a minute.
    """
    deadline = time.monotonic() + seconds
    with _opened(gate_of(path)) as gate, _opened(path) as descriptor:
        wait_for_lock(gate, what, deadline, GATE_PAUSE)
        wait_for_lock(descriptor, what, deadline, DOOR_PAUSE)
        unlock(gate)
        yield


def forget(path: Path) -> None:
    """Remove the files of a lock that nobody will want again."""
    for name in (path, gate_of(path)):
        name.unlink(missing_ok=True)


def gate_of(path: Path) -> Path:
    return Path(f"{path}.gate")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Closing the file lets go of its lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
