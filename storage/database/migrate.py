"""Alembic run from code: finds the version of a store and upgrades it to this code's version. There is no downgrade."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from storage.database.schema import METADATA

VERSION_TABLE = "winnow_version"
ADVISORY_LOCK = 0x57696E6E  # "Winn"
State = Literal["empty", "current", "old", "newer", "broken"]
Backup = Callable[[], object]


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


@cache
def head() -> str:
    """The version that this code writes. Finding it loads every migration."""
    revision = scripts().get_current_head()
    assert revision is not None
    return revision


def version(connection: Connection) -> str | None:
    """The version stored in the database; None without one."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def state(engine: Engine) -> State:
    """The version of the store compared with this code. `broken`: Winnow's tables without a version, which only an
    interrupted or foreign change can cause."""
    with engine.connect() as connection:
        stored = version(connection)
        if stored is None:
            ours = set(METADATA.tables) & set(inspect(connection).get_table_names())
            return "broken" if ours else "empty"
        if stored == head():
            return "current"
        known = {script.revision for script in scripts().walk_revisions()}
        return "old" if stored in known else "newer"


def upgrade(engine: Engine, backup: Backup | None, target: str = "head") -> None:
    """Run all missing steps in one transaction, after `backup`. Of two concurrent calls, the second has no effect."""
    directory = scripts()
    with _exclusive_connection(engine) as connection:
        if version(connection) == head():
            return
        connection.rollback()
        if backup is not None:
            backup()
        with connection.begin(), EnvironmentContext(Config(), directory) as environment:
            environment.configure(
                connection=connection,
                target_metadata=METADATA,
                version_table=VERSION_TABLE,
                transactional_ddl=False,  # all steps run in the transaction opened here
                fn=lambda revision, _: directory._upgrade_revs(target, revision),
            )
            environment.run_migrations()


@contextlib.contextmanager
def _exclusive_connection(engine: Engine) -> Iterator[Connection]:
    """A connection held while no other process can migrate; for SQLite, the caller holds the store's lock files."""
    with engine.connect() as connection:
        if connection.dialect.name != "postgresql":
            connection.commit()
            yield connection
            return
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        connection.commit()
        try:
            yield connection
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": ADVISORY_LOCK})
            connection.commit()


# One statement for all tables: SQLAlchemy's inspector sends at least one for each table and parses every type.
COLUMNS = {
    "sqlite": "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'",
    "postgresql": "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema()",
}


def missing_parts(engine: Engine) -> list[str]:
    """Tables and columns that this code needs and the store lacks, as text."""
    with engine.connect() as connection:
        found = {(table, column) for table, column in connection.execute(text(COLUMNS[connection.dialect.name]))}
    tables = {table for table, _ in found}
    missing = []
    for table in METADATA.sorted_tables:
        if table.name not in tables:
            missing.append(f"the table {table.name}")
            continue
        lacking = [column.name for column in table.columns if (table.name, column.name) not in found]
        missing.extend(f"{table.name}.{name}" for name in lacking)
    return missing
