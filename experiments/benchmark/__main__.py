"""Strategies on frozen encoders: data sets x strategies x seeds x label counts, one protocol, resumable.

    python -m experiments.benchmark --size small|full --data DIR --encoders DIR --out DIR
                                    [--parts curves goals approaches scratch] [--only SET ...] [--strategies NAME ...]
                                    [--approaches encoder auto scratch] [--seeds N] [--set NAME=FOLDER=ENCODER ...]
                                    [--report] [--page DIR]

small: pools of at most 1,000 items. full: all items. Parts:

curves      1, 2, 3, 4, 7 and 10 labels per class, every strategy on every set and on long-tailed versions of three
goals       bico and uniform at the label counts of the goals (`goals`)
approaches  an encoder, training from scratch and `auto` on whole pools (`approaches`). It takes hours and runs only if
            it is named
scratch     five strategies on three sets with training from scratch (`scratch`). It takes hours and runs only if it is
            named. At size small, trainings have fewer steps, and it takes about one hour

One file per trial is kept in OUT/trials; results.json, benchmark.md and its figure are written from these files. The
section of a part without trials does not change.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.benchmark import approaches, goals, page, scratch, sets
from experiments.benchmark.protocol import Pool, run_trial
from experiments.benchmark.sets import FeatureSet, Source
from experiments.record import DATA, machine, say

STRATEGIES = (
    "bico", "uniform", "margin", "max_entropy", "badge", "k_center", "k_means", "typiclust", "prob_cover",
    "max_herding", "uncertainty_herding", "drop_query", "tcm",
)  # fmt: skip
PARTS = ("curves", "goals", "approaches", "scratch")
PER_CLASS = (1, 2, 3, 4, 7, 10)
TAILED = ("cifar10", "mnist", "speech_commands")
SMALL_POOL = 1_000


@dataclass(frozen=True)
class Task:
    """Trials on one set: the numbers of labels, and the strategies."""

    data: FeatureSet
    kind: str  # "curve" or "goal"
    counts: tuple[int, ...]
    strategies: tuple[str, ...]


def tasks(given: argparse.Namespace) -> Iterator[Task]:
    """The tasks of the command line, one set after the other."""
    known = sets.known_sources(given.data, given.out)
    for text in given.set:
        name, folder, encoder = text.split("=")
        known[name] = Source(name, Path(folder), encoder)
    places = sets.Places(given.data, given.encoders, given.out, SMALL_POOL if given.size == "small" else 0)
    for source in known.values():
        if given.only and source.name not in given.only:
            continue
        has_goal = "goals" in given.parts and source.name in goals.GOALS
        if "curves" not in given.parts and not has_goal:
            continue
        full = sets.load(source, places)
        versions = [full] if source.name not in TAILED else [full, sets.long_tailed(full)]
        for data in versions if "curves" in given.parts else []:
            yield Task(data, "curve", tuple(count * data.n_classes for count in PER_CLASS), tuple(given.strategies))
        if has_goal:
            yield Task(full, "goal", goals.GOALS[source.name].counts, goals.STRATEGIES)


def run_seed(task: Task, pool: Pool, seed: int, given: argparse.Namespace) -> None:
    """Run the trials of one seed that have no file yet."""
    folder = given.out / "trials" / given.size / task.kind
    for strategy in task.strategies:
        file = folder / f"{task.data.name}.{strategy}.{seed}.json"
        if file.exists():
            continue
        found = run_trial(pool, strategy, seed, task.counts)
        row = {"set": task.data.name, "strategy": strategy, "seed": seed, "counts": task.counts, **found}
        file.with_suffix(".part").write_text(json.dumps(row))
        file.with_suffix(".part").replace(file)


def run_all(given: argparse.Namespace) -> None:
    """Seed after seed over all sets, so that an interrupted run has complete seeds."""
    pools: list[tuple[Task, Pool]] = []
    for task in tasks(given):
        folder = given.out / "trials" / given.size / task.kind
        folder.mkdir(parents=True, exist_ok=True)
        pool = Pool.of(task.data)
        pools.append((task, pool))
        about = {"pool": len(task.data.classes), "test": len(task.data.test_classes), "classes": task.data.n_classes}
        (folder / f"{task.data.name}.about").write_text(json.dumps({**about, "ceiling": pool.ceiling()}))
    for seed in range(given.seeds):
        for task, pool in pools:
            run_seed(task, pool, seed, given)
        say(f"seed {seed}: done")


def collected(given: argparse.Namespace, kind: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of all trials with a file; and by set, its sizes, its number of classes and its ceiling."""
    folder = given.out / "trials" / given.size / kind
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    about = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.about"))}
    return rows, about


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--encoders", type=Path, default=Path("encoders"), help="folder of encoder folders")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=["curves", "goals"])
    parser.add_argument("--only", nargs="*", default=[], help="names of sets; default: all")
    parser.add_argument("--approaches", nargs="*", choices=approaches.ORDER, default=[], help="default: all")
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=FOLDER=ENCODER", help="a set of your own")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, help="of the parts approaches and scratch; default: one per core")
    parser.add_argument(
        "--page", type=Path, default=None, help="folder for benchmark.md and its figure; OUT by default"
    )
    parser.add_argument("--report", action="store_true", help="write the page from the existing trials")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.report:
        run_all(given)
        if "approaches" in given.parts:
            places = sets.Places(given.data, given.encoders, given.out)
            approaches.run_approaches(places, given.seeds, given.only, given.processes, given.approaches)
        if "scratch" in given.parts:
            n_seeds = min(given.seeds, scratch.SEEDS)
            run = scratch.Run(given.data, given.out, given.size)
            scratch.run_scratch(run, given.only, n_seeds, given.processes)
    curve, about = collected(given, "curve")
    goal, goal_about = collected(given, "goal")
    summary = page.write(
        page.Inputs(curve, about, tuple(given.strategies), PER_CLASS, given.size),
        {"goals": page.table(goals.HEADER, goals.goal_rows(goal, goal_about)) if goal else "",
         "approaches": page.table(approaches.HEADER, rows) if (rows := approaches.approach_rows(given.out)) else "",
         "scratch": scratch.scratch_section(given.out, given.size)},
        given.page or given.out,
    )  # fmt: skip
    details = {"summary": summary, "curve": curve, "goal": goal, "sets": about | goal_about, "machine": machine()}
    (given.out / "results.json").write_text(json.dumps(details, indent=1))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
