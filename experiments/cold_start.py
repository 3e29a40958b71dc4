"""The first batch, before any label: the number of classes among ten picks.

For each of 20 seeds, every strategy that works from features alone picks ten clips from a random half of the Free
Spoken Digit pool, by the kernel features of the clips. The result is the number of distinct digits among the ten;
`bico` uses its cold start, Bayesian V-optimal design. The uniform draw is the baseline.

    python -m experiments.cold_start --size small|full --out DIR

small: 256 landmarks. full: 1,024 landmarks.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.acquisition import registry
from core.config import MediaConfig, SelectionConfig
from core.kernels import networks, nystrom
from core.media import inputs
from core.rows import MemoryRowCache
from core.types import SelectionRequest
from experiments.record import Arguments, Record, run

STRATEGIES = ("bico", "uniform", "k_center", "k_means", "typiclust", "prob_cover", "max_herding")
SEEDS, BATCH = 20, 10


def kernel_features(folder: Path, n_landmarks: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(n, q) features of the pool's clips under the scnn kernel with seeded landmarks, and their digits."""
    with (folder / "manifest.csv").open(newline="") as lines:
        listed = [row for row in csv.DictReader(lines) if row["split"] == "pool"]
    files = {hashlib.sha256((folder / row["path"]).read_bytes()).hexdigest(): row for row in listed}
    hashes = list(files)
    prepared = inputs.prepare(
        hashes, lambda name: (folder / files[name]["path"]).read_bytes(), "audio", MediaConfig(), MemoryRowCache()
    )
    images = prepared.clean.take(np.arange(len(hashes)))
    landmarks = images[np.random.default_rng(0).choice(len(images), n_landmarks, replace=False)]
    features = nystrom.fit(landmarks, networks.scnn()).transform(images)
    classes = sorted({row["label"] for row in listed})
    return features, np.array([classes.index(files[name]["label"]) for name in hashes])


def cold_request(features: NDArray[np.float32], n_classes: int, seed: int) -> SelectionRequest:
    """The request of a pool without labels."""
    n = len(features)
    return SelectionRequest(
        item_ids=np.arange(n),
        labeled=np.zeros(n, bool),
        eligible=np.ones(n, bool),
        probabilities=np.full((n, n_classes), 1 / n_classes, np.float32),
        embeddings=np.zeros((n, 0), np.float32),
        features=features,
        batch_size=BATCH,
        seed=seed,
        has_model=False,
    )


def distinct_classes(features: NDArray[np.float32], classes: NDArray[np.int64]) -> list[dict[str, Any]]:
    """One row per seed and strategy."""
    rows = []
    for seed in range(SEEDS):
        half = np.sort(np.random.default_rng(seed).choice(len(features), len(features) // 2, replace=False))
        request = cold_request(features[half], int(classes.max()) + 1, seed)
        for strategy in STRATEGIES:
            picked = registry.select(request, SelectionConfig(strategy=strategy)).item_ids
            rows.append({"seed": seed, "strategy": strategy, "distinct": len(set(classes[half][picked].tolist()))})
    return rows


def main(arguments: Arguments) -> Record:
    n_landmarks = 256 if arguments.small else 1024
    features, classes = kernel_features(arguments.data / "fsdd", n_landmarks)
    rows = distinct_classes(features, classes)
    counts = {s: [row["distinct"] for row in rows if row["strategy"] == s] for s in STRATEGIES}
    means = {strategy: float(np.mean(values)) for strategy, values in counts.items()}
    figure = go.Figure(go.Bar(x=list(means), y=list(means.values())))
    figure.update_layout(title="Distinct digits among the first ten picks, mean of 20 seeds", yaxis_range=[0, 10])
    settings = {"n_landmarks": n_landmarks, "seeds": SEEDS, "batch": BATCH, "pool": len(features) // 2}
    claims = {
        "mean_distinct": {strategy: round(mean, 2) for strategy, mean in means.items()},
        "standard_error": {s: round(float(np.std(v, ddof=1) / len(v) ** 0.5), 2) for s, v in counts.items()},
        "bico_above_uniform": means["bico"] > means["uniform"],
    }
    return Record(rows, settings, claims, figure)


if __name__ == "__main__":
    run("cold_start", main)
