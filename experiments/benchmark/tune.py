"""Descriptions of an encoder, compared on pool items alone.

    python -m experiments.benchmark.tune --data DIR --encoders DIR --out DIR [--only SET ...] [--seeds N]
                                         [--variants margin=0,shifts=1 margin=8000,shifts=3 ...]

A variant replaces fields of `input` in encoder.json. For each seed a random quarter of the pool stands in for the test
items; bico selects from the rest, by the protocol of the benchmark. No label of a test item is read. Differences to the
first variant are paired by seed. Each trial is one file in OUT/tune, so an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from core.encoders.description import to_json
from core.encoders.folders import JSON, ONNX, open_encoder
from experiments.benchmark import sets
from experiments.benchmark.goals import mean_interval, with_half
from experiments.benchmark.protocol import Pool, run_trial
from experiments.benchmark.sets import FeatureSet
from experiments.record import DATA

SETS = ("speech_commands", "spoken_digit", "spoken_sample")
VARIANTS = ("margin=0,shifts=1", "margin=8000,shifts=3")
PER_CLASS = (1, 2, 3, 4, 7)


def tune_split(full: FeatureSet, seed: int) -> FeatureSet:
    """A random quarter of the pool in place of the test items, and the rest as the pool."""
    order = np.random.default_rng((seed, 77)).permutation(len(full.classes))
    rest, pool = np.sort(order[: len(order) // 4]), np.sort(order[len(order) // 4 :])
    return FeatureSet(
        full.name, full.features[pool], full.classes[pool], full.features[rest], full.classes[rest]
    )  # fmt: skip


def write_variant(folder: Path, variant: str, target: Path) -> None:
    """A copy of the encoder in `folder` with the fields of `variant` in its description."""
    description = open_encoder(folder).description
    fields = dict(part.split("=", 1) for part in variant.split(","))
    known = {name: type(getattr(description.input, name)) for name in fields}
    changed = replace(description.input, **{name: known[name](value) for name, value in fields.items()})
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / ONNX, target / ONNX)
    (target / JSON).write_bytes(to_json(replace(description, input=changed)))


def accuracies(source: sets.Source, variant: str, given: argparse.Namespace) -> list[list[float]]:
    """(seeds, counts) in percent."""
    home = given.out / "encoders" / variant
    write_variant(given.encoders / source.encoder, variant, home / source.encoder)
    full = sets.load(source, sets.Places(given.data, home, given.out))
    found = []
    for seed in range(given.seeds):
        file = given.out / "tune" / f"{source.name}.{variant}.{seed}.json"
        if not file.exists():
            data = tune_split(full, seed)
            counts = tuple(count * data.n_classes for count in PER_CLASS)
            trial = run_trial(Pool.of(data), "bico", seed, counts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(trial))
        found.append([100 * value for value in json.loads(file.read_text())["accuracy"]])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark.tune")
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--encoders", type=Path, default=Path("encoders"))
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = sets.known_sources(given.data, given.out)
    print("| set | description | " + " | ".join(f"{count} per class" for count in PER_CLASS) + " |")
    for name in given.only:
        first = np.array(accuracies(known[name], given.variants[0], given))
        print(f"| {name} | {given.variants[0]} | " + " | ".join(f"{value:.1f}" for value in first.mean(0)) + " |")
        for variant in given.variants[1:]:
            values = np.array(accuracies(known[name], variant, given))
            shown = [
                f"{own.mean():.1f} ({with_half(mean_interval(own - before))})"
                for own, before in zip(values.T, first.T, strict=True)
            ]
            print(f"| {name} | {variant} | " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
