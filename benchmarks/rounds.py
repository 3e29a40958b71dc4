"""A whole round of the `laptop` preset on a real pool: seconds of each stage, the first time and the next.

    .venv/bin/python -m benchmarks.rounds [--data FOLDER] [--labels 40] [--threads 2]

FOLDER contains manifest.csv (path,label,split); the default is the spoken digits of a data folder beside the checkout.
The first round also prepares inputs, computes the bank of views and the kernel features; the second, ten labels later,
reads them from the cache. Both train from scratch.

    .venv/bin/python -m benchmarks.rounds --compare-inputs [--items 300] [--steps 100] [--data FOLDER]

compares a round on inputs that fit the pool (`core.media.derivation`) with one on the inputs of 1 s or 32 x 32 pixels,
for the same items and steps: `ratio` and `cpu_ratio` of whole first rounds, and the seconds of each stage. The
stage "train" contains the bank of augmented views, made once per item; a round of the preset has 2,100 steps.

    .venv/bin/python -m benchmarks.rounds --encoder efficientnet-lite0|FOLDER --data FOLDER

measures rounds of the preset `encoder`: the first encodes the pool, the next reads its features. On 3,000 encoded items
the next round takes at most 10 s on two idle cores, including at most 3 s for the selection.

Last line: one JSON object with `first_seconds` and `next_seconds`
(wall, whole rounds), their stages, and CPU seconds: on a busy machine CPU time is more meaningful than wall time.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image

from core.config import MediaConfig, TrainingConfig, preset
from core.encoders.built_in import BUILT_IN
from core.encoders.choice import with_encoder
from core.encoders.folders import Encoder, open_encoder
from core.encoders.recipes import make_built_in
from core.media.derivation import derive_media
from core.rounds.pipeline import run_round
from core.rounds.simulation import initial_rows, snapshot_with
from core.rounds.simulation_plan import LabeledPool, Plan
from core.runtime import Runtime
from core.types import PoolMeasures, RoundResult
from storage.rounds.row_cache import FolderRowCache

DATA = Path("data") / "fsdd"  # where --data is not given


def read_pool(folder: Path) -> tuple[LabeledPool, dict[str, Path]]:
    with (folder / "manifest.csv").open(newline="") as lines:
        listed = list(csv.DictReader(lines))
    rows = {hashlib.sha256((folder / row["path"]).read_bytes()).hexdigest(): row for row in listed}
    names = tuple(sorted({row["label"] for row in rows.values()}))
    pool = LabeledPool(
        kind="image" if listed[0]["path"].lower().endswith((".jpg", ".jpeg", ".png")) else "audio",
        class_names=names,
        hashes=tuple(rows),
        truth=np.array([names.index(row["label"]) for row in rows.values()], np.int64),
        test=np.array([row["split"] == "test" for row in rows.values()]),
    )
    return pool, {name: folder / row["path"] for name, row in rows.items()}


def limited(pool: LabeledPool, n_items: int) -> LabeledPool:
    """Every k-th item, so that all classes and both splits remain."""
    rows = np.unique(np.linspace(0, len(pool.hashes) - 1, min(n_items, len(pool.hashes))).round().astype(np.int64))
    hashes = tuple(pool.hashes[row] for row in rows)
    return dataclasses.replace(pool, hashes=hashes, truth=pool.truth[rows], test=pool.test[rows])


def pool_measures(pool: LabeledPool, files: dict[str, Path]) -> PoolMeasures:
    """The measurements that an import would make of the pool's items, without test items."""
    paths = [files[name] for name, test in zip(pool.hashes, pool.test, strict=True) if not test]
    if pool.kind == "audio":
        found = [soundfile.info(path) for path in paths]
        sizes, sounds = [], [(one.duration, one.samplerate) for one in found]
    else:
        sizes, sounds = [Image.open(path).size for path in paths], []
    return PoolMeasures(
        seconds=np.array([seconds for seconds, _ in sounds], np.float64),
        sample_rates=np.array([rate for _, rate in sounds], np.int64),
        widths=np.array([width for width, _ in sizes], np.int64),
        heights=np.array([height for _, height in sizes], np.int64),
    )


