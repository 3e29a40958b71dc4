"""Strategies with training from scratch: the `laptop` preset on three sets, one label per class and batch.

A run is `python -m app simulate` without an encoder. A training takes a minute or two on a CPU, so the sets, the
strategies and the seeds are few, and the counts end at 4 labels per class. All strategies of a seed share the first
labels and the model that they give. Seeds run one after the other, so that an interrupted run has complete seeds;
results are kept in OUT/scratch, and a run that was interrupted continues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.simulation.local_runner import simulate
from app.simulation.results import Question, read_results
from core.config import RoundConfig, preset
from core.rounds.simulation_plan import Plan
from experiments.active_learning import ProgressLines
from experiments.benchmark import page
from experiments.benchmark.statistics import Results
from experiments.labeled_sets import manifest, noise_folder
from experiments.record import say

SETS = {"spoken_digit": "fsdd", "speech_commands": "speech_commands", "mnist": "mnist"}  # name here, name of the folder
STRATEGIES = ("bico", "uniform", "badge", "k_center", "uncertainty_herding")
N_CLASSES = 10  # of each of them
PER_CLASS = (1, 2, 3, 4)
SEEDS = 3


def config_of(folder: str, data: Path) -> RoundConfig:
    """The `laptop` preset; clips with the background noise of their set, where it has some."""
    config = preset("laptop")
    channels = 1 if folder == "mnist" else config.media.channels
    media = dataclasses.replace(config.media, noise_folder=noise_folder(folder, data), channels=channels)
    return dataclasses.replace(config, media=media)


def questions(data: Path, out: Path, only: list[str], n_seeds: int) -> dict[str, list[Question]]:
    """The simulations of each set, one for each seed."""
    plan = Plan(start=N_CLASSES, batch=N_CLASSES, rounds=len(PER_CLASS) - 1)
    return {
        name: [
            Question(
                data=str(manifest(folder, data, out / "scratch", small=True).resolve()),
                strategies=STRATEGIES,
                seeds=(seed,),
                plan=plan,
                config=config_of(folder, data),
            )
            for seed in range(n_seeds)
        ]
        for name, folder in SETS.items()
        if not only or name in only
    }


def run_scratch(data: Path, out: Path, only: list[str], n_seeds: int, processes: int | None) -> None:
    """Run what has no results yet: the first seed of every set, then the second, and so on."""
    asked = questions(data, out, only, n_seeds)
    for seed in range(n_seeds):
        for name, of_seeds in asked.items():
            say(f"from scratch: {name}, seed {seed}")
            simulate(of_seeds[seed], out / "scratch" / name, processes=processes, report=ProgressLines())


def rows_of(name: str, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each trial that has reached the last count, as `experiments.benchmark.statistics` reads them.

    Answers are counted: a second look at a label is an answer like a new label.
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


def scratch_section(out: Path) -> str:
    """The tables of the page; "" without a seed that all strategies have finished."""
    rows = []
    for name in SETS:
        file = out / "scratch" / name / "results.json"
        rows += rows_of(name, read_results(file)["records"]) if file.exists() else []
    results = Results(rows, STRATEGIES, PER_CLASS)
    if not results.sets:
        return ""
    seeds = ", ".join(f"{name} {len(results.seeds[name])}" for name in results.sets)
    parts = [
        f"Seeds that all strategies have finished: {seeds}.",
        page.summary_table(results),
        page.difference_table(results),
        page.verdict_table(results),
        page.accuracy_tables(results),
    ]
    return "\n\n".join(parts)
