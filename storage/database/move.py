"""Copying one store into another: SQLite to PostgreSQL for a growing team, and in both directions for backups.

`copy_rows` makes the target equal to the source, table by table: missing and different rows are written, extra rows are
deleted. Equal tables are skipped, so an interrupted move continues where it stopped, and a second run changes nothing.
At the end, counts and hashes of all tables are compared. Leases, cursors and worker heartbeats belong to a running app
and are not copied.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, bindparam, delete, func, select, text, update
from sqlalchemy import Table as SqlTable

from core.atomic_files import temporary_path
from core.errors import Conflict, NotFound, StoreUnusable
from core.types import Progress, Report, ignore
from storage.database.schema import METADATA, Item, Lease, Project, QueueCursor, Setting, Worker
from storage.database.store import Store, insert_for
from storage.database.tables.recordings import Recording
from storage.media.packs import PackWriter

NOT_COPIED = {Lease.__tablename__, QueueCursor.__tablename__, Worker.__tablename__}
BLOCK = 1_000
IDENTITY, MARK = "store", "moving"
HASH_NAME = re.compile(r"[0-9a-f]{64}(\.|$)")


@dataclass(frozen=True, slots=True)
class TableSum:
    """Row count and content hash of a table, equal on every database."""

    n_rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    tables: dict[str, TableSum]
    n_files: int  # media and arrays copied (0 when both stores share their folder)

    @property
    def n_rows(self) -> int:
        return sum(table.n_rows for table in self.tables.values())


def move(source: Store, target: Store, report: Report = ignore) -> MoveReport:
    """Copy the whole store. The source is write-locked during the copy and is not changed."""
    source_id = _identity(source)
    _refuse_foreign(target, source_id)
    n_files = copy_files(source, target, report)
    with source.write() as connection:  # locks out writers until the comparison is done
        _mark(target, {"from": source_id})
        sums = copy_rows(connection, target, report)
    return MoveReport(tables=sums, n_files=n_files)


class RowTarget(Protocol):
    """Where rows are copied to: a store, or one transaction of a restore."""

    @property
    def is_sqlite(self) -> bool: ...

    def read(self) -> AbstractContextManager[Connection]: ...

    def write(self) -> AbstractContextManager[Connection]: ...


def copy_rows(source: Connection, target: RowTarget, report: Report = ignore) -> dict[str, TableSum]:
    """Make the target's tables equal to those that `source` reads, and verify it."""
    tables = moved_tables()
    sums = {table.name: table_sum(source, table) for table in tables}
    stale = [table for table in tables if not _same(target, table, sums[table.name])]
    for table in reversed(stale):
        _delete_extra(source, target, table)
    for done, table in enumerate(stale):
        report(Progress("rows", done, len(stale), table.name))
        for block in _blocks(source, table):
            _write_block(target, table, block)
        _set_sequence(target, table)
    report(Progress("compare", len(stale), len(stale)))
    different = [table.name for table in tables if not _same(target, table, sums[table.name])]
    if different:
        raise StoreUnusable(
            f"After the move {', '.join(different)} differ from the source. Is something else writing to the target? "
            "Stop it and run the move again; the source is unchanged."
        )
    return sums


def moved_tables() -> list[SqlTable]:
    """The copied tables, in an order in which references allow inserts."""
    return [table for table in METADATA.sorted_tables if table.name not in NOT_COPIED]


def table_sum(connection: Connection, table: SqlTable) -> TableSum:
    """Row count and a hash of all rows in the order of their keys, without the settings of the move itself."""
    digest, n_rows = hashlib.sha256(), 0
    query = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=BLOCK)
    for row in connection.execute(query):
        if table.name == Setting.__tablename__ and row[0] == MARK:
            continue
        digest.update(json.dumps([_plain(value) for value in row], sort_keys=True).encode())
        n_rows += 1
    return TableSum(n_rows, digest.hexdigest())


def copy_files(source: Store, target: Store, report: Report = ignore) -> int:
    """Copy media and arrays that are missing in the target; existing files are correct: names are hashes."""
    if source.home == target.home:
        return 0
    n_files = 0
    for part in ("media", "artifacts"):
        root = source.home / part
        files = [path for path in sorted(root.glob("??/*")) if HASH_NAME.match(path.name) and path.is_file()]
        for done, path in enumerate(files):
            report(Progress(part, done, len(files)))
            n_files += _copy_file(path, target.home / part / path.relative_to(root))
    return n_files + _copy_packed(source, target, report)


