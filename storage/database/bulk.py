"""Statements about many rows: inserts, lists of values, and lists cut into chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ARRAY, Connection, Text, any_, func, insert, literal, select

from storage.database.declarative import Table

CHUNK = 400  # identifiers in one IN (...) list
Identifier = TypeVar("Identifier", int, str)


def chunks(identifiers: Iterable[Identifier], size: int = CHUNK) -> Iterator[list[Identifier]]:
    """Consecutive parts of at most `size` identifiers, for IN (...) lists."""
    identifiers = list(identifiers)
    for start in range(0, len(identifiers), size):
        yield identifiers[start : start + size]


def next_ids(connection: Connection, table: type[Table], n_ids: int) -> range | list[int]:
    """Identifiers for rows about to be inserted, in a transaction that may write."""
    if connection.dialect.name == "sqlite":
        first = connection.exec_driver_sql(f"SELECT coalesce(max(id), 0) + 1 FROM {table.__tablename__}").scalar_one()
        return range(first, first + n_ids)
    text = f"SELECT nextval(pg_get_serial_sequence('{table.__tablename__}', 'id')) FROM generate_series(1, {n_ids:d})"
    return list(connection.exec_driver_sql(text).scalars())


def among(connection: Connection, column: Any, values: Sequence[str]) -> Any:
    """The condition that `column` is one of `values`, which are passed as one parameter, however many there are."""
    if connection.dialect.name == "sqlite":
        listed = func.json_each(json.dumps(list(values))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(literal(list(values), ARRAY(Text)))


def insert_rows(
    connection: Connection, table: type[Table], columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert `rows`, whose values are in the order of `columns`; omitted columns take the database's default.

    SQLite's driver takes the tuples unchanged, several times faster than a statement that names each value. Numbers,
    text and booleans need no conversion there; datetimes are converted by the column's type.
    """
    if not rows:
        return
    if connection.dialect.name != "sqlite":
        connection.execute(insert(table), [dict(zip(columns, row, strict=True)) for row in rows])
        return
    times = [place for place, value in enumerate(rows[0]) if isinstance(value, datetime)]

    @cache
    def stored(value: datetime, place: int) -> Any:
        convert = table.__table__.c[columns[place]].type._cached_bind_processor(connection.dialect)
        return value if convert is None else convert(value)

    def ready(row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for place in times:
            values[place] = stored(values[place], place)
        return tuple(values)

    quote = connection.dialect.identifier_preparer.quote
    names, marks = ", ".join(map(quote, columns)), ", ".join("?" * len(columns))
    text = f"INSERT INTO {quote(table.__tablename__)} ({names}) VALUES ({marks})"
    connection.exec_driver_sql(text, [ready(row) for row in rows] if times else list(rows))
