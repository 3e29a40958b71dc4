"""`python -m tests.storage.crowd HOME SECONDS`: eight annotators, an import and a round write to one file.

Prints one JSON object: the number of labels that each stored, the errors, the 99th percentile of a write in seconds,
and the median of a write without other writers, measured just before (`alone_labels` of them).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from core.config import RoundConfig
from core.types import Progress
from storage.database.locations import database_url
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.rounds.log import RoundLog
from tests.storage.pools import add_items

WRITERS = 8
ALONE = 15


def label(store: Store, who: int, until: float) -> list[float]:
    pool, waits = Pool(store, 1), []
    while not waits or time.monotonic() < until:
        for row in pool.next_to_label(annotator=who, holder=str(who), limit=2):
            start = time.monotonic()
            answer = pool.label(row.id, 1 + row.id % 3, annotator=who)
            waits.append(time.monotonic() - start)
            if not answer.accepted:
                raise RuntimeError(answer.reason)
    return waits


def label_alone(store: Store, who: int) -> list[float]:
    """The seconds of writes on this machine without other writers."""
    pool, waits = Pool(store, 1), []
    for row in pool.next_to_label(annotator=who, holder=str(who), limit=ALONE):
        start = time.monotonic()
        pool.label(row.id, 1, annotator=who)
        waits.append(time.monotonic() - start)
    return waits


def import_items(store: Store, until: float) -> list[float]:
    waits = []
    while time.monotonic() < until:
        start = time.monotonic()
        add_items(store, 1, [f"import {start} {number}" for number in range(50)])
        waits.append(time.monotonic() - start)
        time.sleep(0.05)
    return waits


def train(store: Store, until: float) -> list[float]:
    pool, rounds, waits = Pool(store, 1), RoundLog(store, 1), []
    row = rounds.request(RoundConfig())
    rounds.start(row.id)
    while time.monotonic() < until:
        snapshot = pool.snapshot(row)
        if snapshot.label_sequence != row.label_sequence or len(snapshot.item_ids) == 0:
            raise RuntimeError("the round's snapshot changed")
        start = time.monotonic()
        rounds.progress(row.id, Progress("train", 1, 2))
        waits.append(time.monotonic() - start)
        time.sleep(0.1)
    return waits


def in_child(work: Callable[[], list[float]]) -> tuple[int, int]:
    """Fork; the child returns its waiting times or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        answer: dict[str, object] = {"waits": work()}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(writing, "w") as file:
        json.dump(answer, file)
    os._exit(0)


def main() -> None:
    home, seconds = Path(sys.argv[1]), float(sys.argv[2])
    with Store.open(home=home) as store:
        people = [annotator_named(store, f"Person {number}").id for number in range(WRITERS)]
        alone = sorted(label_alone(store, people[0]))
    until = time.monotonic() + seconds

    def fresh() -> Store:
        return Store(database_url(None, home), home)

    roles: list[Callable[[], list[float]]] = [lambda who=who: label(fresh(), who, until) for who in people]  # type: ignore[misc]
    roles += [lambda: import_items(fresh(), until), lambda: train(fresh(), until)]
    answers = []
    for child, reading in [in_child(role) for role in roles]:
        with os.fdopen(reading) as file:
            answers.append(json.load(file))
        os.waitpid(child, 0)
    waits = sorted(wait for answer in answers for wait in answer.get("waits", []))
    sys.stdout.write(
        json.dumps(
            {
                "labels": [len(answer.get("waits", [])) for answer in answers[:WRITERS]],
                "errors": [answer["error"] for answer in answers if "error" in answer],
                "alone_labels": len(alone),
                "alone_seconds": alone[len(alone) // 2],
                "p99_seconds": waits[int(len(waits) * 0.99)] if waits else None,
            }
        )
    )


if __name__ == "__main__":
    main()
