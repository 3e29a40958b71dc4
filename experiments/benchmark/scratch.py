"""Strategies with training from scratch: the `laptop` preset on three sets, one label per class and batch.

    small   a third of the preset's steps, on pools of about 1,000 items (seeded, stratified) and all test items
    full    the preset's steps, on whole pools (the first 2,700 training pictures of MNIST)

A run is `python -m app simulate` without an encoder. A training takes a minute or two on a CPU at size `full`, so there
are few sets, strategies and seeds, and the counts end at 4 labels per class. All strategies of a seed share the first
labels and the model trained on them. Seeds run one after the other, so that an interrupted run has complete seeds;
results are kept in OUT/scratch/SIZE, and an interrupted run continues.
"""

from __future__ import annotations

import csv
import dataclasses
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.simulation.local_runner import simulate
from app.simulation.results import Question, read_results
from benchmarks.rounds import with_steps
from core.config import RoundConfig, preset
from core.rounds.simulation_plan import Plan
from experiments.active_learning import ProgressLines
from experiments.benchmark import page
from experiments.benchmark.sets import sampled
from experiments.benchmark.statistics import Results
from experiments.labeled_sets import manifest, noise_folder
from experiments.record import say

SETS = {"spoken_digit": "fsdd", "speech_commands": "speech_commands", "mnist": "mnist"}  # name here, name of the folder
STRATEGIES = ("bico", "uniform", "badge", "k_center", "uncertainty_herding")
N_CLASSES = 10  # of each of them
PER_CLASS = (1, 2, 3, 4)
SEEDS = 3


@dataclass(frozen=True)
class Size:
    """The steps of a training and the largest pool; 0: those of the preset, the whole pool."""

    steps: int = 0
    pool: int = 0


SIZES = {"small": Size(steps=700, pool=1_000), "full": Size()}


@dataclass(frozen=True)
class Run:
    """The folders and the size of a run."""

    data: Path
    out: Path
    size: str

    def folder(self, name: str) -> Path:
        """The results of a set."""
        return self.out / "scratch" / self.size / name


def config_of(folder: str, data: Path, steps: int = 0) -> RoundConfig:
    """The `laptop` preset, with this number of steps if it is not 0, and refinement in proportion. Clips have the
    background noise of their set, if it has any."""
    config = preset("laptop")
    channels = 1 if folder == "mnist" else config.media.channels
    media = dataclasses.replace(config.media, noise_folder=noise_folder(folder, data), channels=channels)
    training = with_steps(config.training, steps) if steps else config.training
    return dataclasses.replace(config, media=media, training=training)


def manifest_of(folder: str, run: Run) -> Path:
    """The manifest of a set. If the size limits the pool, it is that of a sample, beside copies of its files."""
    whole = manifest(folder, run.data, run.out / "scratch", small=True)
    most = SIZES[run.size].pool
    return small_version(whole, run.out / "scratch" / f"{folder}-{most}", most) if most else whole


def small_version(whole: Path, target: Path, most: int) -> Path:
    """The manifest of the test items and a seeded, stratified sample of about `most` pool items, with their files."""
    found = target / "manifest.csv"
    if found.exists():
        return found
    with whole.open(newline="") as lines:
        rows = sampled(list(csv.DictReader(lines)), most)
    for row in rows:
        copy = target / row["path"]
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(whole.parent / row["path"], copy)
    draft = target / "manifest.part"
    with draft.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, ["path", "label", "split"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    draft.replace(found)
    return found


def question(name: str, run: Run, seed: int) -> Question:
    """The simulation of one set with one seed. A set that is not in SETS has the name of its folder."""
    folder = SETS.get(name, name)
    return Question(
        data=str(manifest_of(folder, run).resolve()),
        strategies=STRATEGIES,
        seeds=(seed,),
        plan=Plan(start=N_CLASSES, batch=N_CLASSES, rounds=len(PER_CLASS) - 1),
        config=config_of(folder, run.data, SIZES[run.size].steps),
    )


def run_scratch(run: Run, only: list[str], n_seeds: int, processes: int | None) -> None:
    """Run all simulations that have no results yet: the first seed of every set, then the second, and so on."""
    for seed in range(n_seeds):
        for name in SETS:
            if not only or name in only:
                say(f"from scratch: {name}, seed {seed}")
                simulate(question(name, run, seed), run.folder(name), processes=processes, report=ProgressLines())


def rows_of(name: str, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each trial that has reached the last count, as `experiments.benchmark.statistics` reads them.

    The numbers of labels count answers: a second look at a label is also an answer.
    """
    trials: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for record in records:
        trials.setdefault((record["strategy"], record["seed"]), {})[PER_CLASS[record["round"]]] = record
    return [
        {
            "set": name,
            "strategy": strategy,
            "seed": seed,
            "accuracy": [by_count[count]["accuracy"] for count in PER_CLASS],
            "select_seconds": [by_count[count]["seconds"].get("select", 0.0) for count in PER_CLASS[:-1]],
        }
        for (strategy, seed), by_count in sorted(trials.items())
        if set(PER_CLASS) <= set(by_count)
    ]


def scratch_section(out: Path, size: str) -> str:
    """The tables of the page; "" if there is no seed that all strategies have finished."""
    rows = []
    for name in SETS:
        file = out / "scratch" / size / name / "results.json"
        rows += rows_of(name, read_results(file)["records"]) if file.exists() else []
    results = Results(rows, STRATEGIES, PER_CLASS)
    if not results.sets:
        return ""
    training = config_of(SETS[results.sets[0]], Path(), SIZES[size].steps).training
    pool = SIZES[size].pool
    seeds = ", ".join(f"{name} {len(results.seeds[name])}" for name in results.sets)
    parts = [
        f"Size `{size}`: {training.steps:,} steps, {training.refine_steps:,} more of refinement, "
        + (f"pools of about {pool:,} items." if pool else "whole pools."),
        f"Seeds that all strategies have finished: {seeds}.",
        page.summary_table(results, cost="wall-clock time per selection"),
        page.difference_table(results),
        page.verdict_table(results),
        page.accuracy_tables(results),
    ]
    return "\n\n".join(parts)
