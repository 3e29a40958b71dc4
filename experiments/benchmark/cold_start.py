"""The first batch with an encoder, before any label: the number of classes among ten picks (or `--batch`).

    python -m experiments.benchmark.cold_start --data DIR --encoders DIR --out DIR [--size small|full] [--only SET ...]
                                               [--strategies NAME ...] [--batch N]

For each of 20 seeds, every strategy that works from features alone picks ten items from a random half of the pool.
Classes are read only to count them; test items are not used. Small: pools of at most 1,000 items before they are
halved.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from core.acquisition import registry
from core.config import SelectionConfig
from core.learning.head import prepare
from core.types import SelectionRequest
from experiments.benchmark import sets
from experiments.benchmark.protocol import HEAD
from experiments.benchmark.sets import FeatureSet
from experiments.record import DATA

STRATEGIES = ("bico", "uniform", "k_center", "k_means", "typiclust", "prob_cover", "max_herding")
SETS = ("spoken_digit", "mnist", "cifar10")
SEEDS, BATCH, SMALL_POOL = 20, 10, 1_000


def distinct_classes(
    data: FeatureSet, pictures: NDArray[np.float32] | None, seed: int, strategies: Sequence[str], batch_size: int
) -> dict[str, int]:
    """Strategy -> distinct classes among the first picks from a random half of the pool. `pictures` (n, d) are the
    gradient histograms of a set of pictures."""
    n = len(data.classes)
    half = np.sort(np.random.default_rng(seed).choice(n, n // 2, replace=False))
    z = prepare(data.features[half], data.n_classes, replace(HEAD, neighbors=0)).z.astype(np.float32)
    request = SelectionRequest(
        item_ids=np.arange(len(half)),
        labeled=np.zeros(len(half), bool),
        eligible=np.ones(len(half), bool),
        probabilities=np.full((len(half), data.n_classes), 1 / data.n_classes, np.float32),
        embeddings=z,
        features=z,
        batch_size=batch_size,
        seed=seed,
        picture_vectors=None if pictures is None else lambda rows: pictures[half[rows]],
        has_model=False,
    )
    found = {}
    for strategy in strategies:
        config = SelectionConfig(strategy=strategy, proxy="head", uncertainty_power=1.0)
        picked = registry.select(request, config, explain=False).item_ids
        found[strategy] = len(set(data.classes[half][picked].tolist()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark.cold_start")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--encoders", type=Path, default=Path("encoders"))
    parser.add_argument("--only", nargs="*", default=list(SETS), help="sets by name")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    places = sets.Places(given.data, given.encoders, given.out, SMALL_POOL if given.size == "small" else 0)
    known, means = sets.known_sources(given.data, given.out), {}
    for name in given.only:
        data = sets.load(known[name], places)
        pictures = sets.picture_vectors(known[name], places)
        counts = [distinct_classes(data, pictures, seed, given.strategies, given.batch) for seed in range(SEEDS)]
        means[name] = {s: round(float(np.mean([count[s] for count in counts])), 2) for s in given.strategies}
    (given.out / f"cold_start-{given.size}.json").write_text(json.dumps(means, indent=1))
    print(json.dumps(means))


if __name__ == "__main__":
    main()
