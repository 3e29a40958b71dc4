"""Memory of an export: 100,000 labeled rows against 5,000, for each table format.

    .venv/bin/python -m benchmarks.exporting [--rows 100000]

Last line: one JSON object; `jsonl_rss_growth_mb` and `parquet_rss_growth_mb` are the difference in peak memory between
a process that exports all rows and one that exports 5,000 (under 150 is promised), `rows_per_second` the speed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from sqlalchemy import insert

from storage.database.bulk import insert_rows
from storage.database.schema import NOT_QUEUED, CurrentLabel, Item, ItemState, LabelEvent
from storage.database.store import Store, now
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project

FORMATS = ("csv", "jsonl", "parquet", "label-studio")
COLUMNS = ("project_id", "sha256", "name", "media_type", "n_bytes", "seconds", "sample_rate", "channels",
           "held_out", "condition", "condition_note", "imported_at")  # fmt: skip
STATE_COLUMNS = ("item_id", "project_id", "waiting", "n_labels", "class_id", "decided", "skipped", "flagged",
                 "sequence", "queue_rank", "shuffle")  # fmt: skip
LABEL_COLUMNS = ("item_id", "annotator_id", "project_id", "class_id", "sequence")


def make_store(home: Path, n_rows: int) -> int:
    """A project with one label for each of `n_rows` synthetic items."""
    with Store.open(home=home) as store:
        project = create_project(store, "many", "audio", [f"class {k}" for k in range(10)]).id
        classes = [row.id for row in list_classes(store, project)]
        annotator = annotator_named(store, "ann").id
        at = now()
        with store.write() as connection:
            rows = [
                (project, hashlib.sha256(str(k).encode()).hexdigest(), f"folder/clip {k}.wav", "audio/wav", 16_044, 0.5,
                 16_000, 1, False, "ok", "", at)
                for k in range(n_rows)
            ]  # fmt: skip
            insert_rows(connection, Item, COLUMNS, rows)
            ids = list(connection.exec_driver_sql("SELECT id FROM items ORDER BY id").scalars())
            events = [
                {"uuid": str(uuid.UUID(int=item_id)), "project_id": project, "item_id": item_id,
                 "annotator_id": annotator,
                 "kind": "label", "class_id": classes[item_id % 10], "suggestion": "shown", "seconds": 1.5,
                 "note": "", "at": at, "stored_at": at}
                for item_id in ids
            ]  # fmt: skip
            connection.execute(insert(LabelEvent), events)
            states = [
                (item_id, project, False, 1, classes[item_id % 10], False, False, False, place, NOT_QUEUED, item_id)
                for place, item_id in enumerate(ids, 1)
            ]
            insert_rows(connection, ItemState, STATE_COLUMNS, states)
            given = [(one, annotator, project, classes[one % 10], place) for place, one in enumerate(ids, 1)]
            insert_rows(connection, CurrentLabel, LABEL_COLUMNS, given)
        return project


def peak_mb() -> float:
    """Peak memory of this program. `ru_maxrss` is not used, because a new process inherits that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(home: Path, project: int, format_: str, target: Path) -> None:
    """In a separate process: export, then print seconds and peak memory."""
    with Store.open(home=home) as store:
        started = time.perf_counter()
        done = export_project(store, project, target, ExportOptions(format=format_))  # type: ignore[arg-type]
        seconds = time.perf_counter() - started
    peak = peak_mb()
    print(json.dumps({"rows": done.rows, "seconds": seconds, "peak_mb": peak}))


def run(home: Path, project: int, format_: str, target: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.exporting", "--measure", str(home), str(project), format_, str(target)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        home, project, format_, target = arguments.measure
        measure(Path(home), int(project), format_, Path(target))
        return
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="winnow-exporting-") as scratch:
        root = Path(scratch)
        few = make_store(root / "few", 5_000)
        many = make_store(root / "many", arguments.rows)
        for format_ in FORMATS:
            small = run(root / "few", few, format_, root / f"few-{format_}")
            large = run(root / "many", many, format_, root / f"many-{format_}")
            name = format_.replace("-", "_")
            result["rows"] = large["rows"]
            result[f"{name}_peak_mb"] = round(large["peak_mb"], 1)
            result[f"{name}_rss_growth_mb"] = round(large["peak_mb"] - small["peak_mb"], 1)
            result[f"{name}_rows_per_second"] = round(large["rows"] / large["seconds"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
