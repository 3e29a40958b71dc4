"""Strategies with simulated annotators: accuracy by number of labels on Spoken Digit, Speech Commands, MNIST.

    python -m experiments.active_learning --dataset fsdd --size small --out DIR             the `laptop` preset, on a
    CPU python -m experiments.active_learning --dataset fsdd --size full --out DIR              the `paper` preset, on a
    GPU python -m experiments.active_learning --split speaker --speaker theo --out DIR          test clips of one
    speaker python -m experiments.active_learning --only bico --seeds 0 --out DIR                   a part of the trials
    python -m experiments.active_learning --merge PART PART --out DIR                       parts of separate folders
    python -m experiments.active_learning --wrong 0.1 --rare nine=0.02 --missing four …     robustness

10 initial labels (the same for all strategies of a seed), then batches of 10 up to 70; three seeds; bico, uniform,
badge, k_center and uncertainty_herding. It uses the code of `python -m app simulate`: results.json is updated with
every result and contains the seconds of each stage, an interrupted run continues when started again, and parts may
run in parallel into one folder. The paper, Spoken Digit at 40 labels: bico 95.4, k-center 89.4, BADGE 83.7, uniform
82.1; bico at 70 labels 99.3.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.simulation.local_runner import simulate
from app.simulation.report import tables, write_report
from app.simulation.results import Question, merge, read_results
from app.simulation.settings import change_settings, hard_cases, preset_for_this_machine
from core.acquisition import catalog
from core.config import RoundConfig
from core.errors import InvalidInput, WinnowError
from core.rounds.simulation_plan import Plan
from core.types import Progress
from experiments.labeled_sets import ADDRESSES, manifest, manifest_by_speaker, noise_folder
from experiments.record import DATA, say

STRATEGIES = ("bico", "uniform", "badge", "k_center", "uncertainty_herding")
PRESETS = {"small": "laptop", "full": "paper"}
TOLD_SECONDS = 20.0
PAPER = {  # Spoken Digit, percent
    "40": {"bico": 95.4, "k_center": 89.4, "badge": 83.7, "uniform": 82.1},
    "70": {"bico": 99.3, "uniform": 94.8},
}
GOALS = {"40": 0.98, "70": 0.995}  # for bico on a CPU


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m experiments.active_learning")
    made.add_argument("--dataset", choices=list(ADDRESSES), default="fsdd")
    made.add_argument("--split", choices=["official", "speaker"], default="official", help="split of fsdd")
    made.add_argument("--speaker", default="", help="with --split speaker: the speaker whose clips are the test part")
    made.add_argument("--size", choices=list(PRESETS), default="small")
    made.add_argument("--out", type=Path, help="default: results/active_learning/DATASET-SIZE")
    made.add_argument("--data", type=Path, default=DATA)
    made.add_argument("--only", nargs="*", default=[], metavar="STRATEGY", help="strategies to run; default: all five")
    made.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="seeds to run; default: 0 1 2")
    made.add_argument("--start", type=int, default=10)
    made.add_argument("--batch", type=int, default=10)
    made.add_argument("--rounds", type=int, default=6)
    made.add_argument("--preset", choices=["auto", "laptop", "paper", "smoke"], help="default: that of the size")
    made.add_argument("--set", nargs="*", action="extend", default=[], metavar="SECTION.FIELD=VALUE")
    made.add_argument("--wrong", type=float, default=0.0, help="share of wrong answers")
    made.add_argument("--rare", default="", metavar="CLASS=SHARE", help="make a class rare in the pool")
    made.add_argument("--missing", default="", metavar="CLASS", help="a class without initial labels")
    made.add_argument("--cold", action="store_true", help="every round trains from scratch")
    made.add_argument("--processes", type=int, help="trials at the same time; default: one for each core")
    made.add_argument("--cache", type=Path, help="folder for inputs and kernel features, to share between runs")
    made.add_argument("--merge", nargs="*", type=Path, default=[], metavar="PART", help="only merge parts")
    return made


def settings(given: argparse.Namespace) -> RoundConfig:
    config = preset_for_this_machine(given.preset or PRESETS[given.size])
    media = dataclasses.replace(config.media, noise_folder=noise_folder(given.dataset, given.data))
    if given.dataset == "mnist":
        media = dataclasses.replace(media, channels=1)
    return change_settings(dataclasses.replace(config, media=media), given.set)


def data_of(given: argparse.Namespace, out: Path) -> Path:
    """The manifest of the data set, by its own split or with one speaker of fsdd as the test part."""
    if given.split == "official":
        return manifest(given.dataset, given.data, out.parent, given.size == "small")
    if given.dataset != "fsdd":
        raise InvalidInput(f"{given.dataset} has no split by speaker here; use --dataset fsdd or --split official.")
    return manifest_by_speaker(given.data, out.parent, given.speaker)


def question(given: argparse.Namespace, out: Path) -> Question:
    for name in given.only:
        catalog.entry(name)
    plan = Plan(
        start=given.start, batch=given.batch, rounds=given.rounds, warm=not given.cold,
        **hard_cases(given.wrong, given.rare, given.missing),
    )  # fmt: skip
    return Question(
        data=str(data_of(given, out).resolve()),
        strategies=tuple(dict.fromkeys(given.only)) or STRATEGIES,
        seeds=tuple(dict.fromkeys(given.seeds)),
        plan=plan,
        config=settings(given),
    )


class ProgressLines:
    """Prints a line for every new record, and a heartbeat in between."""

    def __init__(self) -> None:
        self.done, self.last = -1, 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.done != self.done or time.monotonic() - self.last > TOLD_SECONDS:
            self.done, self.last = progress.done, time.monotonic()
            say(f"{progress.done} of {progress.total} · {progress.note}")


def claims(summary: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """The order at each number of labels, bico's lead, and the paper's numbers if it has any."""
    accuracy: Mapping[str, Mapping[str, float]] = summary["accuracy"]
    found: dict[str, Any] = {}
    for labels in sorted({labels for row in accuracy.values() for labels in row}, key=int):
        here = {strategy: row[labels] for strategy, row in accuracy.items() if labels in row}
        order = sorted(here, key=lambda strategy: -here[strategy])
        others = [value for strategy, value in here.items() if strategy != "bico"]
        result: dict[str, Any] = {"order": order}
        if "bico" in here and others:
            lead = here["bico"] - max(others)
            result |= {"bico_first": lead > 0, "lead_points": round(100 * lead, 2)}
        if dataset == "fsdd" and labels in PAPER:
            result |= {"paper": PAPER[labels], "goal": GOALS[labels]}
            result |= {"goal_reached": here["bico"] >= GOALS[labels]} if "bico" in here else {}
        found[labels] = result
    return found


def name_of(given: argparse.Namespace) -> str:
    """The default folder of the results; every speaker has a separate one."""
    speaker = f"-speaker-{given.speaker}" if given.split == "speaker" else ""
    return f"{given.dataset}{speaker}-{given.size}"


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    out = (given.out or Path("results") / "active_learning" / name_of(given)).absolute()
    began = time.monotonic()
    try:
        if given.merge:
            records = merge([folder.absolute() for folder in given.merge], out)
        else:
            cache = given.cache.absolute() if given.cache else None
            asked = question(given, out)
            records = simulate(asked, out, processes=given.processes, cache=cache, report=ProgressLines())
    except WinnowError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    n_seeds = len({one.seed for one in records})
    summary = write_report(records, out, f"{given.dataset}, {given.size}, {n_seeds} seeds")
    say(tables(summary))
    result = {
        "experiment": "active_learning",
        "dataset": given.dataset,
        "size": given.size,
        "split": given.speaker if given.split == "speaker" else "official",
        "seconds": round(time.monotonic() - began, 1),
        "machine": read_results(out / "results.json").get("machine", {}),
        **summary,
        "claims": claims(summary, given.dataset if given.split == "official" else ""),
    }
    say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
