"""`python -m app simulate`: run a simulation and write its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.output import print_note, progress_bar, show
from app.cli.projects import find_project, open_store
from app.rounds.requests import next_config
from app.simulation.dataset import kind_of
from app.simulation.local_runner import simulate
from app.simulation.report import tables, write_report
from app.simulation.results import Question
from app.simulation.settings import change_settings, preset_for_this_machine
from app.views.text import count
from core.acquisition import catalog
from core.config import Preset, RoundConfig, preset, require
from core.rounds.simulation_plan import Plan
from core.types import MediaKind
from storage.database.locations import from_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationCommand:
    """The options of the command, except those of the plan."""

    data: Path | None
    project: str | None
    out: Path
    strategies: tuple[str, ...]
    seeds: int
    preset: Preset
    encoder: str = "auto"  # a name, a folder, auto or none
    settings: tuple[str, ...] = ()
    processes: int | None = None


def run_simulation(command: SimulationCommand, plan: Mapping[str, Any], as_json: bool) -> None:
    """Run the simulation with a progress bar. Prints the tables, or one JSON document with the means."""
    require(command.seeds >= 1, f"{command.seeds} seeds were requested; use at least 1.")
    require(
        command.processes is None or command.processes >= 1,
        f"{command.processes} processes were requested; use at least 1.",
    )
    for name in command.strategies:
        catalog.entry(name)
    project, name, config = _subject(command)
    out = command.out.absolute()
    config = chosen_encoder(command, change_settings(config, command.settings), out)
    question = Question(
        data="" if command.data is None else str(command.data.absolute()),
        project=project,
        strategies=tuple(dict.fromkeys(command.strategies)),
        seeds=tuple(range(command.seeds)),
        plan=Plan(**plan),
        config=config,
    )
    with progress_bar("Simulating") as report:
        records = simulate(question, out, processes=command.processes, report=report, warn=print_note)
    summary = write_report(records, out, f"{name}, {count(command.seeds, 'seed')}")
    show(summary, as_json, lambda: f"{tables(summary)}\nCurves and records are in {command.out}.")


def _subject(command: SimulationCommand) -> tuple[int | None, str, RoundConfig]:
    """The id of the project (None for a data set), the name of the project or data set, and the round settings."""
    config = preset_for_this_machine(command.preset)
    if command.project is None:
        require(
            command.data is not None,
            "Specify labeled data (a folder, a zip archive or a manifest), or a project with --project.",
        )
        assert command.data is not None
        require(command.data.exists(), f"{command.data} does not exist; use a folder, a zip archive or a manifest.")
        return None, command.data.name, config
    require(command.data is None, "Specify either data or a project, not both.")
    with open_store() as store:
        project = find_project(store, command.project)
        own = next_config(store, project)
    return project.id, project.name, dataclasses.replace(config, media=own.media, kernel=_kernel(config, own))


def _kernel(config: RoundConfig, own: RoundConfig) -> Any:
    return dataclasses.replace(config.kernel, network=own.kernel.network)


def _kind(command: SimulationCommand) -> MediaKind:
    if command.data is not None:
        return kind_of(command.data)
    with open_store() as store:
        return find_project(store, command.project or "").kind


def chosen_encoder(command: SimulationCommand, config: RoundConfig, out: Path) -> RoundConfig:
    """The settings with the encoder of the command. An encoder that is specified as a folder, or used for a data set,
    is copied next to the results, so that a resumed simulation uses the same encoder."""
    wanted = command.encoder
    if wanted == "auto" and config.encoder.name != "auto":
        wanted = config.encoder.name  # specified with --set
    if wanted == "none" or (wanted == "auto" and command.preset not in ("auto", "encoder")):
        name = dataclasses.replace(config.encoder, name="none" if wanted == "none" else "auto")
        return dataclasses.replace(config, encoder=name)
    require(
        command.preset in ("auto", "encoder"),
        f"The preset {command.preset} trains from scratch; leave it out, or use --encoder none.",
    )
    from core.encoders.choice import default_encoder, encoder_named, with_encoder
    from core.encoders.install import add_encoder
    from core.encoders.recipes import place_encoder

    home, kind = from_environment().home, _kind(command)
    if Path(wanted).exists():
        found = add_encoder(out, Path(wanted)).encoder
    else:
        named = default_encoder(home, kind) if wanted == "auto" else encoder_named(home, wanted, kind)
        if named is None and command.preset == "auto":
            return config
        require(named is not None, f"There is no encoder for {kind}. Add one: python -m app encoders add FOLDER")
        assert named is not None
        found = named
        if command.project is None:
            place_encoder(out, found.name, {path.name: path for path in found.folder.iterdir() if path.is_file()})
    require(found.description.kind == kind, f"The encoder {found.name} is for {found.description.kind}.")
    compares = wanted == "auto" and command.preset == "auto"
    named_preset = dataclasses.replace(
        preset("auto" if compares else "encoder"), media=config.media, kernel=config.kernel
    )
    return with_encoder(change_settings(named_preset, command.settings), found)
