"""A whole round of the `laptop` preset on a real pool: seconds of each stage, the first time and the next.

    .venv/bin/python -m benchmarks.rounds [--data FOLDER] [--labels 40] [--threads 2]

FOLDER holds manifest.csv (path,label,split), by default the spoken digits of a data folder beside the checkout. The
first round also prepares inputs, computes the bank of views and the kernel features; the second, ten labels later,
reads them from the cache. Both train from scratch. Last line: one JSON object with `first_seconds` and `next_seconds`
(wall, whole rounds), their stages, and CPU seconds: on a busy machine CPU time is more meaningful than wall time.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.config import preset
from core.rounds.pipeline import run_round
from core.rounds.simulation import initial_rows, snapshot_with
from core.rounds.simulation_plan import LabeledPool, Plan
from core.runtime import Runtime
from core.types import RoundResult
from storage.rounds.row_cache import FolderRowCache

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "fsdd"


def read_pool(folder: Path) -> tuple[LabeledPool, dict[str, Path]]:
    with (folder / "manifest.csv").open(newline="") as lines:
        listed = list(csv.DictReader(lines))
    rows = {hashlib.sha256((folder / row["path"]).read_bytes()).hexdigest(): row for row in listed}
    names = tuple(sorted({row["label"] for row in rows.values()}))
    pool = LabeledPool(
        kind="audio",
        class_names=names,
        hashes=tuple(rows),
        truth=np.array([names.index(row["label"]) for row in rows.values()], np.int64),
        test=np.array([row["split"] == "test" for row in rows.values()]),
    )
    return pool, {name: folder / row["path"] for name, row in rows.items()}


def measure(pool: LabeledPool, files: dict[str, Path], n_labels: int, cache: Path) -> dict[str, Any]:
    labeled = initial_rows(pool, Plan(start=n_labels), 0)
    found: dict[str, Any] = {}
    for name in ("first", "next"):
        wall, cpu = time.perf_counter(), time.process_time()
        result: RoundResult = run_round(
            snapshot_with(pool, pool.truth, labeled),
            preset("laptop"),
            read=lambda key: files[key].read_bytes(),
            cache=FolderRowCache(cache),
            runtime=Runtime.create(0, "cpu"),
        )
        found[f"{name}_seconds"] = round(time.perf_counter() - wall, 1)
        found[f"{name}_cpu_seconds"] = round(time.process_time() - cpu, 1)
        found[f"{name}_stages"] = {stage: round(s, 1) for stage, s in result.metrics["seconds"].items()}
        found[f"{name}_accuracy"] = round(float(result.metrics["accuracy"]), 4)
        labeled = np.concatenate([labeled, result.selection.item_ids])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pool, files = read_pool(given.data)
    with tempfile.TemporaryDirectory() as cache:
        found = measure(pool, files, given.labels, Path(cache))
    about = {"items": int((~pool.test).sum()), "labels": given.labels, "threads": given.threads}
    print(json.dumps({"benchmark": "rounds", **about, **found}))


if __name__ == "__main__":
    main()
