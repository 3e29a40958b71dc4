"""Whole items compared with the inputs of the first version: the `laptop` learner on five-second sounds and on
photographs.

    python -m experiments.whole_items --part tune --dataset sounds --out DIR       resolutions compared at equal time
    python -m experiments.whole_items --part test --dataset sounds --out DIR       derived inputs against usual ones

Usual inputs are 1 s or 32x32 pixels; derived ones follow `core.media.derivation` from the pool's own measures. Where
they describe photographs by patches, the network is refined on these as in a round; steps of refinement are a third of
those of training.

tune   Only the pool's part of the manifest is used. A quarter of it, drawn once per class, is for evaluation;
       training uses the rest. Every resolution trains for the same CPU time as the usual one does in `--steps` steps:
       its own number of steps follows from the measured time of a step. With `--equal-steps`, all have `--steps`.
test   Training uses the pool, evaluation the test part. Usual and derived inputs get the same labels, steps and seeds.
       The paired difference has a 95 % interval by Student's t over the seeds.

Labels are drawn uniformly with at least one per class; larger budgets contain the smaller ones. Accuracy is inductive:
the network alone, on items that are used for nothing else. An interrupted run continues when started again: every
result is a line of DIR/results.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.rounds import pool_measures, read_pool, with_steps
from core.config import MediaConfig, TrainingConfig, preset
from core.learning.patches.targets import has_patch_targets, patch_targets
from core.learning.training import predict, refine, train
from core.media.derivation import derive_media, with_length
from core.media.inputs import Inputs, prepare
from core.rounds.simulation import initial_rows
from core.rounds.simulation_plan import LabeledPool, Plan
from core.runtime import Runtime
from core.types import UNLABELED
from experiments.record import DATA, machine, say
from storage.rounds.row_cache import FolderRowCache

BUDGETS = {
    "sounds": (40, 80, 200), "flowers": (10, 40, 100), "fsdd": (10, 40, 70), "speech_commands": (10, 40, 70),
}  # fmt: skip
TUNE_LABELS = {"sounds": 200, "flowers": 100}
TUNE_SHARE = 0.25
TIMED_STEPS = 40  # to measure the time of a step


def resolutions(derived: MediaConfig, kind: str) -> dict[str, MediaConfig]:
    """The inputs to compare: the usual ones, the derived ones, and others of at most twice as many values."""
    usual = MediaConfig(channels=3 if kind == "image" else 1)
    if kind == "image":
        crop = dataclasses.replace(usual, image_fit="crop")
        large = dataclasses.replace(crop, image_size=45, flip=True)
        wide = dataclasses.replace(usual, image_size=39, image_width=52, image_fit="fit")
        others = {"32x32 crop": crop, "32x32 crop mirrored": dataclasses.replace(crop, flip=True)}
        others |= {"45x45 crop mirrored": large}
        return {"usual": usual, "derived": derived, **others, "39x52 fit": wide}
    coarse = dataclasses.replace(derived, hop=derived.hop * 2, n_fft=derived.n_fft * 2)
    tall = dataclasses.replace(coarse, n_mels=2 * derived.n_mels)
    half = dataclasses.replace(with_length(derived, derived.seconds / 2), predict_windows=derived.predict_windows)
    return {"usual": usual, "derived": derived, "half the frames": coarse, "twice the bins": tall, "half clips": half}


def part_of(pool: LabeledPool, part: str) -> LabeledPool:
    """test: the manifest unchanged. tune: only its pool, with a quarter of every class for evaluation."""
    if part == "test":
        return pool
    rows = np.flatnonzero(~pool.test)
    truth, generator = pool.truth[rows], np.random.default_rng(0)
    test = np.zeros(len(rows), np.bool_)
    for position in np.unique(truth):
        own = generator.permutation(np.flatnonzero(truth == position))
        test[own[: round(TUNE_SHARE * len(own))]] = True
    return dataclasses.replace(pool, hashes=tuple(pool.hashes[row] for row in rows), truth=truth, test=test)


class Study:
    """One data set with one kind of inputs: trains, measures, and times steps."""

    def __init__(self, pool: LabeledPool, inputs: Inputs) -> None:
        self.pool, self.inputs = pool, inputs
        self.trained = dataclasses.replace(inputs, readable=inputs.readable & ~pool.test)
        self.test_rows = np.flatnonzero(pool.test & inputs.readable)

    def labels(self, n_labels: int, seed: int) -> NDArray[np.int64]:
        rows = initial_rows(self.pool, Plan(start=n_labels), seed)
        labels = np.full(len(self.pool.truth), UNLABELED)
        labels[rows] = self.pool.truth[rows]
        return labels

    def accuracy(self, n_labels: int, seed: int, training: TrainingConfig) -> dict[str, float]:
        began, n_classes = time.process_time(), len(self.pool.class_names)
        runtime = Runtime.create(seed, "cpu")
        labels = self.labels(n_labels, seed)
        model = train(self.trained, labels, n_classes, training, runtime=runtime)
        if has_patch_targets(self.trained):
            targets = patch_targets(model, self.trained, labels, runtime=runtime)
            further = dataclasses.replace(runtime, seed=runtime.seed_for("refine 0"))  # as a round does
            model = refine(model, self.trained, labels, targets, training, runtime=further)
        found = predict(model, self.inputs, self.test_rows, runtime=runtime, n_views=training.predict_views)
        right = found.probabilities.argmax(1) == self.pool.truth[self.test_rows]
        cpu = round(time.process_time() - began, 1)
        return {"accuracy": 100 * float(right.mean()), "n": len(right), "steps": training.steps, "cpu_seconds": cpu}

    def step_seconds(self, n_labels: int) -> float:
        """CPU seconds of a training step: the difference of two short trainings, so that the cost of the bank is not
        included."""
        laptop, spent = preset("laptop").training, []
        for steps in (TIMED_STEPS, 2 * TIMED_STEPS):
            training = dataclasses.replace(with_steps(laptop, steps), calibrate=False)
            self.accuracy(n_labels, 0, training)  # fills the bank
            spent.append(self.accuracy(n_labels, 0, training)["cpu_seconds"])
        return (spent[1] - spent[0]) / TIMED_STEPS


class Results:
    """Results as lines of a file; a case that has a line is not run again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def find(self, **case: Any) -> dict[str, Any] | None:
        return next((row for row in self.rows if all(row.get(key) == value for key, value in case.items())), None)

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        with self.path.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        say(
            ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )


