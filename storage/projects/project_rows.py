"""All rows of a project in all tables, found through the foreign keys of the schema."""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, Connection, delete, null, select, update
from sqlalchemy import Table as SqlTable

from storage.database.schema import METADATA, Artifact, Project, Round, Setting
from storage.media.shared import settings_prefix
from storage.rounds.comparisons import PREFIX
from storage.rounds.names import settings_key


def delete_project_rows(connection: Connection, project_id: int) -> list[str]:
    """Delete every row of a project; returns the names (`sha256` + suffix) of its artifacts."""
    artifacts = select(Artifact.sha256, Artifact.suffix).where(Artifact.project_id == project_id)
    names = sorted({f"{row.sha256}{row.suffix}" for row in connection.execute(artifacts)})
    rounds = connection.execute(select(Round.id).where(Round.project_id == project_id)).scalars().all()
    keys = [settings_key(project_id), *(f"{PREFIX}{round_id}" for round_id in rounds)]
    connection.execute(delete(Setting).where(Setting.key.in_(keys)))
    connection.execute(delete(Setting).where(Setting.key.startswith(settings_prefix(project_id), autoescape=True)))
    for table in reversed(METADATA.sorted_tables):
        if table.name == Project.__tablename__ or (condition := _belongs(table, project_id)) is None:
            continue
        for column in _references(table, table):
            connection.execute(update(table).where(condition).values({column.name: null()}))
        if "project_id" in table.c or _is_part(table):
            connection.execute(delete(table).where(condition))
        else:  # an independent row that only refers to the project, such as a worker with its round
            for column in _to_project(table):
                connection.execute(update(table).where(condition).values({column.name: null()}))
    connection.execute(delete(Project).where(Project.id == project_id))
    return names


def _belongs(table: SqlTable, project_id: int) -> ColumnElement[bool] | None:
    """The condition for rows of the project; None for tables without such rows. Rows that outlive the project have no
    foreign key."""
    if "project_id" in table.c:
        return table.c.project_id == project_id if table.c.project_id.foreign_keys else None
    for column in _to_project(table):
        parent = next(iter(column.foreign_keys)).column.table
        return column.in_(select(parent.c.id).where(parent.c.project_id == project_id))
    return None


def _to_project(table: SqlTable) -> list[Column[int]]:
    """Columns that refer to a table whose rows belong to projects."""
    return [
        column
        for column in table.columns
        for key in column.foreign_keys
        if "project_id" in key.column.table.c and key.column.table is not table
    ]


def _references(table: SqlTable, target: SqlTable) -> list[Column[int]]:
    return [column for column in table.columns if any(key.column.table is target for key in column.foreign_keys)]


def _is_part(table: SqlTable) -> bool:
    """Whether each row is part of a row of the project, which is so if the reference is required."""
    return not _to_project(table)[0].nullable
