"""Both approaches to a model from the same first labels: an encoder with a head, training from scratch, and `auto`.

A run is `python -m app simulate` with bico and batches of ten; training from scratch takes a minute or two a round.
Answers are counted, not labeled items: a second look is also an answer. Results are kept in OUT/simulations, and an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.cli.commands.simulate import SimulationCommand, run_simulation
from app.simulation.results import read_results
from core.encoders.built_in import BUILT_IN
from experiments.benchmark import sets
from experiments.benchmark.goals import mean_interval, with_half

BATCH = 10
ORDER = ("encoder", "auto", "scratch")  # cheap ones first


@dataclass(frozen=True)
class Comparison:
    """Approaches on one set, and the numbers of labels that are shown."""

    name: str
    approaches: tuple[str, ...]
    shown: tuple[int, ...]

    @property
    def plan(self) -> dict[str, int]:
        return {"start": BATCH, "batch": BATCH, "rounds": self.shown[-1] // BATCH - 1}


COMPARISONS = (
    Comparison("mnist", ("auto", "encoder", "scratch"), (10, 20, 30, 40)),
    Comparison("spoken_digit", ("encoder", "scratch"), (10, 40, 70)),
)
HEADER = ["set", "approach", "seeds", "answers: accuracy", "with label propagation"]


def folder_of(out: Path, comparison: Comparison, approach: str) -> Path:
    return out / "simulations" / f"{comparison.name}-{approach}"


def run_approaches(
    places: sets.Places, seeds: int, only: list[str], processes: int | None, named: Sequence[str] = ()
) -> None:
    """Run the simulations that have no results yet; the cheap approaches first. `named`: only these approaches."""
    os.environ["WINNOW_HOME"] = str(places.out / "home")  # where `auto` finds the built-in encoder
    known = sets.known_sources(places.data, places.out)
    for comparison in COMPARISONS:
        if only and comparison.name not in only:
            continue
        source = known[comparison.name]
        if comparison.name == "mnist":
            sets.write_pictures(source, places.data)
        for approach in sorted(comparison.approaches, key=ORDER.index):
            if named and approach not in named:
                continue
            name = {"auto": "auto", "scratch": "none"}.get(approach) or _encoder_of(source, places)
            command = SimulationCommand(
                data=source.folder, project=None, out=folder_of(places.out, comparison, approach), strategies=("bico",),
                seeds=seeds, preset="auto", encoder=name, processes=processes,
            )  # fmt: skip
            run_simulation(command, comparison.plan, as_json=True)


def _encoder_of(source: sets.Source, places: sets.Places) -> str:
    """The encoder of a set, in the form of the command line."""
    encoder = sets.find_encoder(source.encoder, places.encoders, places.out)
    return encoder.name if encoder.name in BUILT_IN else str(encoder.folder)


def approach_rows(out: Path) -> list[list[str]]:
    """The cells of the table: means over the seeds that have reached the last count, with 95 % t intervals."""
    found = []
    for comparison in COMPARISONS:
        for approach in comparison.approaches:
            folder = folder_of(out, comparison, approach)
            if not (folder / "results.json").exists():
                continue
            records = read_results(folder / "results.json")["records"]
            cells, seeds = _cells(records, "accuracy", comparison.shown)
            spread, _ = _cells(records, "accuracy_with_propagation", comparison.shown)
            if seeds:
                found.append([comparison.name, approach, str(seeds), cells, spread])
    return found


def _cells(records: list[dict[str, Any]], measure: str, shown: tuple[int, ...]) -> tuple[str, int]:
    """The cells of a measure, and their seeds; "" if no seed has the measure at all counts that are shown."""
    by_seed: dict[int, dict[int, float]] = {}
    for record in records:
        if record.get(measure) is not None:
            by_seed.setdefault(record["seed"], {})[BATCH * (record["round"] + 1)] = 100 * record[measure]
    complete = [one for one in by_seed.values() if set(shown) <= set(one)]
    if not complete:
        return "", 0
    values = {count: np.array([one[count] for one in complete]) for count in shown}
    return ", ".join(f"{count}: {with_half(mean_interval(own))}" for count, own in values.items()), len(complete)
