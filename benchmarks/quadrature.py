"""`cntk6-gap-fast` against the exact `cntk6-gap`: relative error of entries, and CPU time on one thread.

    python -m benchmarks.quadrature [--data DIR] [--items 300] [--rows 30]

On 300 random clips of Spoken Digit and 300 pictures of CIFAR-10: the error of the 300 diagonal entries
and of a block of pairs. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import MediaConfig
from core.kernels.fused import fused_kernel
from core.kernels.networks import cntk6
from core.media.inputs import prepare
from core.rows import MemoryRowCache
from experiments.datasets import cifar10
from experiments.record import DATA

POOLINGS = ("gap", "gap-fast")


def clips(data: Path, n: int) -> NDArray[np.float32]:
    """(n, 32, 32, 1) log-mel pictures of Spoken Digit."""
    with (data / "fsdd" / "manifest.csv").open() as lines:
        paths = [row["path"] for row in csv.DictReader(lines)]
    chosen = [paths[k] for k in np.random.default_rng(0).choice(len(paths), n, replace=False)]
    inputs = prepare(chosen, lambda path: (data / "fsdd" / path).read_bytes(), "audio", MediaConfig(), MemoryRowCache())
    return inputs.clean.take(np.arange(n)).astype(np.float32)


def pictures(data: Path, n: int) -> NDArray[np.float32]:
    """(n, 32, 32, 3) of CIFAR-10."""
    return np.ascontiguousarray(cifar10(data)[0][:n].transpose(0, 2, 3, 1))


def timed_kernel(x1: Any, x2: Any, pooling: Any) -> tuple[NDArray[np.float32], float]:
    """The kernel of two sets of items, each prepared in the same call, and CPU seconds on one thread."""
    begin = time.process_time()
    found = fused_kernel(x1, x2, cntk6(pooling), n_threads=1)
    return found, time.process_time() - begin


def compare(x: NDArray[np.float32], n_rows: int) -> dict[str, Any]:
    """Errors of a block of `n_rows` random items and 50 others, and of every item with itself; speed of the block."""
    order = np.random.default_rng(1).permutation(len(x))
    first, second = x[order[:n_rows]], x[order[n_rows : n_rows + 50]]
    fused_kernel(x[:1], x[1:2], cntk6("gap-fast"), n_threads=1)  # compiled before
    (exact, exact_seconds), (fast, fast_seconds) = (timed_kernel(first, second, p) for p in ("gap", "gap-fast"))
    own = [
        [fused_kernel(one, one.copy(), cntk6(p), n_threads=1)[0, 0] for one in np.split(x, len(x))] for p in POOLINGS
    ]
    between, itself = np.abs(fast / exact - 1), np.abs(np.array(own[1]) / np.array(own[0]) - 1)
    return {
        "pairs": exact.size,
        "largest_error_of_pairs": round(float(between.max()), 5),
        "share_of_pairs_above_1_percent": round(float((between > 0.01).mean()), 5),
        "root_mean_square_error_of_pairs": round(float(np.sqrt((between**2).mean())), 5),
        "largest_error_of_items_with_themselves": round(float(itself.max()), 5),
        "share_of_items_above_1_percent": round(float((itself > 0.01).mean()), 5),
        "speed_ratio": round(exact_seconds / fast_seconds, 1),
        "exact_milliseconds": round(1e3 * exact_seconds / exact.size, 2),
        "fast_milliseconds": round(1e3 * fast_seconds / exact.size, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--rows", type=int, default=30, help="items of the block; at most 250")
    given = parser.parse_args()
    made = {"spoken_digit": clips(given.data, given.items), "cifar10": pictures(given.data, given.items)}
    print(json.dumps({name: compare(x, given.rows) for name, x in made.items()}))


if __name__ == "__main__":
    main()
