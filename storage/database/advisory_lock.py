"""Mutual exclusion between processes on PostgreSQL, by advisory locks of the server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from sqlalchemy import Engine, text

from core.errors import StoreUnusable

POLL_SECONDS = 0.1


@contextlib.contextmanager
def polled_advisory_lock(engine: Engine, key: int, what: str, seconds: float) -> Iterator[None]:
    """Hold the advisory lock `key` for the length of the block; raise StoreUnusable after `seconds` without it.

    The lock is polled outside of a transaction. A connection that waits inside a statement would block a holder that
    builds indexes concurrently.
    """
    deadline = time.monotonic() + seconds
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar():
            if time.monotonic() > deadline:
                raise StoreUnusable(f"{what} have been locked for {seconds:.0f} s by another process; try again.")
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": key})
