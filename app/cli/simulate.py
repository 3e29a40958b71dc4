"""`python -m app simulate`: ask, run, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.output import progress_bar, show
from app.simulation.local_runner import simulate
from app.simulation.report import reach_table, table, write_report
from app.simulation.results import Question
from app.simulation.settings import change_settings, preset_for_this_machine
from core.acquisition import catalog
from core.config import Preset, RoundConfig, require
from core.rounds.simulation_plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line was given, beside the plan."""

    data: Path | None
    project: str | None
    out: Path
    strategies: tuple[str, ...]
    seeds: int
    preset: Preset
    settings: tuple[str, ...] = ()
    processes: int | None = None


def run_simulation(wish: Wish, plan: Mapping[str, Any], as_json: bool) -> None:
    """Everything, with a bar; prints the tables, or one JSON document with the means."""
    require(wish.seeds >= 1, f"{wish.seeds} seeds were requested; use at least 1.")
    require(
        wish.processes is None or wish.processes >= 1, f"{wish.processes} processes were requested; use at least 1."
    )
    for name in wish.strategies:
        catalog.entry(name)
    project, name, config = _subject(wish)
    question = Question(
        data="" if wish.data is None else str(wish.data.absolute()),
        project=project,
        strategies=tuple(dict.fromkeys(wish.strategies)),
        seeds=tuple(range(wish.seeds)),
        plan=Plan(**plan),
        config=change_settings(config, wish.settings),
    )
    out = wish.out.absolute()
    with progress_bar("Simulating") as report:
        records = simulate(question, out, processes=wish.processes, report=report)
    summary = write_report(records, out, f"{name}, {wish.seeds} seeds")
    show(summary, as_json, lambda: f"{table(summary)}\n{reach_table(summary)}\nCurves and records are in {wish.out}.")


def _subject(wish: Wish) -> tuple[int | None, str, RoundConfig]:
    """The project (None for data of its own), what it is called, and the settings of its rounds."""
    config = preset_for_this_machine(wish.preset)
    if wish.project is None:
        require(
            wish.data is not None,
            "Name labeled data (a folder, a zip archive or a manifest), or a project with --project.",
        )
        assert wish.data is not None
        require(wish.data.exists(), f"{wish.data} does not exist; name a folder, a zip archive or a manifest.")
        return None, wish.data.name, config
    from app.cli.main import find_project, open_store
    from app.rounds.requests import round_config

    require(wish.data is None, "Name either data or a project, not both.")
    with open_store() as store:
        project = find_project(store, wish.project)
    own = round_config(project.settings, project.kind)
    return project.id, project.name, dataclasses.replace(config, media=own.media, kernel=_kernel(config, own))


def _kernel(config: RoundConfig, own: RoundConfig) -> Any:
    return dataclasses.replace(config.kernel, network=own.kernel.network)
