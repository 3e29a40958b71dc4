"""Scaling of the store's two most frequent calls: serving the next item and storing a label, at 1,000 and at 1,000,000
items.

    python -m benchmarks.store [--items 1000000] [--repeats 200]

Medians of CPU-and-wall time per call on a SQLite file and, where a server is installed, on PostgreSQL. Each number is
measured alternately on the small and the large project of the same store, so that load affects both equally.
`*_growth` = median at the large size / median at the small size; at most 2 is promised. `several_*` is a project
with two labels per item whose annotator has already labeled the first tenth of the queue.

`--requests` measures whole requests of the Label, Grid and Map screens and the export instead, in CPU time at 10,000
and at `--items` items (`benchmarks.page_requests`); the pools are kept in `--pools` for the next run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks import page_requests
from storage.database.migrate import head
from storage.database.schema import NOT_QUEUED
from storage.database.store import Store, now
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings, create_project
from tests.postgres_server import find_binaries, running_server

SMALL = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--pools", type=Path, default=Path(tempfile.gettempdir()) / f"winnow-pools-{head()}")
    options = parser.parse_args()
    if options.requests:
        found = page_requests.compare(options.pools, (10_000, options.items), min(options.repeats, 7))
        print(page_requests.table(found))
        print(json.dumps(found))
        return
    folder = Path(tempfile.mkdtemp(prefix="winnow-bench-"))
    try:
        result: dict[str, Any] = {"items": options.items, "repeats": options.repeats}
        with Store.open(home=folder / "sqlite") as store:
            result |= measured(store, "sqlite", options)
        if (binaries := find_binaries()) is not None:
            with running_server(binaries) as server, Store.open(server.new_database(), folder / "pg") as store:
                result |= measured(store, "postgresql", options)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(result))


def measured(store: Store, database: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds at both sizes and their ratio, for each call."""
    annotator = annotator_named(store, "Ann").id
    made = {
        (several, size): make_project(store, several, size, annotator)
        for several in (False, True)
        for size in (SMALL, options.items)
    }
    analyze(store)
    result: dict[str, Any] = {}
    for several in (False, True):
        small, large = made[several, SMALL], made[several, options.items]
        prefix = f"{database}_several" if several else database
        for size in (small, large):
            in_turns([calls(size, annotator)], 20)
        times = in_turns([calls(small, annotator), calls(large, annotator)], options.repeats)
        for call in ("next_to_label", "label"):
            at_small, at_large = (statistics.median(times[which][call]) for which in (0, 1))
            result[f"{prefix}_{call}_ms"] = [round(at_small * 1e3, 3), round(at_large * 1e3, 3)]
            result[f"{prefix}_{call}_growth"] = round(at_large / at_small, 3)
    return result


def in_turns(each: list[Callable[[], Iterator[tuple[str, float]]]], repeats: int) -> list[dict[str, list[float]]]:
    times: list[dict[str, list[float]]] = [{} for _ in each]
    for _ in range(repeats):
        for which, one in enumerate(each):
            for name, seconds in one():
                times[which].setdefault(name, []).append(seconds)
    return times


def calls(pool: Pool, annotator: int) -> Callable[[], Iterator[tuple[str, float]]]:
    """Serve one item and label it, each timed."""
    class_id = list_classes(pool.store, pool.project_id)[0].id

    def once() -> Iterator[tuple[str, float]]:
        start = time.perf_counter()
        item = pool.next_to_label(annotator=annotator, holder="bench")[0]
        yield "next_to_label", time.perf_counter() - start
        start = time.perf_counter()
        answer = pool.label(item.id, class_id, annotator=annotator)
        yield "label", time.perf_counter() - start
        if not answer.accepted:
            raise RuntimeError(answer.reason)

    return once


def make_project(store: Store, several: bool, size: int, annotator: int) -> Pool:
    """A project of `size` items, made inside the database; with `several`, the first tenth of the queue is labeled."""
    settings = ProjectSettings(labels_per_item=2 if several else 1)
    project = create_project(store, f"{size} items {several}", "image", ["yes", "no"], settings=settings)
    values = {
        "project": project.id,
        "annotator": annotator,
        "class": list_classes(store, project.id)[0].id,
        "size": size,
        "border": 2**31 // 10,
        "not_queued": NOT_QUEUED,
        "at": now() if not store.is_sqlite else now().replace(tzinfo=None).isoformat(" "),
    }
    statements = [ITEMS, STATES, EVENTS, CURRENT, COUNTED] if several else [ITEMS, STATES]
    words = SQLITE_WORDS if store.is_sqlite else POSTGRESQL_WORDS
    with store.write() as connection:
        for statement in statements:
            connection.execute(text(statement.format(**words)), values)
    return Pool(store, project.id)


SQLITE_WORDS = {
    "numbers": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :size)",
    "source": "numbers",
    "hash": "lower(hex(randomblob(32)))",
    "place": "(random() & 2147483647)",
    "true": "1",
    "false": "0",
}
POSTGRESQL_WORDS = {
    "numbers": "",
    "source": "generate_series(1, :size) AS numbers(n)",
    "hash": "md5(random()::text) || md5(random()::text)",
    "place": "floor(random() * 2147483647)::int",
    "true": "true",
    "false": "false",
}
ITEMS = """{numbers} INSERT INTO items
    (project_id, sha256, name, media_type, n_bytes, held_out, condition, condition_note, imported_at)
    SELECT :project, {hash}, 'item ' || n, 'image/png', 1, {false}, 'ok', '', :at FROM {source}"""
STATES = """INSERT INTO item_states
    (item_id, project_id, waiting, n_labels, decided, skipped, flagged, queue_rank, shuffle)
    SELECT id, :project, {true}, 0, {false}, {false}, {false}, :not_queued, {place}
    FROM items WHERE project_id = :project"""
EVENTS = """INSERT INTO label_events
    (uuid, project_id, item_id, annotator_id, kind, class_id, suggestion, note, at, stored_at)
    SELECT substr({hash}, 1, 36), :project, item_id, :annotator, 'label', :class, 'none', '', :at, :at
    FROM item_states WHERE project_id = :project AND shuffle < :border"""
CURRENT = """INSERT INTO current_labels (item_id, annotator_id, project_id, class_id, sequence)
    SELECT item_id, annotator_id, project_id, class_id, sequence FROM label_events WHERE project_id = :project"""
COUNTED = """UPDATE item_states SET n_labels = 1, class_id = :class WHERE project_id = :project AND shuffle < :border"""


def analyze(store: Store) -> None:
    with store.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))


if __name__ == "__main__":
    main()
