"""Finds the tables that label the files of a folder or an archive.

In this order: the tables of an export of Winnow; `manifest` or `metadata` at the top or in every split folder; Parquet
files; `labels.json` of FiftyOne and COCO files; any other table whose rows name existing files. A single top folder
around everything is searched too.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from storage.importing.reading import NO_TABLE, Question, ReadingOptions
from storage.importing.splits import NO_SPLIT, GivenSplit, split_folders, split_named
from storage.importing.tables.documents import kind_of_document
from storage.importing.tables.finders import Finder, InvalidRow
from storage.importing.tables.label_table import LabelTable

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json", ".txt")
OTHER_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
CHOICES = (*OTHER_TABLES, ".parquet")
MANIFESTS = tuple(
    f"{stem}{suffix}" for stem in ("manifest", "metadata") for suffix in (".csv", ".tsv", ".jsonl", ".parquet")
)
EXPORT = "manifest.json"  # the description of an export of Winnow
NO_LABELS = re.compile(r"(sample[_-]?submission|submission)", re.IGNORECASE)  # Kaggle's templates for predictions
SHARD = re.compile(r"(?P<split>[A-Za-z]+)-\d+-of-\d+(-[0-9a-f]+)?\Z")
MOST_WRAPPERS = 3
CHECKED_ROWS = 20
MOST_TABLES = 20  # more files than this are one per media file, not tables

Fetch = Callable[[str], Path]


@dataclass(slots=True)
class Discovery:
    """The tables to read, or `questions` if it is not clear which."""

    tables: list[LabelTable] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    exact: bool = False  # an export of Winnow: it names all of its files
    choices: tuple[str, ...] = ()  # all tables beside the files


class TableFinder:
    """Finds the tables of one source. `fetch` gives a file of the source as a local file."""

    def __init__(self, finder: Finder, fetch: Fetch, options: ReadingOptions) -> None:
        self._finder, self._fetch, self._options = finder, fetch, options

    def find(self) -> Discovery:
        found = self._find()
        found.choices = self._choices()
        return found

    def _choices(self) -> tuple[str, ...]:
        names = (posixpath.join(top, name) for top in self._tops() for name in self._finder.files(top))
        tables = (name for name in names if name.lower().endswith(CHOICES) and posixpath.basename(name) != EXPORT)
        return tuple(islice(tables, MOST_TABLES))

    def _find(self) -> Discovery:
        if self._options.table == NO_TABLE:
            return Discovery()
        if self._options.table:
            return Discovery([self._named(self._options.table)])
        for folder in self._tops():
            if found := self._in(folder):
                return found
        return Discovery()

    def _tops(self) -> list[str]:
        """The top folder, and the folder in it if it contains nothing else."""
        tops = [""]
        for _ in range(MOST_WRAPPERS):
            inside = self._finder.folders(tops[-1])
            if len(inside) != 1:
                break
            tops.append(posixpath.join(tops[-1], inside[0]))
        return tops

    def _in(self, folder: str) -> Discovery | None:
        files = self._finder.files(folder)
        if EXPORT in files:
            path = posixpath.join(folder, EXPORT)
            if names := exported_tables(self._fetch(path).read_bytes(), path):
                return Discovery([self._table(posixpath.join(folder, name)) for name in names], exact=True)
        if name := next((name for name in MANIFESTS if name in files), None):
            return Discovery([self._table(posixpath.join(folder, name))])
        for tables in (self._in_split_folders(folder), self._parquet(folder, files), self._documents(folder, files)):
            if tables:
                return Discovery(tables)
        return self._others(folder, files)

    def _table(self, path: str, split: GivenSplit = NO_SPLIT) -> LabelTable:
        start = posixpath.dirname(path)
        return LabelTable(self._fetch(path), path, self._finder, start=start, split=split, options=self._options)

    def _named(self, path: str) -> LabelTable:
        for top in self._tops():
            folder, name = posixpath.split(posixpath.join(top, path))
            if name in self._finder.files(folder):
                return self._table(posixpath.join(folder, name))
        raise InvalidInput(f"There is no table {path} in the source. Name an existing one, or none (--table none).")

    def _in_split_folders(self, folder: str) -> list[LabelTable]:
        """`train/metadata.csv`, `test/metadata.csv`: the folder names the split."""
        inside = self._finder.folders(folder)
        if not split_folders(set(inside)).are_splits and len(inside) != 1:
            return []
        tables = []
        for name in inside:
            split = split_named(name)
            below = posixpath.join(folder, name)
            files = self._finder.files(below) if split is not None else []
            table = next((one for one in (*MANIFESTS, "_annotations.coco.json") if one in files), None)
            if table is not None and split is not None:
                tables.append(self._table(posixpath.join(below, table), split))
        return tables

    def _parquet(self, folder: str, files: list[str]) -> list[LabelTable]:
        """Files written by Hugging Face datasets, one or more for each split, here or in `data`."""
        found = [posixpath.join(folder, name) for name in files if name.endswith(".parquet")]
        if not found and "data" in self._finder.folders(folder):
            below = posixpath.join(folder, "data")
            found = [posixpath.join(below, name) for name in self._finder.files(below) if name.endswith(".parquet")]
        return [self._table(path, _split_of_shard(path)) for path in found]

    def _documents(self, folder: str, files: list[str]) -> list[LabelTable]:
        """`labels.json` of FiftyOne, and COCO files here or in `annotations`."""
        names = [posixpath.join(folder, name) for name in files if name.endswith(".json")]
        if "annotations" in self._finder.folders(folder):
            below = posixpath.join(folder, "annotations")
            names += [posixpath.join(below, name) for name in self._finder.files(below) if name.endswith(".json")]
        if len(names) > MOST_TABLES:
            return []
        return [self._table(path, _split_in_name(path)) for path in names if self._is_document(path)]

    def _is_document(self, path: str) -> bool:
        try:
            return bool(kind_of_document(json.loads(self._fetch(path).read_bytes())))
        except (ValueError, RecursionError, InvalidInput):
            return False

    def _others(self, folder: str, files: list[str]) -> Discovery | None:
        """Tables of any name whose first rows name existing files."""
        names = [name for name in files if name.lower().endswith(OTHER_TABLES) and not NO_LABELS.search(name)]
        if len(names) > MOST_TABLES:
            return None
        found = [table for name in names if self._fits(table := self._table(posixpath.join(folder, name)))]
        if len(found) > 1:
            splits = [split_named(Path(table.name).stem) for table in found]
            if not all(splits):
                listed = ", ".join(repr(table.name) for table in found)
                text = f"Several tables name these files: {listed}. Which one holds the labels (table: NAME or none)?"
                return Discovery([found[0]], [Question("table", text)])
            for table, split in zip(found, splits, strict=True):
                table.split = split or NO_SPLIT
        return Discovery(found) if found else None

    def _fits(self, table: LabelTable) -> bool:
        """Whether the table labels or splits existing files."""
        try:
            columns = table.columns
        except (InvalidInput, InvalidRow):
            return False
        rows = [row.values for row in islice(table.rows(), CHECKED_ROWS) if not row.problem]
        labels = columns.label or columns.split or any(row.get("other_labels") for row in rows)
        return bool(columns.path and labels) and any(self._is_there(table, row) for row in rows)

    def _is_there(self, table: LabelTable, values: dict[str, Any]) -> bool:
        try:
            table.media_paths.find(table.columns.path_of(values))
        except InvalidRow:
            return False
        return True


def _split_of_shard(path: str) -> GivenSplit:
    stem = Path(path).stem
    found = SHARD.match(stem)
    return split_named(found["split"] if found else stem) or NO_SPLIT


def _split_in_name(path: str) -> GivenSplit:
    """The split that a word of the file name means, ignoring numbers: validation for `instances_val2017.json`."""
    words = re.split(r"[^A-Za-z]+", Path(path).stem)
    return next((split for word in words if word and (split := split_named(word)) is not None), NO_SPLIT)


def exported_tables(content: bytes, where: str) -> list[str]:
    """Names of the tables of an export; empty if `content` is another kind of file."""
    try:
        manifest = json.loads(content)
    except ValueError:
        return []
    if not isinstance(manifest, dict) or manifest.get("format") != "winnow-export":
        return []
    tables = manifest.get("tables")
    if not isinstance(tables, list) or not all(isinstance(name, str) and _plain(name) for name in tables):
        raise InvalidInput(f"The manifest.json of {where} does not name its tables. Export again.")
    return tables


def _plain(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/") and "\x00" not in name
