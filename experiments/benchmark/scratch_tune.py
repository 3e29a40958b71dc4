"""Variants of a strategy with training from scratch, compared on pool items alone.

    python -m experiments.benchmark.scratch_tune --data DIR --out DIR [--only SET ...] [--seeds N]
                                                 [--variants selection.proxy=similarity selection.proxy=head ...]

The trials of `experiments.benchmark.scratch` at size small, and of flowers, without their test items: a quarter of the
pool of each class (seeded) stands in for them, and the rest is the pool. A variant is `strategy=NAME` or settings of a
round, separated by commas; without a strategy it is bico. All variants of a seed share the first labels and the model
trained on them. Differences to the first variant are paired by seed. An interrupted run continues.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shutil
from pathlib import Path

import numpy as np
import torch

from app.simulation.dataset import cache_of
from app.simulation.local_runner import simulate
from app.simulation.results import Question, read_results
from app.simulation.settings import change_settings
from app.simulation.trial_process import start_file
from experiments.active_learning import ProgressLines
from experiments.benchmark import page, scratch
from experiments.benchmark.goals import mean_interval, with_half
from experiments.benchmark.sets import POOL_SPLITS
from experiments.record import DATA, say

SETS = (*scratch.SETS, "flowers")
VARIANTS = ("selection.proxy=similarity", "selection.proxy=head", "strategy=uniform")
SHARE = 4  # of each class, one of this number of pool items is used to measure


def tune_manifest(small: Path, target: Path) -> Path:
    """The manifest of the pool alone, beside the files: a quarter of each class has the split test."""
    with small.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["split"] in POOL_SPLITS]
    rng, measuring = np.random.default_rng(77), set[int]()
    for label in sorted({row["label"] for row in rows}):
        own = rng.permutation([position for position, row in enumerate(rows) if row["label"] == label])
        measuring.update(own[: len(own) // SHARE].tolist())
    target.mkdir(parents=True, exist_ok=True)
    for position, row in enumerate(rows):
        copy = target / row["path"]
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(small.parent / row["path"], copy)
        row["split"] = "test" if position in measuring else "pool"
    with (target / "manifest.csv").open("w", newline="") as lines:
        writer = csv.DictWriter(lines, ["path", "label", "split"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return target / "manifest.csv"


def question(name: str, variant: str, run: scratch.Run, seed: int) -> Question:
    """The simulation of one variant on one set with one seed."""
    usual, target = scratch.question(name, run, seed), run.out / "scratch_tune" / "data" / name
    found = target / "manifest.csv"
    manifest = found if found.exists() else tune_manifest(Path(usual.data), target)
    changes = dict(part.split("=", 1) for part in variant.split(","))
    strategy = changes.pop("strategy", "bico")
    config = change_settings(usual.config, [f"{field}={value}" for field, value in changes.items()])
    return dataclasses.replace(usual, data=str(manifest.resolve()), strategies=(strategy,), config=config)


def accuracies(name: str, variants: list[str], run: scratch.Run, n_seeds: int, processes: int | None) -> np.ndarray:
    """(variants, seeds, counts) in percent."""
    home = run.out / "scratch_tune" / name
    cache, found = None, np.zeros((len(variants), n_seeds, len(scratch.PER_CLASS)))
    for seed in range(n_seeds):
        for at, variant in enumerate(variants):
            asked, folder = question(name, variant, run, seed), home / variant
            cache = cache or cache_of(asked, home)
            first, own = start_file(home / variants[0], seed), start_file(folder, seed)
            if first.exists() and not own.exists():
                own.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(first, own)
            say(f"{name}, {variant}, seed {seed}")
            simulate(asked, folder, processes=processes, cache=cache, report=ProgressLines())
            for record in read_results(folder / "results.json")["records"]:
                if record["seed"] == seed:
                    found[at, seed, int(record["round"])] = 100 * record["accuracy"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", choices=SETS, default=[], help="sets by name")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, help="one per core by default")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = scratch.Run(given.data, given.out, "small")
    rows = []
    for name in given.only or SETS:
        values = accuracies(name, given.variants, run, given.seeds, given.processes)
        for variant, own in zip(given.variants, values, strict=True):
            lead = [with_half(mean_interval(pair)) for pair in (own - values[0]).T]
            means = [f"{mean:.1f}" for mean in own.mean(0)]
            rows.append([name, variant, *(f"{mean} ({pair})" for mean, pair in zip(means, lead, strict=True))])
    print(page.table(["set", "variant", *(f"{count} per class" for count in scratch.PER_CLASS)], rows))


if __name__ == "__main__":
    main()