def _copy_packed(source: Store, target: Store, report: Report) -> int:
    """Copy packed contents that the target lacks into packs of the target; returns how many. A content that cannot be
    read is skipped, unless an item refers to it: then StoreUnusable is raised."""
    writer, n_files = PackWriter(target.media.root), 0
    try:
        for done, sha256 in enumerate(source.media.packs.index.hashes()):
            if done % BLOCK == 0:
                report(Progress("media", done, 0, "packed"))
            try:
                data = source.media.read(sha256)
            except NotFound as problem:
                if _is_wanted(source, sha256):
                    raise StoreUnusable(f"{problem} It was not copied.") from problem
                continue
            if not (target.media.path(sha256).is_file() or writer.holds(sha256, data)):
                writer.append(sha256, data)
                n_files += 1
    finally:
        writer.close()
    if n_files:
        target.media.sync_all()
    return n_files


def _is_wanted(store: Store, sha256: str) -> bool:
    queries = [
        select(t.project_id).where(t.sha256 == sha256, t.link_path.is_(None)).limit(1) for t in (Item, Recording)
    ]
    with store.read() as connection:
        return any(connection.execute(query).first() is not None for query in queries)


def _copy_file(source: Path, target: Path) -> bool:
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_path(target) as partial:
        shutil.copyfile(source, partial)
        with open(partial, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if not target.name.startswith(found):
            raise StoreUnusable(f"{source} does not match the hash in its name; it was not copied.")
        partial.replace(target)
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value


def _same(target: RowTarget, table: SqlTable, wanted: TableSum) -> bool:
    with target.read() as connection:
        n_rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if table.name != Setting.__tablename__ and n_rows != wanted.n_rows:
            return False
        return table_sum(connection, table) == wanted


def _blocks(source: Connection, table: SqlTable) -> Iterator[list[dict[str, Any]]]:
    query = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=BLOCK)
    for part in source.execute(query).partitions(BLOCK):
        yield [dict(row._mapping) for row in part]


def _write_block(target: RowTarget, table: SqlTable, block: Sequence[dict[str, Any]]) -> None:
    """Insert or overwrite; references within the table are set after all rows of the block are written."""
    own = [column for column in table.columns if any(key.column.table is table for key in column.foreign_keys)]
    keys = [column.name for column in table.primary_key.columns]
    with target.write() as connection:
        statement = insert_for(connection, table)
        others = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
        if others:
            statement = statement.on_conflict_do_update(index_elements=keys, set_=others)
        else:
            statement = statement.on_conflict_do_nothing()
        bare = {column.name: None for column in own}
        connection.execute(statement, [row | bare for row in block])
        for column in own:
            referring = [{"k": row[keys[0]], "v": row[column.name]} for row in block if row[column.name] is not None]
            if referring:
                which = table.columns[keys[0]] == bindparam("k")
                connection.execute(update(table).where(which).values({column.name: bindparam("v")}), referring)


def _delete_extra(source: Connection, target: RowTarget, table: SqlTable) -> None:
    columns = list(table.primary_key.columns)
    with target.write() as connection:
        there = {tuple(row) for row in connection.execute(select(*columns))}
        if not there:
            return
        extra = sorted(there - {tuple(row) for row in source.execute(select(*columns))})
        if table.name == Setting.__tablename__:
            extra = [key for key in extra if key != (MARK,)]
        if extra:
            statement = delete(table).where(*(column == bindparam(f"k{i}") for i, column in enumerate(columns)))
            connection.execute(statement, [{f"k{i}": value for i, value in enumerate(key)} for key in extra])


def _set_sequence(target: RowTarget, table: SqlTable) -> None:
    """Let PostgreSQL number new rows after the highest copied one."""
    column = table.autoincrement_column
    if target.is_sqlite or column is None:
        return
    with target.write() as connection:
        sequence = connection.execute(
            text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table.name, "column": column.name}
        ).scalar()
        if sequence is not None:
            highest = select(func.coalesce(func.max(column), 0)).scalar_subquery()
            connection.execute(select(func.setval(sequence, highest + 1, False)))


def _identity(store: Store) -> str:
    """The identifier of a store, created on first use."""
    with store.write() as connection:
        row = connection.execute(select(Setting.value).where(Setting.key == IDENTITY)).scalar()
        if row is None:
            row = {"id": str(uuid.uuid4())}
            connection.execute(insert_for(connection, Setting).values(key=IDENTITY, value=row))
        return str(row["id"])


def _refuse_foreign(target: Store, source_id: str) -> None:
    """Refuse a target that has its own projects or those of another store: they would be deleted."""
    with target.read() as connection:
        mark = connection.execute(select(Setting.value).where(Setting.key == MARK)).scalar()
        n_projects = connection.execute(select(func.count()).select_from(Project)).scalar_one()
    if n_projects and (mark or {}).get("from") != source_id:
        raise Conflict(
            f"The target already holds {n_projects} project{'s' if n_projects > 1 else ''} that did not come from this "
            "store. Choose an empty database."
        )


def _mark(target: Store, value: dict[str, Any]) -> None:
    with target.write() as connection:
        statement = insert_for(connection, Setting).values(key=MARK, value=value)
        connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": value}))
