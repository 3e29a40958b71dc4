"""Throughput of `predict` against a bare loop over the same network, and its memory for many files against few.

    .venv/bin/python -m benchmarks.predicting [--files 4000]

The bare loop reads, decodes and predicts blocks of the same files and stores nothing. Last line: one JSON object;
`ratio` is files per second of `predict` divided by those of the bare loop in the same run, the median of three
alternating runs each (at least 0.8 is promised); `rss_growth_mb` is the difference in peak memory between a process
that predicts all files and one that predicts four blocks of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import torch

from app.jobs.predict_windows import list_files
from app.jobs.predicting import PredictOptions, predict_files
from app.rounds.model import open_round_model
from benchmarks.exporting import peak_mb
from core.learning.file_predictor import BLOCK
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.app.real_rounds import quick_settings, run_round_here
from tests.app.sample_store import add_items, clip

RATE = 16_000
N_LABELED = 60


def make_files(folder: Path, n_files: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(n_files):
        t = np.arange(int(RATE * rng.uniform(0.3, 1.2))) / RATE
        sound = 0.4 * np.sin(2 * np.pi * rng.uniform(200, 2_000) * t) + 0.02 * rng.standard_normal(len(t))
        soundfile.write(folder / f"{number:06d}.wav", sound.astype(np.float32), RATE)


def make_project(store: Store) -> int:
    """A project with a finished round of the small network."""
    project = create_project(store, "clips", "audio", ["a", "b", "c"])
    ids = add_items(store, project, [(f"{k}.wav", clip(k)) for k in range(N_LABELED)])
    pool, annotator = Pool(store, project.id), annotator_named(store, "ann").id
    classes = [row.id for row in list_classes(store, project.id)]
    for place, item_id in enumerate(ids):
        assert pool.label(item_id, classes[place % 3], annotator=annotator).accepted
    run_round_here(store, project.id, quick_settings())
    return project.id


def bare_loop(store: Store, project_id: int, folder: Path) -> int:
    """The same network over the same files, one block after the other."""
    found = open_round_model(store, project_id)
    predictor = found.predictor
    paths, decode = list(list_files([str(folder)], "audio")), predictor.decode
    for start in range(0, len(paths), BLOCK):
        predictor.predict([decode(path.read_bytes()) for path in paths[start : start + BLOCK]])
    return len(paths)


def with_command(store: Store, project_id: int, folder: Path, out: Path) -> int:
    options = PredictOptions(paths=(str(folder),), target=str(out), all_probabilities=True, overwrite=True)
    return int(predict_files(store, project_id, options)["files"])


def seconds_of(function: Callable[[], int]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def peak_of(home: Path, project_id: int, folder: Path, out: Path) -> float:
    command = [
        sys.executable,
        "-m",
        "benchmarks.predicting",
        "--measure",
        str(home),
        str(project_id),
        str(folder),
        str(out),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=4_000)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        home, project_id, folder, out = arguments.measure
        with Store.open(home=Path(home)) as store:
            with_command(store, int(project_id), Path(folder), Path(out))
        print(peak_mb())
        return
    with tempfile.TemporaryDirectory(prefix="winnow-predicting-") as scratch:
        root = Path(scratch)
        make_files(root / "many", arguments.files)
        make_files(root / "few", min(arguments.files, 4 * BLOCK))
        with Store.open(home=root / "home") as store:
            project_id = make_project(store)
            with_command(store, project_id, root / "few", root / "warm.csv")
            bare, whole = [], []
            for _ in range(3):
                bare.append(seconds_of(lambda: bare_loop(store, project_id, root / "many")))
                whole.append(seconds_of(lambda: with_command(store, project_id, root / "many", root / "out.csv")))
        few, many = (peak_of(root / "home", project_id, root / name, root / f"{name}.csv") for name in ("few", "many"))
        result = {
            "files": arguments.files,
            "threads": torch.get_num_threads(),
            "bare_files_per_second": round(arguments.files / statistics.median(bare)),
            "predict_files_per_second": round(arguments.files / statistics.median(whole)),
            "ratio": round(statistics.median(bare) / statistics.median(whole), 3),
            "rss_growth_mb": round(many - few, 1),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
