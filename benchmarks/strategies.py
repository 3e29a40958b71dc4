"""The time of every strategy on a pool of 100,000 items with 128-dimensional embeddings.

    python -m benchmarks.strategies [--items 100000] [--threads 2] [--only NAME ...]

Each time is that of the whole `registry.select`: near-duplicates, the strategy, and a reason for every pick. It also
prints the ratio to one pass over the pool: the distances of all items to 128 others, measured in the same run. Prints
one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import numpy as np
import torch

from core.acquisition import catalog, registry
from core.acquisition.geometry import squared_distances
from core.config import SelectionConfig
from core.types import SelectionRequest


def synthetic_request(n: int, e: int = 128, n_classes: int = 10, n_labeled: int = 40) -> SelectionRequest:
    """Clusters per class with a decaying spectrum; predictions that are right more often than not."""
    draw = np.random.default_rng(0)
    classes = draw.integers(0, n_classes, n)
    spectrum = (1 / np.sqrt(1 + np.arange(e))).astype(np.float32)
    centers = draw.normal(size=(n_classes, e)).astype(np.float32)
    embeddings = (centers[classes] + draw.standard_normal((n, e), dtype=np.float32)) * spectrum
    logits = draw.standard_normal((n, n_classes), dtype=np.float32) + 2 * np.eye(n_classes, dtype=np.float32)[classes]
    probabilities = torch.softmax(torch.from_numpy(logits), 1).numpy()
    labeled = np.zeros(n, bool)
    labeled[draw.choice(n, n_labeled, replace=False)] = True
    probabilities[labeled] = np.eye(n_classes, dtype=np.float32)[classes[labeled]]
    views = torch.softmax(torch.from_numpy(logits + 0.5 * draw.standard_normal((5, n, n_classes), dtype=np.float32)), 2)
    return SelectionRequest(
        item_ids=np.arange(n),
        labeled=labeled,
        eligible=~labeled,
        probabilities=probabilities,
        embeddings=embeddings,
        features=embeddings,
        batch_size=10,
        seed=0,
        view_probabilities=views.numpy(),
    )


def one_pass_seconds(request: SelectionRequest) -> float:
    """CPU seconds of the distances of all items to 128 others."""
    x = torch.from_numpy(request.embeddings)
    squared_distances(x, x[:128])
    start = time.process_time()
    for _ in range(5):
        squared_distances(x, x[:128])
    return (time.process_time() - start) / 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2, help="1: CPU times are less affected by other processes")
    parser.add_argument("--only", nargs="*", default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    request = synthetic_request(arguments.items)
    unit = one_pass_seconds(request)
    results: dict[str, Any] = {}
    for name in arguments.only or catalog.names():
        wall, cpu = time.perf_counter(), time.process_time()
        selection = registry.select(request, SelectionConfig(strategy=name))
        results[name] = {
            "wall_seconds": round(time.perf_counter() - wall, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "passes": round((time.process_time() - cpu) / unit),
            "notes": selection.notes,
        }
        print(name, results[name], flush=True)
    slowest = max(result["wall_seconds"] for result in results.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    summary = {"items": arguments.items, "slowest_wall_seconds": slowest, "peak_resident_gigabytes": round(peak, 2)}
    print(json.dumps(summary | {"strategies": results}))


if __name__ == "__main__":
    main()