def paired(rows: list[dict[str, Any]], n_labels: int) -> dict[str, Any]:
    """Mean and deviation of both inputs, and the mean difference with its 95 % interval over seeds."""
    by_inputs = {
        name: {row["seed"]: row["accuracy"] for row in rows if (row["inputs"], row["labels"]) == (name, n_labels)}
        for name in ("usual", "derived")
    }
    seeds = sorted(set(by_inputs["usual"]) & set(by_inputs["derived"]))
    summary: dict[str, Any] = {"labels": n_labels, "seeds": len(seeds)}
    if not seeds:
        return summary
    values = {name: np.array([own[seed] for seed in seeds]) for name, own in by_inputs.items()}
    summary |= {name: f"{one.mean():.1f} ± {one.std():.1f}" for name, one in values.items()}
    difference = values["derived"] - values["usual"]
    summary["difference"] = round(float(difference.mean()), 2)
    if len(seeds) > 1:
        half = float(stats.t.ppf(0.975, len(seeds) - 1)) * float(stats.sem(difference))
        summary["interval"] = [round(float(difference.mean()) - half, 2), round(float(difference.mean()) + half, 2)]
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.whole_items")
    parser.add_argument("--dataset", choices=list(BUDGETS), default="sounds")
    parser.add_argument("--part", choices=["tune", "test"], default="test")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=preset("laptop").training.steps, help="steps of the usual inputs")
    parser.add_argument("--equal-steps", action="store_true", help="part tune: equal steps instead of equal time")
    parser.add_argument("--labels", nargs="*", type=int, default=[], help="numbers of labels, in this order")
    parser.add_argument("--only", nargs="*", default=[], help="resolutions of the part tune")
    parser.add_argument("--out", type=Path, default=Path("results") / "whole_items")
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    out = given.out / f"{given.dataset}-{given.part}"
    out.mkdir(parents=True, exist_ok=True)
    full, files = read_pool(given.data / given.dataset)
    derived = derive_media(full.kind, pool_measures(full, files))
    pool = part_of(full, given.part)
    choices = resolutions(derived, pool.kind)
    only = ("usual", "derived") if given.part == "test" else tuple(given.only) or tuple(choices)
    choices = {name: choices[name] for name in only}
    cache = FolderRowCache(given.out / f"{given.dataset}-cache")
    studies = {}
    for name, media in choices.items():
        inputs = prepare(pool.hashes, lambda key: files[key].read_bytes(), pool.kind, media, cache, held_out=pool.test)
        studies[name] = Study(pool, inputs)
    results = Results(out / "results.jsonl")
    if given.part == "tune":
        tune(studies, results, given)
    else:
        test(studies, results, given)
        say(json.dumps({"experiment": "whole_items", "dataset": given.dataset, "steps": given.steps,
                        "shapes": {name: study.inputs.shape for name, study in studies.items()}, "machine": machine(),
                        "table": [paired(results.rows, n_labels) for n_labels in BUDGETS[given.dataset]]}))  # fmt: skip
    return 0


def tune(studies: dict[str, Study], results: Results, given: argparse.Namespace) -> None:
    budgets = given.labels or [TUNE_LABELS[given.dataset]]
    for name, study in studies.items():
        if not given.equal_steps and results.find(timed=name) is None:
            results.add(timed=name, shape=list(study.inputs.shape), step_seconds=study.step_seconds(budgets[0]))
    usual = results.find(timed="usual")
    for n_labels, seed, (name, study) in itertools.product(budgets, given.seeds, studies.items()):
        timed = usual if given.equal_steps else results.find(timed=name)
        pace = usual["step_seconds"] / timed["step_seconds"] if usual and timed else 1.0
        steps = round(given.steps * pace)
        if results.find(inputs=name, seed=seed, labels=n_labels, steps=steps) is not None:
            continue
        training = dataclasses.replace(with_steps(preset("laptop").training, steps), calibrate=False)
        results.add(inputs=name, seed=seed, labels=n_labels, **study.accuracy(n_labels, seed, training))


def test(studies: dict[str, Study], results: Results, given: argparse.Namespace) -> None:
    training = with_steps(preset("laptop").training, given.steps)
    for n_labels in given.labels or BUDGETS[given.dataset]:
        for seed in given.seeds:
            for name, study in studies.items():
                case = {"inputs": name, "seed": seed, "labels": n_labels}
                if results.find(**case, steps=given.steps) is None:
                    results.add(**case, **study.accuracy(n_labels, seed, training))


if __name__ == "__main__":
    sys.exit(main())
