"""Tables as a stream of rows: CSV, TSV, JSONL, Parquet, and the JSON of Label Studio, COCO and FiftyOne.

Text may be UTF-8 with or without a byte order mark, UTF-16 or Latin-1, separated by comma, semicolon, tab or vertical
bar; the first row names the columns. A row that cannot be read has a problem instead of values; later rows are still
read.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from core.errors import InvalidInput
from storage.importing.tables import label_studio
from storage.importing.tables.documents import document_rows, kind_of_document
from storage.importing.tables.finders import InvalidRow
from storage.importing.tables.parquet_table import parquet_rows
from storage.importing.tables.rows import TableRow

CELL_LIMIT = 1_000_000  # characters; an unclosed quote must not read the whole file into one cell
_CHUNK = 1 << 20
GUARD = "'"


def read_table(path: Path) -> Iterator[TableRow]:
    """Rows of the table in `path`, in the format of its extension; unknown ones are read as CSV."""
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".parquet": parquet_rows, ".json": _json}
    try:
        yield from readers.get(path.suffix.lower(), _csv)(path)
    except OSError as problem:
        raise InvalidInput(f"The manifest {path} cannot be read: {problem.strerror or problem}.") from problem


def text_encoding(path: Path) -> str:
    """The encoding of a text file: by its byte order mark, else UTF-8 if all of it is valid, else UTF-16 or Latin-1."""
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
    """The separator that is most frequent in the first line, outside quotes; comma if there is none."""
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


def _json(path: Path) -> Iterator[TableRow]:
    """A list of Label Studio tasks or of plain rows, one at a time, or a document that describes a data set."""
    with _open_text(path) as file:
        if file.read(_CHUNK).lstrip()[:1] == "{":
            yield from _document(path)
            return
    for number, element in enumerate(_array(path), 1):
        if not isinstance(element, dict):
            yield TableRow(number, problem="It is not a JSON object.")
        elif isinstance(element.get("data"), dict):
            yield _task(number, element)
        else:
            yield TableRow(number, element)


def _task(number: int, task: dict[str, Any]) -> TableRow:
    try:
        return TableRow(number, label_studio.task_values(task))
    except InvalidRow as problem:
        return TableRow(number, problem=str(problem))


def _document(path: Path) -> Iterator[TableRow]:
    with _open_text(path) as file:
        try:
            document = json.load(file)
        except (ValueError, RecursionError) as problem:
            raise InvalidInput(f"{path.name} is truncated or is not valid JSON: {problem}.") from problem
    if not kind_of_document(document):
        raise InvalidInput(
            f"{path.name} is neither a list of tasks or rows, nor a COCO file, nor FiftyOne's labels.json. "
            "Export it as JSON from Label Studio, or write a table with path,label,split."
        )
    yield from document_rows(document)


def _array(path: Path) -> Iterator[Any]:
    """The elements of a JSON array, with one element in memory at a time."""
    decoder, buffer = json.JSONDecoder(), ""
    with _open_text(path) as file:
        buffer = file.read(_CHUNK).lstrip()
        if not buffer.startswith("["):
            raise InvalidInput(f"{path.name} is not a JSON list. Export it as JSON from Label Studio.")
        buffer = buffer[1:].lstrip()
        while True:
            buffer = buffer.lstrip().removeprefix(",").lstrip()
            if buffer.startswith("]"):
                return
            try:
                element, end = decoder.raw_decode(buffer)
                if end == len(buffer):
                    raise ValueError("a number may continue in the next block")
            except (ValueError, RecursionError) as problem:
                more = file.read(_CHUNK)
                if not more or len(buffer) > 64 * _CHUNK:
                    raise InvalidInput(f"{path.name} is truncated or is not valid JSON: {problem}.") from problem
                buffer += more
                continue
            yield element
            buffer = buffer[end:]
