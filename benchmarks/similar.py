"""The time of *more like this*.

python -m benchmarks.similar [--items 100000] [--dimensions 1280] [--repeats 20]
The features of a round are in a memory-mapped file, as in a store. The first search computes the lengths of the rows
and is reported separately. The last line is JSON with `similar_ms_median` and `similar_ms_p90`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from app.views.predictions import RoundPredictions
from app.views.similarity.similar_items import most_similar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=1_280)
    parser.add_argument("--repeats", type=int, default=20)
    wanted = parser.parse_args()
    n, rng = wanted.items, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        made = np.lib.format.open_memmap(path, "w+", np.float32, (n, wanted.dimensions))
        for start in range(0, n, 10_000):
            made[start : start + 10_000] = rng.standard_normal(made[start : start + 10_000].shape, np.float32)
        del made
        features, ids = np.load(path, mmap_mode="r"), np.arange(1, n + 1)
        even, seen = np.full((n, 2), 0.5, np.float32), np.zeros(n, np.bool_)
        round_ = cast(Any, SimpleNamespace(id=1))
        found = RoundPredictions(round_, ids, even, features, (1, 2), np.arange(n), seen)
        everything = np.ones(n, np.bool_)
        times, cpu = [], []
        for item in rng.integers(1, n + 1, wanted.repeats + 1).tolist():
            began, cpu_before = time.perf_counter(), time.process_time()
            most_similar(found, item, everything)
            cpu.append(1_000 * (time.process_time() - cpu_before))
            times.append(1_000 * (time.perf_counter() - began))
    result = {
        "items": n,
        "dimensions": wanted.dimensions,
        "first_ms": round(times[0]),
        "similar_cpu_ms_median": round(float(np.median(cpu[1:]))),
        "similar_ms_median": round(float(np.median(times[1:]))),
        "similar_ms_p90": round(float(np.quantile(times[1:], 0.9))),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
