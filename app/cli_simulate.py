"""`python -m app simulate`: ask, run, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.cli_output import progress_bar, show
from app.simulating import Question, simulate
from app.study_report import reach_table, table, write_report
from core.acquisition import catalog
from core.config import preset, require
from core.simulation import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line was given, beside the plan."""

    data: Path
    out: Path
    strategies: tuple[str, ...]
    seeds: int
    preset: Literal["auto", "paper", "laptop", "smoke"]
    processes: int | None = None


def run_simulation(wish: Wish, plan: Mapping[str, Any], as_json: bool) -> None:
    """Everything, with a bar; prints the tables, or one JSON document with the means."""
    require(wish.data.exists(), f"{wish.data} does not exist; name a folder, a zip archive or a manifest.")
    require(wish.seeds >= 1, f"{wish.seeds} seeds were asked for; use at least 1.")
    for name in wish.strategies:
        catalog.entry(name)
    question = Question(
        data=str(wish.data.absolute()),
        strategies=tuple(dict.fromkeys(wish.strategies)),
        seeds=tuple(range(wish.seeds)),
        plan=Plan(**plan),
        config=preset(wish.preset),
    )
    with progress_bar("Simulating") as report:
        records = simulate(question, wish.out.absolute(), processes=wish.processes, report=report)
    summary = write_report(records, wish.out.absolute(), f"{wish.data.name}, {wish.seeds} seeds")
    show(summary, as_json, lambda: f"{table(summary)}\n{reach_table(summary)}\nCurves and records are in {wish.out}.")
