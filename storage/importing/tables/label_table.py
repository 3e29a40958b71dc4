"""A table that labels files: its columns, the location of its files, and its rows as entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from storage.importing.reading import Findings, Question, ReadingOptions
from storage.importing.sources import CellPlace, Entry, Place, readable_name
from storage.importing.splits import NO_SPLIT, GivenSplit, split_named
from storage.importing.tables import label_studio
from storage.importing.tables.columns import Columns, find_columns, text_of
from storage.importing.tables.finders import Finder, InvalidRow
from storage.importing.tables.given_labels import HASH, given_labels, given_span, other_names, recording_hash
from storage.importing.tables.media_paths import MediaPaths
from storage.importing.tables.parquet_table import ParquetMedia
from storage.importing.tables.readers import read_table
from storage.importing.tables.rows import IN_TABLE, TableRow

SAMPLE_ROWS = 50
SHOWN_ROWS = 5
SHOWN_CHARACTERS = 60
Locate = Callable[[str], Place | None]


class LabelTable:
    """One table: `path` is its file, `name` its name for display, `start` its folder in the finder."""

    def __init__(
        self,
        path: Path,
        name: str,
        finder: Finder,
        *,
        start: str = "",
        split: GivenSplit = NO_SPLIT,
        options: ReadingOptions | None = None,
    ) -> None:
        self.path, self.name, self.finder, self.split = path, name, finder, split
        self.options = options or ReadingOptions()
        self.media_paths = MediaPaths(finder, start)
        self._columns: Columns | None = None
        self._sample: list[TableRow] = []
        self._media: ParquetMedia | None = None
        self._question: Question | None = None  # about its columns
        self._joined = False  # several rows describe one item: annotations of Label Studio

    def look_in(self, root: Finder) -> None:
        """Look for the files below `root` instead of the table's folder."""
        self.finder, self.media_paths = root, MediaPaths(root)
        self._columns = None

    @property
    def columns(self) -> Columns:
        """The columns, found once from the first rows."""
        if self._columns is None:
            self._sample = list(islice(read_table(self.path), SAMPLE_ROWS))
            good = [row.values for row in self._sample if not row.problem]
            names = list(dict.fromkeys(name for values in good for name in values))
            found = find_columns(names, good, self.options)
            if label_studio.has_annotation_columns(names):
                self._joined = True
                found.label = found.label or label_studio.label_column(names, found.path)
            self._columns = found
            self._check(names, good)
            self.media_paths.learn([path for values in good if (path := self._path_or_nothing(values))])
        return self._columns

    def _check(self, names: list[str], good: list[dict[str, Any]]) -> None:
        assert self._columns is not None
        if good and not self._columns.path and "sha256" not in names:
            text = (
                f"{self.name} has no column named path; it has {', '.join(map(repr, names)) or 'none'}. Which column "
                "names the files? You can also put the column names in the first row (path,label,split)."
            )
            self._question = Question("path_column", text)

    def _path_or_nothing(self, values: dict[str, Any]) -> str:
        assert self._columns is not None
        try:
            if isinstance(values.get(self._columns.path), dict):
                return ""
            return self._columns.path_of(values)
        except InvalidRow:
            return ""

    def rows(self) -> Iterator[TableRow]:
        columns = self.columns
        rows = read_table(self.path)
        return label_studio.joined_annotations(rows, columns.label) if self._joined else rows

    def entry(self, row: TableRow, position: int, locate: Locate) -> Entry:
        """The row as an entry; `position` is this table's among those of its source."""
        columns, values = self.columns, row.values
        name = ""
        try:
            path = columns.path_of(values)
            name = readable_name(self._given_name(values) or path)
            name = name or (f"{self.name} row {row.number}" if self._cell(values) else "")
            if row.problem:
                raise InvalidRow(row.problem)
            split = self._split(values)
            label = "" if self._joined else columns.label_of(values)
            labels = given_labels(values, label)
            sha256 = text_of(values.get("sha256")).lower()
            span, group = given_span(values, columns.start, columns.end), columns.group_of(values)
            recording = recording_hash(values) if span is not None else ""
            place = locate(recording) if recording else None
            if place is None and recording and path:
                span = None  # the row names an exported window's own file, and the recording is missing
            if place is None:
                own = sha256 if not recording else ""
                place, sha256 = self._place(values, row.number, position, path, own, locate), own
            names = other_names(values)
            return Entry(name, place, "", split, labels, row.number, sha256, names, "", span, group)
        except InvalidRow as problem:
            return Entry(name, problem=str(problem), row=row.number)

    def _given_name(self, values: dict[str, Any]) -> str:
        taken = (self.columns.path, self.columns.label)
        return text_of(values.get("name")) if "name" not in taken else ""

    def _cell(self, values: dict[str, Any]) -> bool:
        cell = values.get(self.columns.path)
        return isinstance(cell, dict) and bool(cell.get(IN_TABLE))

    def _split(self, values: dict[str, Any]) -> GivenSplit:
        given = self.columns.split_of(values)
        found = split_named(given)
        if found is None:
            raise InvalidRow(f"The split is {given[:40]!r}; use train, validation or test.")
        return found if found.split else self.split

    def _place(
        self, values: dict[str, Any], number: int, position: int, path: str, sha256: str, locate: Locate
    ) -> Place:
        if sha256 and not HASH.match(sha256):
            raise InvalidRow("The sha256 is not a SHA-256 in hex.")
        if self._cell(values):
            return CellPlace(position, number, self.media.bytes_per_row)
        if path:
            try:
                return self.media_paths.find(path)
            except InvalidRow:
                if not sha256 or locate(sha256) is None:
                    raise
        if not sha256:
            raise InvalidRow("The row names no file: its path is empty.")
        known = locate(sha256)
        if known is None:
            raise InvalidRow("The row names no file, and the store has no file with its hash.")
        return known

    @property
    def media(self) -> ParquetMedia:
        if self._media is None:
            self._media = ParquetMedia(self.path)
        return self._media

    def describe(self, found: Findings) -> None:
        """Add to the findings of the source how this table is understood."""
        columns = self.columns
        found.tables.append(self.name)
        if self._question is not None:
            found.questions.append(self._question)
        found.labels_from = ", ".join(found.tables)
        named = {"path": columns.path, "label": columns.label, "split": columns.split, "group": columns.group}
        named |= {"start": columns.start, "end": columns.end}
        found.columns = found.columns or {what: name for what, name in named.items() if name}
        found.media_root = found.media_root or self.media_paths.root
        good = [row.values for row in self._sample if not row.problem]
        found.column_names = found.column_names or list(dict.fromkeys(name for values in good for name in values))
        if not found.first_rows:
            found.first_rows = [{name: shown(value) for name, value in values.items()} for values in good[:SHOWN_ROWS]]
        found.warnings += [one for one in columns.warnings if one not in found.warnings]
        if good and not columns.label and not any(values.get("other_labels") for values in good):
            listed = ", ".join(map(repr, found.column_names))
            found.warnings.append(
                f"No column of {self.name} was recognized as the label; it has {listed}. Name it (--label-column)."
            )

    def close(self) -> None:
        if self._media is not None:
            self._media.close()
        self.finder.close()


def shown(value: Any) -> str:
    """A cell as short text for a preview: the path of a media cell, the size of bytes."""
    if isinstance(value, dict) and IN_TABLE in value:
        return str(value.get("path") or IN_TABLE)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = text_of(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
