"""Projects and their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from core.config import Preset, from_dict, require
from core.errors import Conflict, NotFound
from core.types import MediaKind
from storage.database.schema import Project
from storage.database.store import Store, now
from storage.database.strings import named, storable
from storage.labeling import projections
from storage.projects import class_rows, roles
from storage.projects.roles import Action

KINDS = ("audio", "image")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSettings:
    """How a project is labeled and what its rounds do. Stored as JSON; missing fields take their defaults."""

    labels_per_item: int = 1
    suggestions: Literal["show", "hide", "random"] = "show"
    hidden_share: float = 0.2  # share of the items, if suggestions are hidden at random
    blind: bool = True  # with several labels per item: no suggestion and no label of others before one's own label
    live: bool = True  # predictions follow labels between rounds (`app.live`)
    automatic_rounds: bool = True
    batch_size: int = 10
    strategy: str = "bico"
    preset: Preset = "auto"
    seed: int = 0
    lease_seconds: int = 600
    kernel_network: str = ""  # empty: the preset's
    media: dict = field(default_factory=dict)  # type: ignore[type-arg]  # `MediaConfig` as JSON; empty: the preset's
    changes: dict = field(default_factory=dict)  # type: ignore[type-arg]  # "training.method" -> "mixmatch"
    windows: dict = field(default_factory=dict)  # type: ignore[type-arg]  # `WindowOptions` of the last cut; empty: none
    extra: dict = field(default_factory=dict)  # type: ignore[type-arg]  # small JSON values; `from_dict` checks the class

    def __post_init__(self) -> None:
        require(1 <= self.labels_per_item <= 100, f"{self.labels_per_item} labels per item; use 1 to 100.")
        require(0 <= self.hidden_share <= 1, f"The hidden share is {self.hidden_share}; use 0 to 1.")
        require(1 <= self.batch_size <= 10_000, f"The batch size is {self.batch_size}; use 1 to 10,000.")
        require(5 <= self.lease_seconds <= 86_400, f"Items are held for {self.lease_seconds} s; use 5 to 86,400.")

    @property
    def is_blind(self) -> bool:
        """Whether annotators label without seeing suggestions or the labels of others; only with several per item."""
        return self.blind and self.labels_per_item > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    id: int
    name: str
    kind: MediaKind
    guidelines: str
    settings: ProjectSettings
    revision: int
    created_at: datetime
    archived_at: datetime | None


def create_project(
    store: Store,
    name: str,
    kind: str,
    class_names: Sequence[str] = (),
    *,
    settings: ProjectSettings | None = None,
    guidelines: str = "",
) -> ProjectRow:
    """Create a project with its classes in order; raises Conflict if the name exists. With an identity provider, its
    creator is its owner (`roles.own_new_project`)."""
    roles.check_create()
    require(kind in KINDS, f"A project holds audio or image, not {kind!r}.")
    values = {
        "name": named(name, "The project's name", 200),
        "kind": kind,
        "guidelines": storable(guidelines, "The guidelines"),
        "settings": dataclasses.asdict(settings or ProjectSettings()),
        "revision": 1,
        "created_at": now(),
    }
    with store.write() as connection:
        _refuse_taken(connection, name)
        try:
            project_id = connection.execute(insert(Project).values(values).returning(Project.id)).scalar_one()
        except IntegrityError as error:  # another process used the name after the check above
            raise Conflict(_taken(name)) from error
        for class_name in class_names:
            class_rows.add_in(connection, project_id, class_name, by=None)
        roles.own_new_project(connection, project_id)
        return row_in(connection, project_id)


def list_projects(store: Store, include_archived: bool = False) -> list[ProjectRow]:
    query = select(Project.__table__).order_by(Project.id)
    if not include_archived:
        query = query.where(Project.archived_at.is_(None))
    with store.read() as connection:
        visible = roles.visible_projects(connection)
        rows = [project_row(row) for row in connection.execute(query)]
    return [row for row in rows if visible is None or row.id in visible]


def get_project(store: Store, id_or_name: int | str) -> ProjectRow:
    with store.read() as connection:
        row = row_in(connection, id_or_name)
        roles.check_in(connection, row.id, "read")
        return row


def update_project(
    store: Store,
    project_id: int,
    *,
    name: str | None = None,
    guidelines: str | None = None,
    settings: ProjectSettings | None = None,
) -> ProjectRow:
    """Change the given values. With more labels per item, finished items wait again; with fewer, they stop waiting."""
    values: dict[str, Any] = {}
    if name is not None:
        values["name"] = named(name, "The project's name", 200)
    if guidelines is not None:
        values["guidelines"] = storable(guidelines, "The guidelines")
    if settings is not None:
        values["settings"] = dataclasses.asdict(settings)
    with store.write() as connection:
        touch(connection, project_id)
        before = row_in(connection, project_id)
        if name is not None and name != before.name:
            _refuse_taken(connection, name)
        if values:
            connection.execute(update(Project).where(Project.id == project_id).values(values))
        if settings is not None and settings.labels_per_item != before.settings.labels_per_item:
            projections.refresh_waiting(connection, project_id, settings.labels_per_item)
        return row_in(connection, project_id)


def change_settings(store: Store, project_id: int, values: Mapping[str, Any]) -> ProjectRow:
    """Replace some settings by name, in one transaction; concurrent changes of other settings are kept."""
    with store.write() as connection:
        touch(connection, project_id)
        before = row_in(connection, project_id).settings
        settings = from_dict(ProjectSettings, dataclasses.asdict(before) | dict(values))
        stored = dataclasses.asdict(settings)
        connection.execute(update(Project).where(Project.id == project_id).values(settings=stored))
        if settings.labels_per_item != before.labels_per_item:
            projections.refresh_waiting(connection, project_id, settings.labels_per_item)
        return row_in(connection, project_id)


def archive_project(store: Store, project_id: int) -> ProjectRow:
    """Hide a project and refuse changes until it is restored; nothing is deleted."""
    return _set_archived(store, project_id, now())


def restore_project(store: Store, project_id: int) -> ProjectRow:
    """Undo `archive_project`: the project is listed and can be changed again. No effect on an active project."""
    return _set_archived(store, project_id, None)


def _set_archived(store: Store, project_id: int, at: datetime | None) -> ProjectRow:
    with store.write() as connection:
        row_in(connection, project_id)
        roles.check_in(connection, project_id, "own")
        connection.execute(
            update(Project).where(Project.id == project_id).values(archived_at=at, revision=Project.revision + 1)
        )
        return row_in(connection, project_id)


def touch(connection: Connection, project_id: int, action: Action = "edit") -> int:
    """`lock` for a change that is refused if the project is archived, or if the actor may not do it; returns the new
    revision."""
    project = lock(connection, project_id)
    roles.check_in(connection, project_id, action)
    if project.archived_at is not None:
        raise Conflict(f"The project {project.name} is archived. Restore it to change it.")
    return project.revision


def lock(connection: Connection, project_id: int) -> ProjectRow:
    """Lock the project's row, increment its revision and return it. Every change within a project starts with this, so
    changes of one project are serialized and `label_events.sequence` grows in the order of commits."""
    row = connection.execute(
        update(Project)
        .where(Project.id == project_id)
        .values(revision=Project.revision + 1)
        .returning(*Project.__table__.columns)
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no project {project_id}.")
    return project_row(row)


def project_row(row: Row[Any]) -> ProjectRow:
    values = row._asdict()
    return ProjectRow(**(values | {"settings": from_dict(ProjectSettings, values["settings"])}))


def row_in(connection: Connection, id_or_name: int | str) -> ProjectRow:
    column = Project.name if isinstance(id_or_name, str) else Project.id
    row = connection.execute(select(Project.__table__).where(column == id_or_name)).one_or_none()
    if row is None:
        raise NotFound(f"There is no project {id_or_name!r}.")
    return project_row(row)


def _refuse_taken(connection: Connection, name: str) -> None:
    if connection.execute(select(Project.id).where(Project.name == name)).one_or_none() is not None:
        raise Conflict(_taken(name))


def _taken(name: str) -> str:
    return f"There is already a project named {name!r}. Choose another name."
