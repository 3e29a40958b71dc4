"""Predictions as a table that is written row by row and survives an interruption.

Rows are written to a hidden JSON Lines file beside the target. Its first line describes the run. The same command, run
again, finds the files that are done and continues. The table appears in its own format at the end, when it is complete.
The hidden file is locked while a run writes it, so a second run with the same target is refused.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.atomic_files import replace_durably, temporary_path
from core.errors import Conflict, InvalidInput
from storage.exporting.formats import is_formula
from storage.importing.tables.readers import GUARD
from storage.system.file_lock import try_lock

COLUMNS: dict[str, type] = {
    "file": str, "start": float, "end": float, "class": str, "confidence": float, "entropy": float,
    "nearest_item": str, "nearest_item_id": int,
    "nearest_class": str, "nearest_distance": float, "round": int, "error": str,
}  # fmt: skip
PROBABILITY = "p_"  # before the class name, in columns of probabilities
SUFFIXES = (".csv", ".jsonl", ".parquet")
ROW_GROUP = 10_000


def check_predictions_target(target: Path, overwrite: bool) -> Path:
    """The absolute path of a table that may be written; raises Conflict or InvalidInput if it may not."""
    target = Path(target).expanduser().absolute()
    if target.suffix not in SUFFIXES:
        raise InvalidInput(f"{target.name} has no known format; use a name that ends in {', '.join(SUFFIXES)}.")
    if target.exists() and not overwrite:
        raise Conflict(f"{target} already exists. Choose another name, or replace it (--overwrite).")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


class PredictionTable:
    """The rows of one run. `begin` creates the file or continues that of an interrupted run of the same description."""

    def __init__(
        self, target: Path, about: Mapping[str, Any], class_names: Sequence[str], *, of_items: bool = False
    ) -> None:
        self.target, self.about = target, {"format": "winnow-predictions", "version": 1, **about}
        first: dict[str, type] = {"item_id": int} if of_items else {}
        self.columns = first | COLUMNS | {PROBABILITY + name: float for name in class_names}
        self.has_probabilities = bool(class_names)
        self.partial = target.with_name(f".{target.name}.part")
        self._done = np.empty(0, np.uint64)

    @property
    def n_done(self) -> int:
        """The number of rows from earlier runs."""
        return len(self._done)

    def begin(self, fresh: bool) -> None:
        """Read the rows of an interrupted run, or remove them if `fresh`. Raises Conflict while another run has the
        same target."""
        self._release = weakref.finalize(self, os.close, self._locked())
        if fresh:
            os.truncate(self.partial, 0)
        end, names = 0, []
        with open(self.partial, "rb") as file:
            for number, line in enumerate(file):
                values = _parsed(line)
                if values is None:
                    break  # cut off when the process was killed
                if number == 0 and values != self.about:
                    raise Conflict(
                        f"{self.partial} holds predictions of another run (round {values.get('round')}, this one uses "
                        f"round {self.about.get('round')} or other options). Run that one again, or start over with "
                        "--overwrite."
                    )
                if number:
                    names.append(_key(row_name(values["file"], values.get("start"))))
                end += len(line)
        with open(self.partial, "r+b") as file:
            file.truncate(end)
        if end == 0:
            self.partial.write_text(json.dumps(self.about) + "\n", encoding="utf-8")
        self._done = np.sort(np.array(names, np.uint64))

    def _locked(self) -> int:
        """A descriptor of the hidden file, locked until it is closed."""
        while True:
            descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
            if not try_lock(descriptor):
                os.close(descriptor)
                raise Conflict(f"Another run is writing {self.target}. Wait until it ends, or choose another name.")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self.partial)):
                    return descriptor
            os.close(descriptor)  # a run that has just ended removed the file

    def has(self, name: str, start: float | None = None) -> bool:
        """Whether an earlier run has predicted this file, or its window from `start` seconds."""
        key = np.uint64(_key(row_name(name, start)))
        place = int(np.searchsorted(self._done, key))
        return place < len(self._done) and self._done[place] == key

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows; they are in the file when this returns. Raises Conflict if the earlier rows were removed."""
        if not self.partial.exists():  # not created again, because the table would lack the earlier rows
            raise Conflict(f"{self.partial} was removed while it was written. Run the command again.")
        with open(self.partial, "r+", encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            file.write("".join(json.dumps({name: row.get(name) for name in self.columns}) + "\n" for row in rows))

    def rows(self) -> Iterator[dict[str, Any]]:
        with open(self.partial, encoding="utf-8") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def finish(self) -> None:
        """Write the table in its own format and remove the hidden file."""
        with temporary_path(self.target) as path:
            {".csv": self._write_csv, ".jsonl": self._write_jsonl, ".parquet": self._write_parquet}[self.target.suffix](
                path
            )
            replace_durably(path, self.target)
        with contextlib.suppress(OSError):
            os.unlink(self.partial)
        self._release()

    def _write_jsonl(self, path: Path) -> None:
        with open(path, "x", encoding="utf-8") as file:
            file.writelines(json.dumps(_text(row), ensure_ascii=False) + "\n" for row in self.rows())

    def _write_csv(self, path: Path) -> None:
        with open(path, "x", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file, lineterminator="\r\n")
            writer.writerow(self.columns)
            for row in self.rows():
                writer.writerow([_cell(value) for value in _text(row).values()])

    def _write_parquet(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        types = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}
        schema = pyarrow.schema([(name, types[kind]) for name, kind in self.columns.items()])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            block: list[dict[str, Any]] = []
            for row in self.rows():
                block.append(_text(row))
                if len(block) == ROW_GROUP:
                    writer.write_table(pyarrow.Table.from_pylist(block, schema))
                    block = []
            writer.write_table(pyarrow.Table.from_pylist(block, schema))


def row_name(file: str, start: float | None) -> str:
    """The name of a row: a file, or the window of a file that starts at `start` seconds."""
    return file if not start else f"{file}\n{start:.6f}"


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        values: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return values


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "little")


def _text(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with file names as valid text: bytes that are not UTF-8 are written as escapes."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return GUARD + value if isinstance(value, str) and is_formula(value) else value
