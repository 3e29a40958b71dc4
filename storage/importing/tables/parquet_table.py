"""Parquet tables with media in their cells, as written by Hugging Face datasets.

A media column is a struct of `bytes` and `path`, or plain bytes. Rows are read without it; the bytes of a row are read
on demand, one row group in memory at a time. Class names come from the features in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from storage.importing.tables.columns import PATHS
from storage.importing.tables.rows import IN_TABLE, TableRow
from storage.importing.zip_reader import BadEntry

BATCH_ROWS = 1024
WHOLE_ROW = "winnow"  # the column of an export of Winnow with the complete row as JSON


def parquet_rows(path: Path) -> Iterator[TableRow]:
    """The rows without media bytes; a media cell is {"path": …, IN_TABLE: True}."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            media = media_column(file.schema_arrow)
            columns, names = _columns_without_bytes(file.schema_arrow, media), class_labels(file.schema_arrow)
            number = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                for values in batch.to_pylist():
                    number += 1
                    yield TableRow(number, _row(values, media, names))
    except pyarrow.ArrowInvalid as problem:
        raise InvalidInput(f"{path.name} is not a readable Parquet file: {problem}.") from problem


def _row(values: dict[str, Any], media: str, names: dict[str, list[str]]) -> dict[str, Any]:
    for column, known in names.items():
        given = values.get(column)
        if isinstance(given, int):
            values[column] = known[given] if 0 <= given < len(known) else None  # -1: no label
    if media and isinstance(whole := values.get(WHOLE_ROW), str):
        values = _whole_row(whole) | {media: values.get(media)}
    if media:
        cell = values.get(media)
        values[media] = {"path": cell.get("path") if isinstance(cell, dict) else None, IN_TABLE: True}
    return values


def _whole_row(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def media_column(schema: Any) -> str:
    """The column with media bytes; "" if there is none."""
    import pyarrow.types as types

    for field in schema:
        kind = field.type
        if types.is_struct(kind) and {"bytes", "path"} <= {kind.field(place).name for place in range(kind.num_fields)}:
            return str(field.name)
    for field in schema:
        binary = types.is_binary(field.type) or types.is_large_binary(field.type)
        if binary and field.name.casefold() in (*PATHS, "bytes"):
            return str(field.name)
    return ""


def _columns_without_bytes(schema: Any, media: str) -> list[str]:
    import pyarrow.types as types

    columns = [name for name in schema.names if name != media]
    if media and types.is_struct(schema.field(media).type):
        columns.append(f"{media}.path")
    return columns


def class_labels(schema: Any) -> dict[str, list[str]]:
    """column -> class names, for the `ClassLabel` features that the file declares."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    found = features.items() if isinstance(features, dict) else ()
    return {
        name: [str(one) for one in about["names"]]
        for name, about in found
        if isinstance(about, dict) and about.get("_type") == "ClassLabel" and isinstance(about.get("names"), list)
    }


class ParquetMedia:
    """The media cells of one file, by row number. Reading rows in order reads each row group once."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self._file = parquet.ParquetFile(path)
        self._column = media_column(self._file.schema_arrow)
        self._group, self._first, self._cells = -1, 0, None

    @property
    def bytes_per_row(self) -> int:
        """The average number of bytes per row, as stored."""
        about = self._file.metadata
        total = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        return int(total // max(about.num_rows, 1))

    def read(self, number: int) -> bytes:
        """The bytes of row `number`, counted from 1; raises `BadEntry` if it has none."""
        row = number - 1
        if self._cells is None or not self._first <= row < self._first + len(self._cells):
            self._load(row)
        assert self._cells is not None
        value = self._cells[row - self._first].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not data:
            raise BadEntry("The row has no bytes.")
        return bytes(data)

    def _load(self, row: int) -> None:
        first, about = 0, self._file.metadata
        for group in range(about.num_row_groups):
            n_rows = about.row_group(group).num_rows
            if row < first + n_rows:
                self._group, self._first = group, first
                self._cells = self._file.read_row_group(group, columns=[self._column]).column(0)
                return
            first += n_rows
        raise BadEntry(f"The table has {first:,} rows; there is no row {row + 1:,}.")

    def close(self) -> None:
        self._file.close()
