"""Manifests: tables that name files, their labels and their split. Every row gets a verdict before anything is read.

A row names a file below the manifest's folder (or inside its archive) by a relative path. Addresses are refused: there
is no fetching. A row of an export may name bytes that the store has already by their hash alone.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from core.errors import InvalidInput
from core.limits import Limits
from storage.importing.folder import head_of_file
from storage.importing.manifest_tables import TableRow, read_table
from storage.importing.sources import Entry, FilePlace, GivenLabel, KeptPlace, PackedPlace, Place, readable_name
from storage.importing.zip import ZipSource, why_refused

_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.\-]*://|(data|file|https?|ftp|javascript|s3|gs):)", re.IGNORECASE)
_HASH = re.compile(r"[0-9a-f]{64}\Z")
_COLUMNS = {
    "path": ("path", "file_name", "filename", "file", "file_path", "audio", "image"),
    "label": ("label", "class", "category"),
    "split": ("split", "subset"),
}
_SPLITS: dict[str, Literal["", "train", "test"]] = {"": "", "test": "test", "testing": "test"}
_SPLITS |= dict.fromkeys(("train", "training", "pool", "unlabeled", "val", "valid", "validation", "dev"), "train")


class Finder(Protocol):
    """Finds what a row's path names. Raises `InvalidRow` with the reason when it may not be used."""

    def find(self, path: str) -> Place: ...

    def head(self, place: Place, n_bytes: int) -> bytes: ...

    def unpack(self, place: PackedPlace, target: Path) -> None: ...

    def close(self) -> None: ...


class InvalidRow(Exception):
    """A row that is not imported; the text is the reason."""


