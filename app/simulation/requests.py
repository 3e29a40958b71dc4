"""Simulations of a project: requests, and their state for screens.

A request is one row, which a worker runs (`app.simulation.workflows`). Screens read only rows, so a simulation does not
depend on a page, the server or a particular worker. A cancelled or failed simulation can be resumed from its records.
Known labels stay in the store; only accuracies are written and shown. This module does not load torch.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from app.rounds.requests import next_config
from app.simulation.results import VERSION, Question, record_from, refuse_earlier
from core.config import Preset, RoundConfig, from_dict, from_stored, preset, to_json
from core.errors import InvalidInput
from core.rounds.simulation_plan import INDUCTIVE, Plan, RoundRecord
from storage.database.store import Store, now
from storage.projects import projects
from storage.rounds import simulations, workers
from storage.rounds.simulations import SimulationRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """The parameters of a simulation: strategies, plan, number of seeds, and preset."""

    strategies: tuple[str, ...] = ("bico", "uniform")
    start: int = 10
    batch: int = 10
    rounds: int = 3
    seeds: int = 2
    preset: Preset = "auto"

    def __post_init__(self) -> None:
        _ = self.plan
        if not self.strategies or self.seeds < 1:
            raise InvalidInput("A simulation needs at least one strategy and one seed.")

    @property
    def plan(self) -> Plan:
        return Plan(start=self.start, batch=self.batch, rounds=self.rounds)

    @property
    def n_records(self) -> int:
        return len(self.strategies) * self.seeds * (self.rounds + 1)

    @property
    def n_trainings(self) -> int:
        """The number of models to train. The strategies of a seed share their first model."""
        return self.seeds * (1 + len(self.strategies) * self.rounds)

    @property
    def most_labels(self) -> int:
        return self.start + self.batch * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The state of a simulation for a screen."""

    id: int
    asked: SimulationRequest
    status: str  # requested | running | finished | failed | cancelled
    n_records: int
    error: str
    notes: tuple[str, ...]  # the current activities of its workers
    seconds_left: float | None  # None before the first record
    without_worker: bool  # the simulation waits, and no worker is running

    @property
    def running(self) -> bool:
        return self.status in simulations.UNFINISHED

    @property
    def complete(self) -> bool:
        return self.n_records >= self.asked.n_records


def begin(store: Store, project_id: int, asked: SimulationRequest, config: RoundConfig | None = None) -> int:
    """Request a simulation. Returns its id. The default `config` is the preset with the project's media settings and
    kernel network."""
    settings = config or settings_of(store, project_id, asked.preset)
    return simulations.request(store, project_id, dataclasses.asdict(asked), json.loads(to_json(settings)))


def settings_of(store: Store, project_id: int, name: Preset) -> RoundConfig:
    """The settings of a simulation with a preset. The preset `auto` is not resolved here: the worker that starts the
    simulation resolves it for its device, once for all seeds."""
    project = projects.get_project(store, project_id)
    own, config = next_config(store, project), preset(name)
    kernel = dataclasses.replace(config.kernel, network=own.kernel.network)
    return dataclasses.replace(config, media=own.media, kernel=kernel)


def resume(store: Store, simulation_id: int) -> None:
    """Resume a cancelled or failed simulation. Its records are kept. Raises `Conflict` if they have the earlier
    measure."""
    refuse_earlier("The simulation", records(store, simulation_id), "Start a new simulation.")
    simulations.resume(store, simulation_id)


def cancel(store: Store, simulation_id: int) -> None:
    simulations.cancel(store, simulation_id)


def remove(store: Store, simulation_id: int) -> None:
    """Delete a simulation that is not running, with its results."""
    simulations.remove(store, simulation_id)


def listed(store: Store, project_id: int) -> list[Simulation]:
    """The simulations of a project, newest first."""
    rows = simulations.listed(store, project_id)
    alone = any(row.unfinished for row in rows) and not workers.living_workers(store)
    return [_shown(row, alone) for row in rows]


def records(store: Store, simulation_id: int) -> list[RoundRecord]:
    """All records so far, sorted by strategy, seed and round."""
    return [record_from(values) for values in simulations.records(store, simulation_id)]


def document(store: Store, simulation_id: int) -> dict[str, Any]:
    """The content of `results.json`: the question and every record. It has no version if records have the earlier
    measure."""
    found = simulations.records(store, simulation_id)
    earlier = any(record_from(values).measure != INDUCTIVE for values in found)
    question = question_of(simulations.get(store, simulation_id)).to_dict()
    return ({} if earlier else {"version": VERSION}) | {"question": question, "records": found}


def question_of(row: SimulationRow) -> Question:
    """The question of a stored simulation, in the form of `results.json`."""
    asked = from_dict(SimulationRequest, dict(row.asked))
    return Question(
        project=row.project_id,
        strategies=asked.strategies,
        seeds=tuple(range(asked.seeds)),
        plan=asked.plan,
        config=from_stored(RoundConfig, dict(row.settings)),
    )


def _shown(row: SimulationRow, alone: bool) -> Simulation:
    asked = from_dict(SimulationRequest, dict(row.asked))
    return Simulation(
        id=row.id,
        asked=asked,
        status=row.status,
        n_records=row.n_records,
        error=row.error,
        notes=row.notes,
        seconds_left=_seconds_left(row, asked.n_records),
        without_worker=row.unfinished and alone,
    )


def _seconds_left(row: SimulationRow, total: int) -> float | None:
    """The remaining seconds, estimated from the mean time per record of this attempt."""
    if not (row.unfinished and row.started_at and row.n_fresh):
        return None
    return (now() - row.started_at).total_seconds() / row.n_fresh * max(total - row.n_records, 0)
