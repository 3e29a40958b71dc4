"""The paper's batch active learning (its last experiment) on Spoken Digit: MixMatch, tangent-kernel coresets, views.

    python -m experiments.paper.mixmatch_coresets --out DIR                        small: a CPU, the network below
    python -m experiments.paper.mixmatch_coresets --size full --out DIR            the `paper` preset, on a GPU
    python -m experiments.paper.mixmatch_coresets --only bico --seeds 0 --out DIR  a part; parts may run in parallel
    python -m experiments.paper.mixmatch_coresets --table --out DIR                the results so far, without running

Both sizes have the paper's selection: `wrn` kernel, q = 2,048 uniform landmarks, 100 augmented views of each labeled or
chosen clip, soft pseudo-labels without temperature, penalty 1e-4, batches of 10 from 10 to 70 labels, every round from
scratch. Augmentation is as printed, with the noise recordings of Speech Commands. The first ten labels are the
same for all strategies of a seed. The small size has three seeds and the full size the paper's six.

Departures of the small size: the small ResNet instead of WRN-28-10; 1,000 steps of 32 labeled and 32 unlabeled clips;
learning rate 2e-3; 16 augmented waveforms of each clip, computed once, instead of new ones in every step.

An interrupted run continues when it is started again. Seeds run in order, so that finished results are comparable.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.simulation.local_runner import simulate
from app.simulation.report import tables, write_report
from app.simulation.results import Question, ResultsFile
from app.simulation.settings import change_settings
from core.acquisition import catalog
from core.config import RoundConfig, preset
from core.errors import WinnowError
from core.rounds.simulation_plan import Plan, RoundRecord
from experiments.active_learning import ProgressLines
from experiments.labeled_sets import manifest, noise_folder
from experiments.record import DATA, say

STRATEGIES = ("bico", "uniform", "badge", "k_center", "max_entropy", "consistency")
SEEDS = {"small": (0, 1, 2), "full": (0, 1, 2, 3, 4, 5)}
PAPER = {  # percent, six seeds
    "40": {"uniform": 82.06, "max_entropy": 77.50, "k_center": 89.44, "consistency": 86.56, "badge": 83.67,
           "bico": 95.44},
    "70": {"uniform": 94.83, "max_entropy": 91.78, "k_center": 93.83, "consistency": 98.22, "badge": 96.44,
           "bico": 99.27},
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m experiments.paper.mixmatch_coresets")
    made.add_argument("--size", choices=list(SEEDS), default="small")
    made.add_argument("--out", type=Path, help="default: results/mixmatch_coresets/SIZE")
    made.add_argument("--data", type=Path, default=DATA)
    made.add_argument("--only", nargs="*", default=[], metavar="STRATEGY", help="strategies to run; default: all six")
    made.add_argument("--seeds", nargs="*", type=int, help="seeds to run; default: those of the size")
    made.add_argument("--rounds", type=int, default=6)
    made.add_argument("--set", nargs="*", action="extend", default=[], metavar="SECTION.FIELD=VALUE")
    made.add_argument("--processes", type=int, help="trials at the same time; default: one for each core")
    made.add_argument("--cache", type=Path, help="folder for inputs and kernel features, to share between runs")
    made.add_argument("--table", action="store_true", help="only the table of the results so far")
    return made


def settings(size: str, data: Path) -> RoundConfig:
    """The `paper` preset with the noise recordings; the small size has its network and steps."""
    config = preset("paper")
    media = dataclasses.replace(config.media, noise_folder=noise_folder("speech_commands", data))
    config = dataclasses.replace(config, media=media)
    if size == "full":
        return config
    training = dataclasses.replace(
        config.training, network="resnet-small", steps=1_000, epochs=0, labeled_batch=32, unlabeled_batch=32,
        learning_rate=2e-3, bank_views=16,
    )  # fmt: skip
    return dataclasses.replace(config, training=training)


def question(given: argparse.Namespace, out: Path) -> Question:
    for name in given.only:
        catalog.entry(name)
    return Question(
        data=str(manifest("fsdd", given.data, out.parent, small=False).resolve()),
        strategies=tuple(dict.fromkeys(given.only)) or STRATEGIES,
        seeds=tuple(dict.fromkeys(given.seeds)) if given.seeds else SEEDS[given.size],
        plan=Plan(start=10, batch=10, rounds=given.rounds, warm=False),
        config=change_settings(settings(given.size, given.data), given.set),
    )


def in_order(asked: Question) -> list[Question]:
    """One simulation for each seed, so that all strategies of a seed end before the next seed begins."""
    return [dataclasses.replace(asked, seeds=(seed,)) for seed in asked.seeds]


def records_of(given: argparse.Namespace, out: Path) -> list[RoundRecord]:
    asked = question(given, out)
    if given.table:
        return asked.of_mine(ResultsFile(out, asked).records)
    cache = given.cache.absolute() if given.cache else None
    found: list[RoundRecord] = []
    for part in in_order(asked):
        found += simulate(part, out, processes=given.processes, cache=cache, report=ProgressLines())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    out = (given.out or Path("results") / "mixmatch_coresets" / given.size).absolute()
    began = time.monotonic()
    try:
        records = records_of(given, out)
    except WinnowError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    n_seeds = len({one.seed for one in records})
    summary: dict[str, Any] = write_report(records, out, f"Spoken Digit, MixMatch, {given.size}, {n_seeds} seeds")
    say(tables(summary))
    run = {"experiment": "mixmatch_coresets", "size": given.size, "seconds": round(time.monotonic() - began, 1)}
    say(json.dumps({**run, **summary, "paper": PAPER}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
