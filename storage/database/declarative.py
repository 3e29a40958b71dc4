"""The declarative base of all tables and the column types they share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Index, Integer, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

BigId = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows automatically only for INTEGER PRIMARY KEY


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes on every database; a naive one is a mistake and is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class WholeSeconds(FunctionElement[int]):
    """Whole seconds since 1970 of a UtcDateTime, with the fraction cut off as Python's int() does. Both databases would
    round: SQLite from half a millisecond before the next second on."""

    type = BigInteger()
    inherit_cache = True


@compiles(WholeSeconds, "sqlite")
def _whole_seconds_of_text(element: WholeSeconds, compiler: SQLCompiler, **options: Any) -> str:
    moment = compiler.process(element.clauses, **options)
    return f"CAST(strftime('%s', substr({moment}, 1, 19)) AS INTEGER)"  # without the fraction: 2026-11-19 10:00:00


@compiles(WholeSeconds, "postgresql")
def _whole_seconds_of_timestamp(element: WholeSeconds, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(floor(extract(epoch FROM {compiler.process(element.clauses, **options)})) AS BIGINT)"


class Table(DeclarativeBase):
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: JSON, list[Any]: JSON, int: BigId}  # noqa: RUF012


def rare_rows(name: str, fact: str) -> Index:
    """An index of the few rows where the boolean column `fact` holds: counting them does not read the whole pool."""
    return Index(name, "project_id", sqlite_where=text(f"{fact} = 1"), postgresql_where=text(fact))


def rows_where(name: str, condition: str, *columns: str) -> Index:
    """An index of the rows that meet an SQL condition. SQLite uses it for queries that repeat it word for word."""
    return Index(name, *columns, sqlite_where=text(condition), postgresql_where=text(condition))