class FolderFinder:
    """Regular files below `root`, reached without symbolic links."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._checked: dict[str, bool] = {}

    def find(self, path: str) -> Place:
        full = os.path.normpath(os.path.join(self.root, path))
        if not full.startswith(self.root.rstrip("/") + "/"):
            raise InvalidRow("The path leads outside the manifest's folder.")
        folder = os.path.dirname(full)
        if folder not in self._checked:
            self._checked[folder] = os.path.realpath(folder) == folder
        if not self._checked[folder]:
            raise InvalidRow("The path goes through a symbolic link; links are not followed.")
        try:
            mode = os.lstat(full).st_mode
        except (OSError, ValueError):
            if "\\" in path:
                return self.find(path.replace("\\", "/"))
            raise InvalidRow("There is no such file.") from None
        if stat.S_ISLNK(mode):
            raise InvalidRow("It is a symbolic link; links are not followed.")
        if not stat.S_ISREG(mode):
            raise InvalidRow("It is not a regular file.")
        return FilePlace(full)

    def head(self, place: Place, n_bytes: int) -> bytes:
        assert isinstance(place, FilePlace)
        return head_of_file(place.path, n_bytes)

    def unpack(self, place: PackedPlace, target: Path) -> None:
        raise TypeError("A folder holds files, nothing packed.")

    def close(self) -> None:
        """Nothing is held open."""


class ZipFinder:
    """Entries of an archive, by name."""

    def __init__(self, source: ZipSource, limits: Limits, folder: str = "") -> None:
        self._source, self._limits, self._folder = source, limits, folder
        self._positions: dict[str, int] = {}
        for entry in source.reader.entries():
            self._positions.setdefault(entry.name, entry.position)

    def find(self, path: str) -> Place:
        name = self._folder + path.replace("\\", "/")
        position = self._positions.get(name, self._positions.get(self._folder + path))
        if position is None:
            raise InvalidRow("There is no such entry in the archive.")
        entry = self._source.reader.entry_at(position)
        if problem := why_refused(entry, self._limits):
            raise InvalidRow(problem)
        return PackedPlace(position, entry.size)

    def head(self, place: Place, n_bytes: int) -> bytes:
        return self._source.head(place, n_bytes)

    def unpack(self, place: PackedPlace, target: Path) -> None:
        self._source.unpack(place, target)

    def close(self) -> None:
        self._source.close()


class ManifestSource:
    """The rows of one or more tables as entries."""

    strict = True

    def __init__(
        self,
        tables: Sequence[tuple[Path, Finder]],
        description: str,
        locate: Callable[[str], Place | None] = lambda sha256: None,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.tables, self.description, self._locate, self._scratch = tables, description, locate, scratch

    def entries(self) -> Iterator[Entry]:
        seen: dict[int, int] = {}
        for table, finder in self.tables:
            for row in read_table(table):
                if row.number == 1 and not row.problem:
                    _require_paths(row, table)
                yield self._entry(row, finder, seen)

    def _entry(self, row: TableRow, finder: Finder, seen: dict[int, int]) -> Entry:
        path = _text(row.values, *_COLUMNS["path"])
        name = readable_name(_text(row.values, "name") or path)
        try:
            if row.problem:
                raise InvalidRow(row.problem)
            split = _split(row.values)
            labels, others = _labels(row.values), _other_names(row.values)
            sha256 = _text(row.values, "sha256").lower()
            place = self._place(path, sha256, finder)
            key = hash(place)
            if key in seen:
                raise InvalidRow(f"Row {seen[key]} names the same file.")
            seen[key] = row.number
        except InvalidRow as problem:
            return Entry(name, problem=str(problem), row=row.number)
        return Entry(name, place, "", split, labels, row.number, sha256, others)

    def _place(self, path: str, sha256: str, finder: Finder) -> Place:
        if sha256 and not _HASH.match(sha256):
            raise InvalidRow("The sha256 is not a SHA-256 in hex.")
        if path:
            check_path(path)
            try:
                return finder.find(path)
            except InvalidRow:
                if not sha256 or self._locate(sha256) is None:
                    raise
        if not sha256:
            raise InvalidRow("The row names no file: its path is empty.")
        known = self._locate(sha256)
        if known is None:
            raise InvalidRow("The row names no file, and the store has no bytes with its hash.")
        return known

    def head(self, place: Place, n_bytes: int) -> bytes:
        if isinstance(place, FilePlace):
            return head_of_file(place.path, n_bytes)
        if isinstance(place, KeptPlace):
            with place.media.open(place.sha256) as stream:
                return stream.read(n_bytes)
        return self.tables[0][1].head(place, n_bytes)

    def unpack(self, place: PackedPlace, target: Path) -> None:
        self.tables[0][1].unpack(place, target)

    def close(self) -> None:
        for _, finder in self.tables:
            finder.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def check_path(path: str) -> None:
    """Refuse addresses and everything that is not a plain relative path."""
    if _ADDRESS.match(path):
        raise InvalidRow("It is an address; Winnow fetches nothing. Download the file and name its path.")
    if "\x00" in path:
        raise InvalidRow("The path contains a NUL character.")
    if ".." in path.replace("\\", "/").split("/"):
        raise InvalidRow("The path contains '..'; name files below the manifest's folder.")
    if re.match(r"[A-Za-z]:[\\/]", path):
        raise InvalidRow("The path is absolute; name files below the manifest's folder.")


def _require_paths(row: TableRow, table: Path) -> None:
    if not any(name in row.values for name in (*_COLUMNS["path"], "sha256")):
        raise InvalidInput(
            f"{table.name} has no column named path; it has {', '.join(map(repr, row.values)) or 'none'}. "
            "Name the columns in the first row: path,label,split."
        )


def _text(values: dict[str, Any], *names: str) -> str:
    """The first of these columns that is there, as text; None and numbers that mean whole numbers are handled."""
    for name in names:
        if name in values:
            value = values[name]
            if value is None:
                return ""
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return ""


def _split(values: dict[str, Any]) -> Literal["", "train", "test"]:
    given = _text(values, *_COLUMNS["split"]).strip()
    split = _SPLITS.get(given.lower())
    if split is None:
        raise InvalidRow(f"The split is {given[:40]!r}; use train or test.")
    return split


def _labels(values: dict[str, Any]) -> tuple[GivenLabel, ...]:
    """The row's labels in the order they were given; a pseudo-label of an export is nobody's label."""
    if _text(values, "source") == "pseudo":
        return ()
    label = _text(values, *_COLUMNS["label"])
    others = _listed(values.get("other_labels"), "other labels", dict, "objects")
    given = [_given(values | {"label": label})] if label != "" else []
    given += [_given(other) for other in others if _text(other, "label") != ""]
    return tuple(sorted(given, key=lambda one: one.sequence))


def _other_names(values: dict[str, Any]) -> tuple[str, ...]:
    names = _listed(values.get("other_names"), "other names", str, "names")
    if any("\x00" in name for name in names):
        raise InvalidRow("One of the other names contains a NUL character.")
    return tuple(readable_name(name) for name in names)


def _listed(value: Any, what: str, kind: type, kinds: str) -> list[Any]:
    """A cell that holds a list: as it is (JSONL, Parquet, tasks) or as JSON (CSV)."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except ValueError as problem:
            raise InvalidRow(f"The {what} are not JSON: {problem}.") from problem
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise InvalidRow(f"The {what} are not a list of {kinds}.")
    return value


def _given(values: dict[str, Any]) -> GivenLabel:
    label = _text(values, "label")
    if "\x00" in label or len(label) > 1_000 or not label.strip():
        raise InvalidRow("The label is blank, longer than 1,000 characters or contains a NUL character.")
    return GivenLabel(
        label=label,
        annotator=_text(values, "annotator")[:200],
        at=_time(values.get("at")),
        kind="decide" if _text(values, "kind") == "decide" else "label",
        uuid=_text(values, "event"),
        sequence=int(_number(values.get("sequence"), "sequence") or 0),
        seconds=_number(values.get("seconds"), "seconds"),
        suggestion=_text(values, "suggestion") or "none",
        suggested_label=_text(values, "suggested_label"),
        suggested_confidence=_number(values.get("suggested_confidence"), "suggested_confidence"),
        note=_text(values, "note"),
    )


def _number(value: Any, what: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidRow(f"The {what} is {str(value)[:40]!r}, not a number.") from None


def _time(value: Any) -> datetime | None:
    if value is None or value == "":
        return None
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise InvalidRow(f"The time {str(value)[:40]!r} is not an ISO 8601 time.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
