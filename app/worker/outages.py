"""Retries the work of a worker after the connection to the database was lost.

A step of a round commits its result only at its end, so it can be run again when the database is reachable: with the
same seed and the same inputs it gives the same result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from core.errors import StoreUnreachable
from storage.database.store import Store, is_outage

LOG = logging.getLogger("winnow.worker")
OUTAGE_SECONDS = 600.0  # the longest wait for an unreachable database
MOST_OUTAGES = 10  # retries of one piece of work
PAUSE_SECONDS = 1.0
Result = TypeVar("Result")


def through_outages(store: Store, work: Callable[[], Result]) -> Result:
    """Return the result of `work`. It is run again each time the connection to the database is lost."""
    for _ in range(MOST_OUTAGES):
        try:
            return work()
        except Exception as error:
            if not is_outage(error):
                raise
            LOG.warning("The database cannot be reached; the work starts again when it can: %s", error)
            wait_for(store)
    return work()


def wait_for(store: Store) -> None:
    """Wait until the database can be reached. Raises `StoreUnreachable` after `OUTAGE_SECONDS`."""
    until = time.monotonic() + OUTAGE_SECONDS
    while True:
        try:
            with store.read():  # checks the connection
                return
        except StoreUnreachable:
            if time.monotonic() > until:
                raise
        time.sleep(PAUSE_SECONDS)
