"""`python -m tests.storage.bursts HOME KILLS SEED`: label writers that are killed with SIGKILL at random moments.

Each child writes labels as fast as it can and prints a uuid only after `Pool.apply` has returned. The parent kills it
at a random moment after its first few labels, checks the file from time to time, and starts the next one. Children are
forked while no connection is open but the statements are compiled, so that a burst costs milliseconds.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path

from sqlalchemy import text

from storage.database.locations import database_url
from storage.database.store import Store
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool


def write_labels(pool: Pool, n_labels: int, answers: int) -> None:
    for number in range(n_labels):
        one = LabelInput(uuid=str(uuid.uuid4()), item_id=1 + number % 50, kind="label", class_id=1 + number % 3)
        if pool.apply([one], annotator=1)[0].accepted:
            os.write(answers, f"{one.uuid}\n".encode())


def killed_burst(pool: Pool, after: int, pause: float) -> bytes:
    """The labels that a child acknowledged before it was killed, `pause` seconds after its label number `after`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        write_labels(pool, 1_000, writing)
        os._exit(0)
    os.close(writing)
    heard = b""
    while heard.count(b"\n") < after:
        heard += os.read(reading, 4096)
    time.sleep(pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 65_536):
        heard += more
    os.close(reading)
    return heard


def main() -> None:
    home, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    store = Store(database_url(None, home), home)
    write_labels(Pool(store, 1), 2, 1)
    for number in range(kills):
        store.close()
        os.write(1, killed_burst(Pool(store, 1), chance.randrange(4), chance.uniform(0.0, 0.03)))
        if number % 10 == 9:
            with store.read() as connection:
                os.write(1, f"integrity {connection.execute(text('PRAGMA integrity_check')).scalar()}\n".encode())


if __name__ == "__main__":
    main()
