"""Simulations of a project that a page starts: kept in WINNOW_HOME/simulations, run as jobs, reopened at any time.

    simulations/<project>/<id>/asked.json      what was asked
    simulations/<project>/<id>/results.json    every record so far (`app.study_results`)

The work is `python -m app simulate --project …` in a process of its own (`app.jobs`): it survives the page and the
server, and one that was cancelled or lost goes on from its records. Hidden truth stays in the store; what is written
and shown are accuracies. Light: no torch.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from app import jobs
from app.jobs import Job, JobView
from app.study_results import Question, read_results, record_from
from core.config import Preset, from_dict
from core.errors import InvalidInput
from core.study import Plan, RoundRecord
from storage.classes import list_classes
from storage.database import Store
from storage.projects import ProjectRow
from storage.schema import Item

TITLE = "Simulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked for."""

    strategies: tuple[str, ...] = ("bico", "uniform")
    start: int = 10
    batch: int = 10
    rounds: int = 3
    seeds: int = 2
    preset: Preset = "auto"

    def __post_init__(self) -> None:
        Plan(start=self.start, batch=self.batch, rounds=self.rounds)
        if not self.strategies or self.seeds < 1:
            raise InvalidInput("A simulation needs at least one strategy and one seed.")

    @property
    def n_records(self) -> int:
        return len(self.strategies) * self.seeds * (self.rounds + 1)

    @property
    def n_trainings(self) -> int:
        """The first model of a seed is shared by its strategies."""
        return self.seeds * (1 + len(self.strategies) * self.rounds)

    @property
    def most_labels(self) -> int:
        return self.start + self.batch * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One of them as a screen shows it."""

    id: str
    folder: Path
    asked: Asked
    job: JobView | None  # the newest one that worked on it
    records: tuple[RoundRecord, ...]

    @property
    def running(self) -> bool:
        return self.job is not None and self.job.status == "running"

    @property
    def complete(self) -> bool:
        return len(self.records) >= self.asked.n_records


@dataclass(frozen=True, slots=True)
class Known:
    """Items whose truth is known."""

    pool: int
    test: int

    @property
    def enough(self) -> bool:
        return self.pool > 0 and self.test > 0


def known_truth(store: Store, project_id: int) -> Known:
    classes = [row.id for row in list_classes(store, project_id)]
    query = (
        select(Item.held_out, func.count())
        .where(Item.project_id == project_id, Item.condition == "ok", Item.truth_class_id.in_(classes))
        .group_by(Item.held_out)
    )
    with store.read() as connection:
        counts = {bool(row[0]): int(row[1]) for row in connection.execute(query)}
    return Known(pool=counts.get(False, 0), test=counts.get(True, 0))


def begin(home: Path, project: ProjectRow, asked: Asked) -> str:
    """Start a new one; gives its id."""
    name = uuid.uuid4().hex[:12]
    folder = _folder(home, project.id, name)
    folder.mkdir(parents=True)
    (folder / "asked.json").write_text(json.dumps(dataclasses.asdict(asked)))
    go_on(home, project, name)
    return name


def go_on(home: Path, project: ProjectRow, name: str) -> Job:
    """A process for one that has none; what is in its folder is not computed again."""
    found = look(home, project.id, name)
    if found is None or found.running:
        raise InvalidInput("This simulation runs already." if found else "This simulation is no longer there.")
    asked = found.asked
    arguments = [f"--strategy={strategy}" for strategy in asked.strategies]
    arguments += [f"--{field}={getattr(asked, field)}" for field in ("start", "batch", "rounds", "seeds", "preset")]
    title = f"{TITLE} {name}"
    return jobs.start(
        home, title, ["simulate", *arguments, f"--out={found.folder}", f"--project={project.name}"], project.id
    )


def cancel(home: Path, simulation: Simulation) -> None:
    if simulation.job is not None:
        jobs.cancel(home, simulation.job.job.id)


def remove(home: Path, simulation: Simulation) -> None:
    """Forget one that does not run, with its results."""
    if not simulation.running:
        if simulation.job is not None:
            jobs.dismiss(home, simulation.job.job.id)
        shutil.rmtree(simulation.folder, ignore_errors=True)


def listed(home: Path, project_id: int) -> list[Simulation]:
    """Newest first."""
    place = home / "simulations" / str(project_id)
    if not place.is_dir():
        return []
    by_title = _jobs_by_title(home, project_id)
    found = [_read(folder, by_title) for folder in sorted(place.iterdir(), key=_began, reverse=True)]
    return [one for one in found if one is not None]


def look(home: Path, project_id: int, name: str) -> Simulation | None:
    return _read(_folder(home, project_id, name), _jobs_by_title(home, project_id))


def _jobs_by_title(home: Path, project_id: int) -> dict[str, JobView]:
    """The newest job of each simulation."""
    views = [view for view in jobs.listed(home, project_id) if view.job.title.startswith(TITLE)]
    return {view.job.title: view for view in reversed(views)}


def _began(folder: Path) -> int:
    asked = folder / "asked.json"
    return asked.stat().st_mtime_ns if asked.exists() else 0


def _read(folder: Path, by_title: dict[str, JobView]) -> Simulation | None:
    try:
        values: dict[str, Any] = json.loads((folder / "asked.json").read_text())
        asked = from_dict(Asked, values)
    except (OSError, ValueError, InvalidInput):
        return None
    job = by_title.get(f"{TITLE} {folder.name}")
    return Simulation(id=folder.name, folder=folder, asked=asked, job=job, records=_records(folder))


def _records(folder: Path) -> tuple[RoundRecord, ...]:
    path = folder / "results.json"
    if not path.exists():
        return ()
    try:
        stored = read_results(path)
    except InvalidInput:
        return ()
    question = Question.from_dict(stored["question"])
    return tuple(question.of_mine(record_from(values) for values in stored["records"]))


def _folder(home: Path, project_id: int, name: str) -> Path:
    return home / "simulations" / str(project_id) / Path(name).name
