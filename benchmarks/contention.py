"""Eight people label, an import and a trainer write, all at once in one SQLite file, for a minute.

    .venv/bin/python -m benchmarks.contention [--seconds 60] [--items 40000]

Last line: one JSON object. `n_errors` counts what reached a caller ("database is locked" above all; promised: 0),
`p99_seconds` is the 99th percentile of a write (promised: below `bound_seconds`), `lost_labels` the acknowledged labels
that are not in the store afterwards (promised: 0). Ends with an error when a promise does not hold. The suite runs the
same crowd for six seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from storage.database import Store
from storage.pool import Pool
from tests.storage.pools import make_pool

BOUND_SECONDS = 5.0


def measure(home: Path, seconds: float, n_items: int) -> dict[str, object]:
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
            "lost_labels": sum(said["labels"]) - pool.counts().labeled,
            "wrong_projections": pool.rebuild(),
            "p99_seconds": round(said["p99_seconds"], 3),
            "bound_seconds": BOUND_SECONDS,
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
    if not held or float(str(result["p99_seconds"])) >= BOUND_SECONDS:
        sys.exit(1)


if __name__ == "__main__":
    main()
