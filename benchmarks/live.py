"""The time from a label to predictions that include it.

python -m benchmarks.live [--items 10000] [--dimensions 1280] [--labels 60]
A store with a finished round of an encoder whose features are ten overlapping clusters, and the process of the live
predictions. A label is given about every second, like a person; the time is measured from the moment its event is
stored until a page can read the predictions that include it. The last line is JSON with `label_to_guess_ms_p90`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
from sqlalchemy import insert, select

from app.live.results import read_result
from core.config import RoundConfig
from core.types import Selection
from storage.database.schema import Item
from storage.database.store import Store, now
from storage.labeling import projections
from storage.labeling.pool import LabelInput, Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project, touch
from storage.rounds.log import RoundLog

LONGEST = 120.0  # seconds
N_CLASSES = 10
WARM = 3  # labels before the measured ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=1_280)
    parser.add_argument("--labels", type=int, default=60)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Store.open(home=Path(folder)) as store:
        project_id, truth = make_live_pool(store, wanted.items, wanted.dimensions)
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # as `python -m app run` starts it
        environment = os.environ | {"WINNOW_HOME": folder} | threads
        process = subprocess.Popen([sys.executable, "-m", "app", "live"], env=environment)
        try:
            times = measure(store, project_id, truth, wanted.labels)
        finally:
            process.terminate()
            process.wait(timeout=30)
    result = {
        "items": wanted.items,
        "dimensions": wanted.dimensions,
        "labels": len(times),
        "label_to_guess_ms_median": round(1_000 * float(np.median(times))),
        "label_to_guess_ms_p90": round(1_000 * float(np.quantile(times, 0.9))),
    }
    print(json.dumps(result))


def make_live_pool(store: Store, n_items: int, dimensions: int) -> tuple[int, np.ndarray]:
    """A project with a finished round; its id and the class position of each item."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, N_CLASSES, n_items)
    features = rng.normal(size=(N_CLASSES, dimensions))[truth] + 3 * rng.normal(size=(n_items, dimensions))
    project = create_project(store, "live", "image", [f"class {one}" for one in range(N_CLASSES)])
    rows = [
        {
            "project_id": project.id, "sha256": hashlib.sha256(str(one).encode()).hexdigest(), "name": f"{one}.png",
            "media_type": "image/png", "n_bytes": 1, "imported_at": now(), "held_out": False, "condition": "ok",
            "condition_note": "",
        }
        for one in range(n_items)
    ]  # fmt: skip
    with store.write() as connection:
        touch(connection, project.id)
        connection.execute(insert(Item), rows)
        ids = list(connection.execute(select(Item.id).where(Item.project_id == project.id)).scalars())
        projections.start_states(connection, project.id, ids)
    pool = Pool(store, project.id)
    annotator, classes = annotator_named(store, "Ana").id, [row.id for row in list_classes(store, project.id)]
    first = [int(np.flatnonzero(truth == one)[0]) for one in range(N_CLASSES)]
    pool.apply([label(ids[at], classes[truth[at]]) for at in first], annotator=annotator)
    buffer = io.BytesIO()
    np.savez(buffer, labels=pool.snapshot().labels)
    log = RoundLog(store, project.id)
    log.finish(
        log.request(RoundConfig()).id,
        arrays={
            "item_ids": np.array(ids),
            "probabilities": np.full((n_items, N_CLASSES), 1 / N_CLASSES, np.float32),
            "embeddings": features.astype(np.float32),
            "snapshot": store.artifacts.put_bytes(buffer.getvalue(), ".npz"),
        },
        selection=Selection(item_ids=np.array(ids[-1:]), scores=np.ones(1), strategy="uniform"),
        metrics={"has_model": True, "settings": {"encoder": {"name": "measured", "identity": "0" * 64}}},
    )
    return project.id, truth


def label(item_id: int, class_id: int) -> LabelInput:
    return LabelInput(uuid=str(uuid.uuid4()), item_id=item_id, kind="label", class_id=class_id)


def measure(store: Store, project_id: int, truth: np.ndarray, n_labels: int) -> list[float]:
    """Seconds from each label to predictions that include it; the first fit, which prepares the pool, is left out."""
    pool, annotator = Pool(store, project_id), annotator_named(store, "Ana").id
    classes = [row.id for row in list_classes(store, project_id)]
    items = [row.id for row in pool.items(limit=len(truth))]
    order = np.random.default_rng(0).permutation(len(items))
    times = []
    for number, place in enumerate(order[: n_labels + WARM].tolist()):
        pool.apply([label(items[place], classes[truth[place]])], annotator=annotator)
        began = time.perf_counter()
        wait_until_used(store, project_id, items[place])
        if number >= WARM:
            times.append(time.perf_counter() - began)
            time.sleep(max(0.0, 1.0 - times[-1]))
    return times


def wait_until_used(store: Store, project_id: int, item_id: int) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < LONGEST:
        found = read_result(store.home, project_id)
        if found is not None and found.trained[np.searchsorted(found.item_ids, item_id)]:
            return
        time.sleep(0.005)
    raise SystemExit(f"No live prediction within {LONGEST:.0f} s.")


if __name__ == "__main__":
    main()
