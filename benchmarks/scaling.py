"""The cost of the stages of a round per item, and the totals for 10^4 to 10^7 items.

    python -m benchmarks.scaling [--candidates 100000] [--landmarks 2048]

Measured on one thread, in CPU seconds: snapshot, prepare, predict and kernel features per item, the similarity graph
per clip, a training step, the map of 10,000 points, placing one more item on it, and a batch of ten chosen by `bico`
among `--candidates` items. Ratios are to one training step of the laptop preset in the same run. Totals for larger
pools are computed from these and marked as computed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sqlalchemy import insert

from app.rounds.timing.estimates import REFINE_STEP
from core.acquisition import registry
from core.config import MapConfig, SelectionConfig, preset
from core.kernels.networks import by_name
from core.kernels.nystrom import fit
from core.learning.training import predict, train
from core.media.inputs import Inputs, prepare
from core.rounds.embedding_map import ANCHORS, MapRequest, embed
from core.rows import ArrayRows, MemoryRowCache
from core.runtime import Runtime
from core.similarity.graph import MAX_ITEMS
from core.similarity.neighbors import nearest
from core.similarity.warping import nearest_clips
from core.types import SelectionRequest
from storage.database.schema import Item
from storage.database.store import Store, now
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.projects import projects

POOLS = (10**4, 10**5, 10**6, 10**7)
MAP_POINTS = 10_000


def cpu(function: Any, *args: Any, **kwargs: Any) -> tuple[float, Any]:
    began = time.process_time()
    result = function(*args, **kwargs)
    return time.process_time() - began, result


def pictures(n: int) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    made = {}
    for _ in range(n):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(buffer, "PNG")
        made[hashlib.sha256(buffer.getvalue()).hexdigest()] = buffer.getvalue()
    return made


def snapshot_seconds(n: int) -> float:
    """CPU seconds of `Pool.snapshot` on a store with n items."""
    with tempfile.TemporaryDirectory() as folder, Store.open(home=Path(folder)) as store:
        project = projects.create_project(store, "large", "image", ["a", "b"])
        common = {"project_id": project.id, "media_type": "image/png", "n_bytes": 1, "imported_at": now()}
        common |= {"held_out": False, "condition": "ok", "condition_note": ""}
        rows = [common | {"sha256": f"{i:064x}", "name": str(i)} for i in range(n)]
        with store.write() as connection:
            connection.execute(insert(Item), rows)
            ids = [row.id for row in connection.execute(Item.__table__.select())]
            projections.start_states(connection, project.id, ids)
        return cpu(Pool(store, project.id).snapshot)[0]


def learning(inputs: Inputs, n_steps: int, runtime: Runtime) -> tuple[float, float]:
    """CPU seconds of one training step (without the start-up cost), and of one prediction."""
    config = preset("laptop").training
    given = np.where(np.arange(len(inputs)) < 30, np.arange(len(inputs)) % 3, -1)

    def run(steps: int) -> tuple[float, Any]:
        return cpu(train, inputs, given, 3, dataclasses.replace(config, steps=steps, bank_views=0), runtime=runtime)

    run(2)
    short, long = run(2)[0], run(2 + n_steps)
    seconds, _ = cpu(predict, long[1], inputs, runtime=runtime)
    return (long[0] - short) / n_steps, seconds / len(inputs)


def features_seconds(inputs: Inputs, n_landmarks: int) -> float:
    """CPU seconds per item, for `scnn` and this number of landmarks."""
    images = inputs.clean.take(np.arange(len(inputs)))
    nystrom = fit(images[: min(n_landmarks, 128)], by_name("scnn"))
    nystrom.transform(images[:8])
    seconds, _ = cpu(nystrom.transform, images[:128])
    return seconds / 128 * n_landmarks / len(nystrom.landmarks)


def map_seconds() -> tuple[float, float]:
    """CPU seconds of the layout of 10,000 points, and of placing one more item beside its neighbors."""
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(10, 64))[rng.integers(10, size=MAP_POINTS)] * 3).astype(np.float32)
    vectors += rng.normal(size=vectors.shape).astype(np.float32)
    request = MapRequest(item_ids=np.arange(MAP_POINTS), vectors=vectors)
    small = MapRequest(item_ids=np.arange(200), vectors=vectors[:200])
    embed(small, MapConfig(), seed=0)
    seconds, _ = cpu(embed, request, MapConfig(), seed=0)
    return seconds, cpu(nearest, vectors, vectors[:ANCHORS], 3)[0] / MAP_POINTS


def propagate_seconds(n: int) -> float:
    """CPU seconds of the similarity graph, per clip of 32 frames: each of n clips is warped with 200 candidates."""
    rng = np.random.default_rng(0)
    clips = ArrayRows(rng.normal(size=(n, 32, 32, 1)).astype(np.float32))
    nearest_clips(clips, np.arange(250), 10)  # loads the compiled comparison
    return cpu(nearest_clips, clips, np.arange(n), 10)[0] / n


def select_seconds(n: int, q: int) -> tuple[float, int]:
    """CPU seconds of a batch of ten by `bico` among n candidates with q features, and the number of picks."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, q)).astype(np.float32) / np.sqrt(q)
    logits = features[:, :10] * 20
    P = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labeled = np.arange(n) < 40
    P[labeled] = np.eye(10)[np.arange(40) % 10]
    request = SelectionRequest(
        item_ids=np.arange(n),
        labeled=labeled,
        eligible=~labeled,
        probabilities=P.astype(np.float32),
        embeddings=features[:, :64],
        features=features,
        batch_size=10,
        seed=0,
    )
    seconds, selection = cpu(registry.select, request, SelectionConfig(n_views=0))
    return seconds, len(selection.item_ids)


def totals(per: dict[str, float], n: int, candidates: int) -> dict[str, float]:
    """CPU seconds of a first round of n items, by stage."""
    most = MapConfig().max_points
    return {
        "snapshot": per["snapshot"] * n,
        "prepare": per["prepare"] * n,
        "train": per["step"] * preset("laptop").training.steps,
        "refine": REFINE_STEP * per["step"] * preset("laptop").training.refine_steps,  # of clips
        "predict": per["predict"] * n,
        "propagate": per["propagate"] * min(n, MAX_ITEMS),
        "features": per["features"] * min(n, candidates),
        "select": per["select"] * min(n, candidates) / candidates,
        "map": per["map"] / MAP_POINTS * min(n, most) + per["place"] * max(n - most, 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=512)
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--landmarks", type=int, default=2_048)
    given = parser.parse_args()
    torch.set_num_threads(1)
    media = pictures(given.items)
    runtime = Runtime.create(0, "cpu")
    config = preset("laptop").media
    seconds, inputs = cpu(prepare, list(media), media.__getitem__, "image", config, MemoryRowCache())
    per = {"prepare": seconds / given.items, "snapshot": snapshot_seconds(20_000) / 20_000}
    per["step"], per["predict"] = learning(inputs, 20, runtime)
    per["features"] = features_seconds(inputs, given.landmarks)
    per["map"], per["place"] = map_seconds()
    per["propagate"] = propagate_seconds(2_000)
    per["select"], n_picks = select_seconds(given.candidates, given.landmarks)
    assert n_picks == 10
    result = {
        "cpu_seconds": {name: round(value, 8) for name, value in per.items()},
        "in_training_steps": {name: round(value / per["step"], 6) for name, value in per.items()},
        "candidates": given.candidates,
        "landmarks": given.landmarks,
        "computed_round_in_training_steps": {
            f"{n:.0e}": {k: round(v / per["step"]) for k, v in totals(per, n, given.candidates).items()} for n in POOLS
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
