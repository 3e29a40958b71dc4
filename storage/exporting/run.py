"""Labeled data as files: one consistent snapshot in a fixed order.

An export is a folder or one zip file with a table, `manifest.json` and, on request, the media. It is written beside its
target under a temporary name and renamed at the end, so an incomplete export never has the final name. Two exports of
the same state are identical byte by byte.

Class folders load with Hugging Face datasets. Each split has a metadata.parquet with the files that exist and a few
columns; all other columns are in labels.csv beside the splits. A CSV export has a second table with the columns
path, label and split only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.types import Progress, Report, ignore
from storage.database.store import Store
from storage.exporting.arrays import write_arrays
from storage.exporting.columns import columns_of, without_cycle_collection
from storage.exporting.formats import (
    CsvWriter,
    JsonlWriter,
    ParquetWriter,
    TableWriter,
)
from storage.exporting.hugging_face import (
    FOLDER_COLUMNS,
    WHOLE_ROW,
    FeatureWriter,
    dataset_card,
    media_columns,
    split_file,
    split_name,
)
from storage.exporting.label_studio import TasksWriter, labeling_interface, local_files_prefix, readme
from storage.exporting.provenance import RowDigest, round_provenance
from storage.exporting.rows import COLUMNS, ExportItem, ExportOptions, ExportRows, Format
from storage.exporting.span_tables import SPAN_FORMATS, SpanTables
from storage.exporting.target import check_target, described, is_media, new_export
from storage.exporting.weights import WEIGHT, ExportWeights
from storage.labeling import snapshots
from storage.media.checks import can_verify_media, describe, set_condition
from storage.media.contents import Content, read_content
from storage.media.folder import MediaChanged, MediaMissing
from storage.media.types import EXTENSIONS
from storage.projects import class_rows, projects, roles

TABLE_NAMES = {
    "csv": "labels.csv", "jsonl": "labels.jsonl", "parquet": "labels.parquet", "folders": "labels.csv",
    "label-studio": "tasks.json", "hugging-face": split_file("train"), "audacity": "labels.csv", "raven": "labels.csv",
}  # fmt: skip
SLIM, SLIM_COLUMNS = "labels_slim.csv", ("path", "label", "split")
METADATA = "metadata.parquet"
REPORT_EVERY = 500  # rows
TRACKS = "tracks"  # folder of label tracks and selection tables
FORMATS: tuple[Format, ...] = (
    "csv", "jsonl", "parquet", "folders", "label-studio", "hugging-face", *SPAN_FORMATS,
)  # fmt: skip
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    target: str
    rows: int
    labels: dict[str, int]
    sources: dict[str, int]
    media_files: int
    media_missing: int  # rows whose file is missing or changed; they have no path
    contested: int  # rows whose labels differ without a review decision
    contested_left_out: int  # such items left out by the options
    label_sequence: int


def export_project(
    store: Store,
    project_id: int,
    target: Path | str,
    options: ExportOptions | None = None,
    report: Report = ignore,
    *,
    weights: ExportWeights | None = None,
) -> ExportReport:
    """Export to the folder `target`, or to one file if its name ends in .zip; with `weights`, export a summary."""
    options = options or ExportOptions()
    target = check_target(target, options.overwrite)
    with new_export(target, options.overwrite) as folder:
        done = _Export(store, project_id, options, folder, target, weights).run(report)
    return ExportReport(target=str(target), **done)


class _Export:
    """One export in progress: rows of one snapshot, written to one folder."""

    def __init__(
        self,
        store: Store,
        project_id: int,
        options: ExportOptions,
        folder: Path,
        target: Path,
        weights: ExportWeights | None,
    ) -> None:
        self.weights, self.target = weights, target
        self.store, self.project_id, self.options, self.folder = store, project_id, options, folder
        self.labels: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self.n_rows = self.n_media = self.n_contested = self.n_decided = 0
        self.problems: dict[int, tuple[str, str]] = {}  # items whose file is missing or changed
        self.folder_names: dict[str, str] = {}
        self.writers: dict[str, TableWriter] = {}
        self.splits: dict[str, str] = {}  # name for Hugging Face -> pattern of its files
        self.class_names: list[str] = []
        self.window_files: list[Path] = []  # named after the window's key, which is not the hash of the file
        self.arrays_round: int | None = None
        self.digest, self.has_digest = RowDigest(), options.format != "hugging-face"
        self.tracks = SpanTables("raven" if options.format == "raven" else "audacity")

    def run(self, report: Report) -> dict[str, Any]:
        with self.store.read() as connection:
            roles.check_in(connection, self.project_id, "edit")
            moment = snapshots.present(connection, self.project_id)
            rows = ExportRows(self.store, connection, self.project_id, self.options)
            self.kind = projects.row_in(connection, self.project_id).kind
            self.class_names = rows.class_names()
            with contextlib.ExitStack() as stack:
                self.stack = stack
                if self.options.format == "parquet" and not self.options.media and self.weights is None:
                    with without_cycle_collection():
                        self._write_columns(rows, report)
                else:
                    self._write_rows(rows, report)
                if self.options.arrays:
                    self.arrays_round = write_arrays(self.store, connection, self.project_id, self.folder)
                if not self.writers:  # an export without rows still has an (empty) table
                    self._writer(self.table)
            about = self._about(connection, moment, rows)
        if can_verify_media(self.store):
            set_condition(self.store, self.project_id, self.problems)
        text = json.dumps(about, indent=2, ensure_ascii=False, sort_keys=True)
        (self.folder / "manifest.json").write_text(text + "\n", encoding="utf-8")
        report(Progress("export", self.n_rows, self.n_rows))
        return {
            "rows": self.n_rows,
            "labels": dict(self.labels),
            "sources": dict(self.sources),
            "media_files": self.n_media,
            "media_missing": len(self.problems),
            "contested": self.n_contested,
            "contested_left_out": rows.n_left_out,
            "label_sequence": moment.label_sequence,
        }

    def _content(self) -> dict[str, Any]:
        """The options for the manifest; a list of items is replaced by its length."""
        options = {name: value for name, value in asdict(self.options).items() if name != "overwrite"}
        return options | {"items": len(self.options.items) if self.options.items is not None else None}

    def _write_rows(self, rows: ExportRows, report: Report) -> None:
        for item in rows if self.weights is None else self.weights.chosen(rows):
            self._write(item)
            if self.n_rows % REPORT_EVERY == 0:
                report(Progress("export", self.n_rows, 0))

    def _write_columns(self, rows: ExportRows, report: Report) -> None:
        """Write the same table as `_write_rows` without a dictionary per row. The hash of the file covers its rows."""
        self.has_digest = False
        writer: Any = self._writer(self.table)
        for columns in columns_of(rows):
            writer.write_columns(columns)
            self.n_rows += columns.n
            self.labels.update(label for label in columns.values["label"] or () if label is not None)
            self.sources.update(columns.values["source"] or ())
            for place, n in Counter(columns.vote_of).items():
                self.n_contested += n * columns.votes[place]["contested"]
                self.n_decided += n * (columns.votes[place]["decided_by"] == "review")
            report(Progress("export", self.n_rows, 0))

    def _write(self, item: ExportItem) -> None:
        values = item.values
        self.n_rows += 1
        self.labels.update([values["label"]] if values["label"] is not None else ())
        self.sources[values["source"]] += 1
        self.n_contested += values["contested"]
        self.n_decided += values["decided_by"] == "review"
        if self.options.format == "hugging-face":
            self._write_with_bytes(item)
            return
        self.digest.add(values)
        values["path"] = self._media(item)
        self._writer(self.table).write(values)
        if self.options.format in SPAN_FORMATS:
            self.tracks.add_row(values)
        if self.options.format == "csv":
            self._writer(SLIM).write(values | {"path": values["path"] or values["name"]})
        if self.options.format == "folders" and values["path"]:
            split, _, place = values["path"].partition("/")
            self.splits[split_name(split)] = f"{split}/**"
            self._writer(f"{split}/{METADATA}").write({"file_name": place} | values)

    def _write_with_bytes(self, item: ExportItem) -> None:
        """Write one row to the Parquet file of its split; an item whose file is missing or changed gets none."""
        values = item.values
        try:
            data = read_content(self.store.media, item.content)
        except (MediaMissing, MediaChanged, InvalidInput) as problem:
            self.problems[item.id] = _condition(problem)
            return
        self.n_media += 1
        table, name = split_file(values["split"]), values["sha256"] + EXTENSIONS.get(values["media_type"], ".bin")
        self.splits[split_name(values["split"])] = table
        cell = {"bytes": data, "path": name}
        whole = json.dumps(values, ensure_ascii=False, allow_nan=False)
        self._writer(table).write(values | {self.kind: cell, WHOLE_ROW: whole})

    @property
    def table(self) -> str:
        """The file name of the complete table, which imports read."""
        return TABLE_NAMES[self.options.format]

    @property
    def tables(self) -> list[str]:
        return sorted(self.writers) if self.options.format == "hugging-face" else [self.table]

    def _writer(self, table: str) -> TableWriter:
        if table not in self.writers:
            path = self.folder / table
            path.parent.mkdir(exist_ok=True)
            self.writers[table] = self.stack.enter_context(self._make_writer(path))
        return self.writers[table]

    def _make_writer(self, path: Path) -> Any:
        if path.name == METADATA:
            return FeatureWriter(path, self._columns(FOLDER_COLUMNS), self.class_names)
        if path.name == SLIM:
            return CsvWriter(path, SLIM_COLUMNS, slim=True)
        if self.options.format in ("csv", "folders", *SPAN_FORMATS):
            return CsvWriter(path, self._columns(COLUMNS))
        if self.options.format == "jsonl":
            return JsonlWriter(path)
        if self.options.format == "parquet":
            return ParquetWriter(path, self._columns(COLUMNS))
        if self.options.format == "hugging-face":
            return FeatureWriter(path, media_columns(self.kind, self.weights is not None), self.class_names)
        return TasksWriter(path, self.kind, self._media_prefix())

    def _media_prefix(self) -> str:
        """The text before the path of a file in a Label Studio task."""
        if self.options.media_prefix is not None:
            return self.options.media_prefix
        return local_files_prefix(self.target)

    def _columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns if self.weights is None else (*columns, WEIGHT)

    def _media(self, item: ExportItem) -> str:
        """Copy the item's file into the export; returns its path there, or "" without a file."""
        values = item.values
        if not (self.options.media or self.options.format == "folders"):
            return ""
        name = values["sha256"] + EXTENSIONS.get(values["media_type"], ".bin")
        if self.options.format == "folders":
            place = f"{values['split'].lower()}/{self._class_folder(values['label'])}/{name}"
        else:
            place = f"media/{name}"
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._copy(item.content, target)
        except (MediaMissing, MediaChanged, InvalidInput) as problem:
            self.problems[item.id] = _condition(problem)
            return ""
        self.n_media += 1
        return place

    def _copy(self, content: Content, target: Path) -> None:
        """Copy the imported bytes, or write those of a window; raises `MediaMissing` or `MediaChanged`."""
        if content.span is not None:
            data = read_content(self.store.media, content)
            target.write_bytes(data)
            self.window_files.append(target)
            return
        sha256, digest = content.sha256, hashlib.sha256()
        with self.store.media.open(sha256, content.link_path) as source, open(target, "xb") as copy:
            while block := source.read(1 << 20):
                digest.update(block)
                copy.write(block)
        if digest.hexdigest() != sha256:
            target.unlink()
            raise MediaChanged(f"The file of {sha256} has changed since it was imported.")

    def _class_folder(self, label: str) -> str:
        """A safe folder name: the class name if it is safe, else a number with the readable part of the name."""
        if label not in self.folder_names:
            taken = {name.lower() for name in self.folder_names.values()}
            plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,60}", label) and label.lower() not in _RESERVED
            name = label
            if not plain or label.lower() in taken:
                readable = re.sub(r"[^A-Za-z0-9]+", "-", label).strip("-")[:40]
                name = f"class-{len(self.folder_names) + 1}" + (f"-{readable}" if readable else "")
            self.folder_names[label] = name
        return self.folder_names[label]

    def _about(self, connection: Any, moment: snapshots.Moment, rows: ExportRows) -> dict[str, Any]:
        """The content of manifest.json, after the files that accompany the tables are written."""
        project = projects.row_in(connection, self.project_id)
        known = class_rows.rows_in(connection, self.project_id)
        self._write_companions(project.name, known)
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and not is_media(path)]
        files = sorted([*files, *self.window_files])
        return {
            "format": "winnow-export",
            "version": 1,
            "tables": self.tables,
            "content": self._content(),
            "project": {
                "name": project.name,
                "kind": project.kind,
                "guidelines": project.guidelines,
                "settings": asdict(project.settings),
            },
            "snapshot": asdict(moment),
            "summary": dict(self.weights.about) if self.weights is not None else None,
            "round": round_provenance(self.store, self.project_id),
            "rows_sha256": self.digest.hexdigest() if self.has_digest else None,
            "pseudo_labels_of_round": rows.pseudo_labels.number if rows.pseudo_labels is not None else None,
            "arrays_of_round": self.arrays_round,
            "counts": self._counts(rows),
            "classes": self._classes(known),
            "files": {path.relative_to(self.folder).as_posix(): described(path) for path in files},
        }

    def _write_companions(self, title: str, known: Sequence[class_rows.ClassRow]) -> None:
        """Write the files beside the tables: the README, the labeling interface, the label tracks."""
        if self.options.format == "label-studio":
            view = labeling_interface(self.kind, [row.name for row in known if row.active])
            (self.folder / "label_config.xml").write_text(view, encoding="utf-8")
            steps = readme(self.target, self._media_prefix(), self.options.media)
            (self.folder / "README.md").write_text(steps, encoding="utf-8")
        if self.options.format in ("folders", "hugging-face"):
            (self.folder / "README.md").write_text(self._card(title), encoding="utf-8")
        if self.options.format in SPAN_FORMATS:
            self.tracks.write(self.folder / TRACKS)

    def _counts(self, rows: ExportRows) -> dict[str, Any]:
        return {
            "rows": self.n_rows,
            "labels": dict(self.labels),
            "sources": dict(self.sources),
            "media_files": self.n_media,
            "media_missing": len(self.problems),
            "contested": self.n_contested,
            "contested_left_out": rows.n_left_out,
            "decided_in_review": self.n_decided,
        }

    def _classes(self, known: Sequence[class_rows.ClassRow]) -> list[dict[str, Any]]:
        names = {row.id: row.name for row in known}
        return [
            {
                "name": row.name,
                "key": row.key,
                "color": row.color,
                "retired": row.retired_at is not None,
                "counts_as": names[row.effective_id] if row.effective_id is not None else None,
                "folder": self.folder_names.get(row.name),
            }
            for row in known
        ]

    def _card(self, title: str) -> str:
        columns = media_columns(self.kind, self.weights is not None)
        if self.options.format == "folders":
            columns = (self.kind, *self._columns(FOLDER_COLUMNS)[1:])
        files = self.splits or {"train": self.table}
        return dataset_card(title, files, columns, self.class_names, len(self.problems))


def _condition(problem: MediaMissing | MediaChanged | InvalidInput) -> tuple[str, str]:
    """(condition, note) of an item whose bytes cannot be exported; frames of a window may not decode."""
    return ("unreadable", str(problem)) if isinstance(problem, InvalidInput) else describe(problem)
