"""Eight annotators, an import and a round write to one SQLite file at once, for a minute.

    .venv/bin/python -m benchmarks.contention [--seconds 60] [--items 40000]

Last line: one JSON object. `n_errors` counts errors that reached a caller, mainly "database is locked" (promised: 0),
`p99_seconds` is the 99th percentile of a write (promised: below `bound_seconds`, which is 5 s or, on a busy machine,
300 times the duration of a single write), `lost_labels` the acknowledged labels that are not in
the store afterwards (promised: 0). The exit status is an error if a promise is not kept. The test suite
runs the same load for six seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from storage.database.store import Store
from storage.labeling.pool import Pool
from tests.storage.pools import make_pool

BOUND_SECONDS, BOUND_RATIO = 5.0, 300.0


def bound(alone_seconds: float) -> float:
    """The bound in seconds on the 99th percentile of a write under load, given the seconds of a write alone."""
    return max(BOUND_SECONDS, BOUND_RATIO * alone_seconds)


def measure(home: Path, seconds: float, n_items: int) -> dict[str, Any]:
    with Store.open(home=home) as store:
        make_pool(store, n_items)
    command = [sys.executable, "-m", "tests.storage.crowd", str(home), str(seconds)]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with Store.open(home=home) as store:
        pool = Pool(store, 1)
        return {
            "seconds": seconds,
            "writers": len(said["labels"]),
            "labels": sum(said["labels"]),
            "fewest_labels": min(said["labels"]),
            "n_errors": len(said["errors"]),
            "errors": said["errors"][:5],
            "lost_labels": sum(said["labels"]) + said["alone_labels"] - pool.counts().labeled,
            "wrong_projections": pool.rebuild(),
            "p99_seconds": round(said["p99_seconds"], 3),
            "alone_seconds": round(said["alone_seconds"], 4),
            "bound_seconds": round(bound(said["alone_seconds"]), 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--items", type=int, default=40_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winnow-contention-") as scratch:
        result = measure(Path(scratch), options.seconds, options.items)
    print(json.dumps(result))
    held = result["n_errors"] == result["lost_labels"] == result["wrong_projections"] == 0
    if not held or result["p99_seconds"] >= result["bound_seconds"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