def with_steps(training: TrainingConfig, steps: int) -> TrainingConfig:
    """Settings with this number of steps, and a proportional number of steps for refinement."""
    refine_steps = max(round(training.refine_steps * steps / training.steps), 1)
    return dataclasses.replace(training, steps=steps, refine_steps=refine_steps)


def compare_inputs(pool: LabeledPool, files: dict[str, Path], n_labels: int, steps: int) -> dict[str, Any]:
    """A first round on usual inputs and one on inputs that fit the pool, each with an empty cache."""
    usual = MediaConfig(channels=3 if pool.kind == "image" else 1)
    found: dict[str, Any] = {}
    for name, media in (
        ("warm_up", usual),
        ("usual", usual),
        ("derived", derive_media(pool.kind, pool_measures(pool, files))),
    ):
        config = preset("laptop")
        training = with_steps(config.training, min(steps, 5) if name == "warm_up" else steps)
        config = dataclasses.replace(config, media=media, training=training)
        with tempfile.TemporaryDirectory() as cache:
            wall, cpu = time.perf_counter(), time.process_time()
            result: RoundResult = run_round(
                snapshot_with(pool, pool.truth, initial_rows(pool, Plan(start=n_labels), 0)),
                config,
                read=lambda key: files[key].read_bytes(),
                cache=FolderRowCache(Path(cache)),
                runtime=Runtime.create(0, "cpu"),
            )
            seconds = result.metrics["seconds"]
            found[name] = {
                "shape": media.input_shape(pool.kind),
                "seconds": round(time.perf_counter() - wall, 1),
                "cpu_seconds": round(time.process_time() - cpu, 1),
                "stages": {stage: round(s, 1) for stage, s in seconds.items()},
            }
    del found["warm_up"]  # compiles the loops of the kernel, the graph and the map
    for key, ratio in (("seconds", "ratio"), ("cpu_seconds", "cpu_ratio")):
        found[ratio] = round(found["derived"][key] / found["usual"][key], 2)
    return found


def measure(
    pool: LabeledPool, files: dict[str, Path], n_labels: int, cache: Path, encoder: Encoder | None = None
) -> dict[str, Any]:
    labeled = initial_rows(pool, Plan(start=n_labels), 0)
    config = preset("laptop") if encoder is None else with_encoder(preset("encoder"), encoder)
    found: dict[str, Any] = {}
    for name in ("first", "next"):
        wall, cpu = time.perf_counter(), time.process_time()
        result: RoundResult = run_round(
            snapshot_with(pool, pool.truth, labeled),
            config,
            read=lambda key: files[key].read_bytes(),
            cache=FolderRowCache(cache),
            runtime=Runtime.create(0, "cpu"),
            encoder=encoder,
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
    parser.add_argument("--compare-inputs", action="store_true")
    parser.add_argument("--encoder", help="a built-in encoder by name, or a folder")
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pool, files = read_pool(given.data)
    if given.compare_inputs:
        pool = limited(pool, given.items)
        about = {"items": len(pool.hashes), "labels": given.labels, "threads": given.threads, "steps": given.steps}
        compared = compare_inputs(pool, files, given.labels, given.steps)
        print(json.dumps({"benchmark": "round inputs", **about, **compared}))
        return
    with tempfile.TemporaryDirectory() as cache:
        encoder = None
        if given.encoder:
            built_in = given.encoder in BUILT_IN
            encoder = make_built_in(Path(cache), given.encoder) if built_in else open_encoder(Path(given.encoder))
        found = measure(pool, files, given.labels, Path(cache), encoder)
    about: dict[str, Any] = {"items": int((~pool.test).sum()), "labels": given.labels, "threads": given.threads}
    about["preset"] = "encoder" if given.encoder else "laptop"
    print(json.dumps({"benchmark": "rounds", **about, **found}))


if __name__ == "__main__":
    main()
