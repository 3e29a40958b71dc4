"""Work of a worker goes on after the database was away.

A step of a round changes nothing that counts before its end, so it is run again when the database answers: with the
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
OUTAGE_SECONDS = 600.0  # how long a database may be away
MOST_OUTAGES = 10  # during one piece of work
PAUSE_SECONDS = 1.0
Result = TypeVar("Result")


def through_outages(store: Store, work: Callable[[], Result]) -> Result:
    """The result of `work`, which is run again after each loss of the connection to the database."""
    for _ in range(MOST_OUTAGES):
        try:
            return work()
        except Exception as error:
            if not is_outage(error):
                raise
            LOG.warning("The database is away; the work starts again when it answers: %s", error)
            wait_for(store)
    return work()


def wait_for(store: Store) -> None:
    """Return when the database answers; raise `StoreUnreachable` after `OUTAGE_SECONDS`."""
    until = time.monotonic() + OUTAGE_SECONDS
    while True:
        try:
            with store.read():  # which checks the connection
                return
        except StoreUnreachable:
            if time.monotonic() > until:
                raise
        time.sleep(PAUSE_SECONDS)
