"""Tables that people write by hand or export from elsewhere, as a stream of rows: CSV, TSV, JSONL, Parquet, JSON tasks.

Text may be UTF-8 with or without a mark, UTF-16 or Latin-1, separated by comma, semicolon, tab or bar; the first row
names the columns. A row that cannot be read is given as one with a problem, and the rows after it still come.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from core.errors import InvalidInput

CELL_LIMIT = 1_000_000  # characters; a quote that is never closed must not swallow the file
_CHUNK = 1 << 20
GUARD = "'"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `number` counts rows from 1, the row of names not counted."""

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_table(path: Path) -> Iterator[TableRow]:
    """Rows of the table in `path`, by its extension; anything unknown is read as CSV."""
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".parquet": _parquet, ".json": _tasks}
    try:
        yield from readers.get(path.suffix.lower(), _csv)(path)
    except OSError as problem:
        raise InvalidInput(f"The manifest {path} cannot be read: {problem.strerror or problem}.") from problem


def text_encoding(path: Path) -> str:
    """The encoding of a text file: by its mark, else UTF-8 if all of it is, else UTF-16 or Latin-1."""
    with open(path, "rb") as file:
        head = file.read(4096)
        if head.startswith(codecs.BOM_UTF8):
            return "utf-8-sig"
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if b"\x00" in head[1::2] and b"\x00" not in head[0::2]:
            return "utf-16-le"
        if b"\x00" in head[0::2] and b"\x00" not in head[1::2]:
            return "utf-16-be"
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while head:
                decoder.decode(head)
                head = file.read(_CHUNK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "latin-1"
    return "utf-8"


def _open_text(path: Path) -> TextIO:
    return open(path, encoding=text_encoding(path), errors="replace", newline="")


def _csv(path: Path) -> Iterator[TableRow]:
    csv.field_size_limit(CELL_LIMIT)
    with _open_text(path) as file:
        separator = "\t" if path.suffix.lower() == ".tsv" else _separator(file)
        rows = csv.reader(file, delimiter=separator)
        try:
            names = [name.strip() for name in next(rows, [])]
        except csv.Error as problem:
            raise InvalidInput(f"The first row of {path.name} cannot be read: {problem}.") from problem
        number = 0
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as problem:
                number += 1
                yield TableRow(number, problem=f"The row cannot be read: {problem}.")
                continue
            if not cells:
                continue
            number += 1
            yield _csv_row(number, names, cells)


def _csv_row(number: int, names: list[str], cells: list[str]) -> TableRow:
    if len(cells) != len(names):
        return TableRow(
            number,
            dict(zip(names, cells, strict=False)),
            f"The row has {len(cells)} cells; the first row names {len(names)} columns.",
        )
    values: dict[str, Any] = dict(zip(names, cells, strict=True))
    for name in str(values.pop("guarded_cells", "")).split():
        if str(values.get(name, "")).startswith(GUARD):
            values[name] = values[name][len(GUARD) :]
    return TableRow(number, values)


def _separator(file: TextIO) -> str:
    """The candidate that the first line has most of, outside quotes; comma when it has none."""
    line = file.readline(CELL_LIMIT)
    file.seek(0)
    outside = "".join(line.split('"')[::2])
    return max(",;\t|", key=lambda candidate: (outside.count(candidate), candidate == ","))


def _jsonl(path: Path) -> Iterator[TableRow]:
    with _open_text(path) as file:
        number = 0
        while line := file.readline(CELL_LIMIT * 4):
            if not line.strip():
                continue
            number += 1
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as problem:
                yield TableRow(number, problem=f"The line is not JSON: {problem}.")
                continue
            if isinstance(values, dict):
                yield TableRow(number, values)
            else:
                yield TableRow(number, problem='The line is not a JSON object such as {"path": "a.wav"}.')


def _parquet(path: Path) -> Iterator[TableRow]:
    import pyarrow
    from pyarrow import parquet

    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for values in batch.to_pylist():
                    number += 1
                    yield TableRow(number, values)
    except pyarrow.ArrowInvalid as problem:
        raise InvalidInput(f"{path.name} is not a Parquet file that can be read: {problem}.") from problem


def _tasks(path: Path) -> Iterator[TableRow]:
    """A JSON array of Label Studio tasks, one at a time."""
    for number, task in enumerate(_array(path), 1):
        if not isinstance(task, dict):
            yield TableRow(number, problem="The task is not a JSON object.")
            continue
        meta = task.get("meta")
        if isinstance(meta, dict) and isinstance(meta.get("winnow"), dict):
            yield TableRow(number, meta["winnow"])
        else:
            yield _task_row(number, task)


def _array(path: Path) -> Iterator[Any]:
    """The elements of a JSON array, with one element in memory at a time."""
    decoder, buffer = json.JSONDecoder(), ""
    with _open_text(path) as file:
        buffer = file.read(_CHUNK).lstrip()
        if not buffer.startswith("["):
            raise InvalidInput(f"{path.name} is not a list of tasks. Export it as JSON from Label Studio.")
        buffer = buffer[1:].lstrip()
        while True:
            buffer = buffer.lstrip().removeprefix(",").lstrip()
            if buffer.startswith("]"):
                return
            try:
                element, end = decoder.raw_decode(buffer)
                if end == len(buffer):
                    raise ValueError("a number may go on in the next block")
            except (ValueError, RecursionError) as problem:
                more = file.read(_CHUNK)
                if not more or len(buffer) > 64 * _CHUNK:
                    raise InvalidInput(f"{path.name} breaks off or is not JSON: {problem}.") from problem
                buffer += more
                continue
            yield element
            buffer = buffer[end:]


def _task_row(number: int, task: dict[str, Any]) -> TableRow:
    """A task of another tool: the first media address in its data, and each annotation's first choice."""
    data = task.get("data") if isinstance(task.get("data"), dict) else {}
    assert isinstance(data, dict)
    address = next((data[name] for name in ("audio", "image", "file", "path") if isinstance(data.get(name), str)), "")
    labels = []
    for annotation in task.get("annotations") or ():
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        choices = [
            choice
            for result in annotation.get("result") or ()
            if isinstance(result, dict) and isinstance(result.get("value"), dict)
            for choice in result["value"].get("choices") or ()
        ]
        if choices:
            who = annotation.get("completed_by")
            name = who.get("email") if isinstance(who, dict) else who
            labels.append(
                {"label": choices[0], "annotator": str(name or ""), "at": annotation.get("created_at"),
                 "seconds": annotation.get("lead_time")}
            )  # fmt: skip
    first, *others = labels or [{}]
    return TableRow(number, {"path": address.removeprefix("/data/local-files/?d="), **first, "other_labels": others})
