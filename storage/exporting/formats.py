"""Writers: each takes rows one at a time and writes a table that `storage.importing.tables.readers` can read.

CSV cells that a spreadsheet would evaluate as a formula get a leading apostrophe. The column `guarded_cells` names
these cells of the row, so that an import removes exactly these apostrophes. No CSV is safe in every program, and a
spreadsheet that saves the file again may drop the apostrophes; JSONL and Parquet hold every value exactly.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from storage.exporting import reasons as export_reasons
from storage.exporting.columns import Columns
from storage.exporting.rows import COLUMNS, OTHER_COLUMNS
from storage.exporting.votes import VOTE_COLUMNS
from storage.exporting.weights import WEIGHT
from storage.importing.tables.readers import GUARD

TEXT_COLUMNS = (
    "name", "label", "annotator", "strategy", "suggested_label", "note", "label_given", "path", "file_name",
    "recording", "group",
    *export_reasons.TEXT_COLUMNS,
)  # fmt: skip
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20" + "\t\r\n" + GUARD)
_INVISIBLE = " \t\r\n\v\f\u00a0\u200b\u200c\u200d\u2060\ufeff\u202a\u202b\u202d\u202e\u200e\u200f"


class TableWriter(Protocol):
    def __enter__(self) -> TableWriter: ...

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None: ...

    def write(self, values: dict[str, Any]) -> None: ...


def is_formula(text: str) -> bool:
    """Whether a spreadsheet may evaluate this text as a formula (full-width signs and hidden spaces too)."""
    return text.startswith(_FORMULA) or text.lstrip(_INVISIBLE).startswith(_FORMULA)


def guarded(values: dict[str, Any], columns: Sequence[str]) -> list[Any]:
    """The cells of one CSV row; the last cell names those that got an apostrophe."""
    cells: list[Any] = []
    names = []
    for name in columns:
        value = values.get(name)
        if isinstance(value, list):
            value = json.dumps(value, ensure_ascii=False) if value else ""
        elif isinstance(value, bool):
            value = "true" if value else "false"
        if name in TEXT_COLUMNS and isinstance(value, str) and is_formula(value):
            names.append(name)
            value = GUARD + value
        cells.append("" if value is None else value)
    return [*cells, " ".join(names)]


class CsvWriter:
    """A table for spreadsheets, with a byte order mark, by which they recognize UTF-8. A slim table is for programs and
    has neither the mark nor the column `guarded_cells`."""

    def __init__(self, path: Path, columns: Sequence[str] = COLUMNS, slim: bool = False) -> None:
        self._columns, self._slim = columns, slim
        encoding = "utf-8" if slim else "utf-8-sig"
        self._file = open(path, "x", encoding=encoding, newline="")  # noqa: SIM115 (closed on exit)
        self._writer = csv.writer(self._file, lineterminator="\r\n")
        self._writer.writerow(columns if slim else [*columns, "guarded_cells"])

    def __enter__(self) -> CsvWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._file.close()

    def write(self, values: dict[str, Any]) -> None:
        cells = guarded(values, self._columns)
        self._writer.writerow(cells[:-1] if self._slim else cells)


class JsonlWriter:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "x", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed on exit)

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._file.close()

    def write(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")


class ParquetWriter:
    """Row groups of 5,000 rows; times are timestamps in UTC."""

    group = 5_000

    def __init__(self, path: Path, columns: Sequence[str] = COLUMNS) -> None:
        import pyarrow
        from pyarrow import parquet

        self._pyarrow = pyarrow
        self._schema = _parquet_schema(columns)
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._tables: list[Any] = []  # of columns that are not written yet

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def write(self, values: dict[str, Any]) -> None:
        others = [_with_time(other) for other in values["other_labels"]]
        self._rows.append(_with_time(values) | {"other_labels": others})
        if len(self._rows) >= self.group:
            self._flush()

    def write_columns(self, columns: Columns) -> None:
        """The same as `write` for each row. Times are datetimes, and rows share their votes."""
        arrays = []
        for kind in self._schema:
            values = columns.values[kind.name]
            if kind.name in VOTE_COLUMNS:
                distinct = self._pyarrow.array([votes[kind.name] for votes in columns.votes], kind.type)
                arrays.append(distinct.take(self._pyarrow.array(columns.vote_of, self._pyarrow.int32())))
            elif values is None:
                arrays.append(self._pyarrow.nulls(columns.n, kind.type))
            else:
                if kind.name == "other_labels":
                    values = [[_with_time(other) for other in others] for others in values]
                arrays.append(self._pyarrow.array(values, kind.type))
        self._tables.append(self._pyarrow.Table.from_arrays(arrays, schema=self._schema))
        if sum(len(table) for table in self._tables) >= self.group:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._tables.append(self._pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        if self._tables:
            self._writer.write_table(self._pyarrow.concat_tables(self._tables).combine_chunks())
        self._rows, self._tables = [], []


def _with_time(values: dict[str, Any]) -> dict[str, Any]:
    at = values["at"]
    return values if at is None else values | {"at": datetime.fromisoformat(at)}


def _parquet_schema(columns: Sequence[str]) -> Any:
    import pyarrow as pa

    floats = (
        WEIGHT,
        "confidence",
        "suggested_confidence",
        "seconds",
        "duration",
        "start",
        "end",
        *export_reasons.FLOAT_COLUMNS,
    )
    whole = (
        "n_labels",
        "round",
        "sequence",
        "n_bytes",
        "sample_rate",
        "channels",
        "width",
        "height",
        "first_frame",
        "last_frame",
    )
    kinds = dict.fromkeys(floats, pa.float64()) | {"at": pa.timestamp("us", "UTC")}
    kinds |= dict.fromkeys((*whole, *export_reasons.WHOLE_COLUMNS), pa.int64())
    kinds |= dict.fromkeys(("contested", "flagged", *export_reasons.FLAG_COLUMNS), pa.bool_())
    kinds["votes"] = pa.list_(pa.struct([("label", pa.string()), ("n", pa.int64())]))
    other = pa.struct([(name, kinds.get(name, pa.string())) for name in OTHER_COLUMNS])
    kinds |= {"other_names": pa.list_(pa.string()), "other_labels": pa.list_(other)}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in columns])
