"""A labeled data set for a simulation. Its labels are imported as known labels, which are hidden from the model.

The data (folder, zip or manifest) is imported like that of a project, with the same checks and limits, into a separate
store next to the results. The files are linked, not copied, and a second run reuses this store. For a project with
known labels, the items of that project are read, and nothing is written to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.simulation.results import Question
from core.errors import Conflict, InvalidInput
from core.rounds.simulation_plan import LabeledPool
from core.types import MediaKind, MediaReader, Report, ignore
from storage.database.locations import from_environment
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, locator, run_import
from storage.importing.sources import find_media_kind
from storage.labeling.known_labels import known_labels
from storage.media import shared as shared_media
from storage.projects import projects
from storage.projects.classes import list_classes
from storage.system.file_lock import file_lock

OPEN_SECONDS = 3600.0  # the longest wait for another process that imports a large data set


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyData:
    """The data of a simulation: its labeled pool, a reader for the media, the store and the project in it."""

    pool: LabeledPool
    read: MediaReader
    store: Store
    project_id: int


def open_study(question: Question, folder: Path, report: Report = ignore) -> StudyData:
    """Open the data of the question. Raises `Conflict` if items or labels have changed since the simulation began."""
    with file_lock(folder / "data.lock", "The data of the simulation", OPEN_SECONDS):
        if question.project is not None:
            data = open_project(question.project)
        else:
            data = open_data(Path(question.data), folder / "data", report)
        known = folder / "pool.txt"
        if not known.exists():
            known.write_text(data.pool.digest)
        elif known.read_text() != data.pool.digest:
            data.store.close()
            raise Conflict("Items or known labels changed since this simulation started. Start a new one.")
    return data


def cache_of(question: Question, folder: Path) -> Path:
    """The cache of prepared inputs and kernel features. A project's cache is shared with its rounds."""
    return folder / "cache" if question.project is None else from_environment().home / "cache" / "rows"


def open_project(project_id: int) -> StudyData:
    store = Store.open()
    read = shared_media.reader(store, project_id)
    return StudyData(pool=pool_of(store, project_id), read=read, store=store, project_id=project_id)


def open_data(data: Path, folder: Path, report: Report = ignore) -> StudyData:
    """Open the data set at `data`. It is imported into a store in `folder` the first time."""
    store = Store.open(f"sqlite:///{folder / 'data.sqlite'}", folder)
    name = f"study of {hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:12]}"
    known = {project.name: project for project in projects.list_projects(store)}
    if name in known and known[name].settings.extra.get("complete"):
        project = known[name]
    else:
        project = known.get(name) or projects.create_project(store, name, kind_of(data))
        options = ImportOptions(labels="hidden", storage="link", classes="add")
        run_import(store, project.id, open_source(data, locate=locator(store)), options, report)
        settings = dataclasses.replace(project.settings, extra={"complete": True})
        projects.update_project(store, project.id, settings=settings)
    read = shared_media.reader(store, project.id)
    return StudyData(pool=pool_of(store, project.id), read=read, store=store, project_id=project.id)


def pool_of(store: Store, project_id: int) -> LabeledPool:
    """The items of a project with known labels, sorted by hash, so that the order is the same on every machine."""
    names = {row.id: row.name for row in list_classes(store, project_id)}
    position = {class_id: place for place, class_id in enumerate(names)}
    rows = known_labels(store, project_id)
    if not rows:
        raise InvalidInput("No item has a known label, so there is nothing to simulate. Import the items with labels.")
    project = projects.get_project(store, project_id)
    return LabeledPool(
        kind=project.kind,
        class_names=tuple(names.values()),
        hashes=tuple(row.sha256 for row in rows),
        truth=np.array([position[row.class_id] for row in rows], np.int64),
        test=np.array([row.held_out for row in rows], np.bool_),
    )


def kind_of(data: Path) -> MediaKind:
    """The media type of a data set."""
    source = open_source(data)
    try:
        return find_media_kind(source)
    finally:
        source.close()
