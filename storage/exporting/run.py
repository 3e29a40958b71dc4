"""Labeled data as files: one consistent snapshot in a fixed order, complete under its final name or absent.

An export is a folder or one zip file with a table, `manifest.json` and, on request, the media. It is written beside its
target under a temporary name and renamed at the end. Two exports of the same state are equal byte by byte.

Class folders load with Hugging Face datasets (imagefolder, audiofolder). Each split has a metadata.csv with the columns
that are never empty, because loaders infer types from the values, and with the files that exist. All other columns are
in labels.csv beside the splits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.errors import Conflict, InvalidInput
from core.types import Progress, Report, ignore
from storage.database.store import Store
from storage.exporting.formats import (
    CsvWriter,
    JsonlWriter,
    ParquetWriter,
    TableWriter,
)
from storage.exporting.label_studio import TasksWriter, labeling_interface, local_files_prefix, readme
from storage.exporting.rows import COLUMNS, ExportItem, ExportOptions, ExportRows, Format
from storage.exporting.weights import WEIGHT, ExportWeights
from storage.labeling import snapshots
from storage.media.checks import describe, judges_media, set_condition
from storage.media.folder import MediaChanged, MediaMissing
from storage.media.types import EXTENSIONS
from storage.projects import class_rows, projects, roles
from storage.system.atomic_files import sync_path
from storage.system.processes import is_running

TABLE_NAMES = {
    "csv": "labels.csv", "jsonl": "labels.jsonl", "parquet": "labels.parquet", "folders": "labels.csv",
    "label-studio": "tasks.json",
}  # fmt: skip
LOADED_COLUMNS = ("file_name", "name", "label", "source", "sha256", "media_type", "n_bytes", "contested")
REPORT_EVERY = 500  # rows
FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet", "folders", "label-studio")
_PARTIAL = re.compile(r"\.(?P<name>.+)\.export-(?P<pid>\d+)-[0-9a-f]{8}\Z")
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    target: str
    rows: int
    labels: dict[str, int]
    sources: dict[str, int]
    media_files: int
    media_missing: int  # rows whose file is missing or changed; they have no path
    contested: int  # rows whose labels differ and that nobody decided
    contested_left_out: int  # such items that the options leave out
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
    target = check_target(target, options)
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(target)
    partial = target.with_name(f".{target.name}.export-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    folder = partial if target.suffix != ".zip" else partial.with_name(partial.name + ".d")
    folder.mkdir()
    try:
        done = _Export(store, project_id, options, folder, target, weights).run(report)
        if folder != partial:
            _pack(folder, partial)
        _sync_all(partial)
        _put_in_place(partial, target, options.overwrite)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            partial.unlink()
    return ExportReport(target=str(target), **done)


def check_target(target: Path | str, options: ExportOptions) -> Path:
    """The absolute path of a target that may be written; raises Conflict or InvalidInput if it may not."""
    target = Path(target).expanduser().absolute()
    if not target.name:
        raise InvalidInput(f"{target} cannot be the target of an export; name a folder or a .zip file in it.")
    _refuse_existing(target, options.overwrite)
    return target


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

    def run(self, report: Report) -> dict[str, Any]:
        with self.store.read() as connection:
            roles.check_in(connection, self.project_id, "edit")
            moment = snapshots.present(connection, self.project_id)
            rows = ExportRows(self.store, connection, self.project_id, self.options)
            self.kind = projects.row_in(connection, self.project_id).kind
            with contextlib.ExitStack() as stack:
                self.stack = stack
                for item in rows if self.weights is None else self.weights.chosen(rows):
                    self._write(item)
                    if self.n_rows % REPORT_EVERY == 0:
                        report(Progress("export", self.n_rows, 0))
                self._writer(self.table)  # an export without rows still has its (empty) table
            about = self._about(connection, moment, rows)
        if judges_media(self.store):
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

    def _write(self, item: ExportItem) -> None:
        values = item.values
        self.n_rows += 1
        self.labels[values["label"]] += 1
        self.sources[values["source"]] += 1
        self.n_contested += values["contested"]
        self.n_decided += values["decided_by"] == "review"
        values["path"] = self._media(item)
        self._writer(self.table).write(values)
        if self.options.format == "folders" and values["path"]:
            split, _, place = values["path"].partition("/")
            self._writer(f"{split}/metadata.csv").write({"file_name": place} | values)

    @property
    def table(self) -> str:
        """The file name of the complete table, which imports read."""
        return TABLE_NAMES[self.options.format]

    def _writer(self, table: str) -> TableWriter:
        if table not in self.writers:
            path = self.folder / table
            path.parent.mkdir(exist_ok=True)
            self.writers[table] = self.stack.enter_context(self._make_writer(path))
        return self.writers[table]

    def _make_writer(self, path: Path) -> Any:
        if path.name == "metadata.csv":
            return CsvWriter(path, self._columns(LOADED_COLUMNS), for_loaders=True)
        if self.options.format in ("csv", "folders"):
            return CsvWriter(path, self._columns(COLUMNS))
        if self.options.format == "jsonl":
            return JsonlWriter(path)
        if self.options.format == "parquet":
            return ParquetWriter(path, self._columns(COLUMNS))
        return TasksWriter(path, self.kind, self._media_prefix())

    def _media_prefix(self) -> str:
        """What stands before the path of a file in a Label Studio task."""
        if self.options.media_prefix is not None:
            return self.options.media_prefix
        return local_files_prefix(self.target)

    def _columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns if self.weights is None else (*columns, WEIGHT)

    def _media(self, item: ExportItem) -> str:
        """Copy the item's file into the export; its path there, or "" without a file."""
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
            self._copy(values["sha256"], item.link_path, target)
        except (MediaMissing, MediaChanged) as problem:
            self.problems[item.id] = describe(problem)
            return ""
        self.n_media += 1
        return place

    def _copy(self, sha256: str, link_path: str | None, target: Path) -> None:
        """Copy the bytes as imported; raises `MediaMissing` or `MediaChanged`."""
        digest = hashlib.sha256()
        with self.store.media.open(sha256, link_path) as source, open(target, "xb") as copy:
            while block := source.read(1 << 20):
                digest.update(block)
                copy.write(block)
        if digest.hexdigest() != sha256:
            target.unlink()
            raise MediaChanged(f"The file of {sha256} has changed since it was imported.")

    def _class_folder(self, label: str) -> str:
        """A safe folder name: the class name if it is one, else a number with the readable part of the name."""
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
        project = projects.row_in(connection, self.project_id)
        known = class_rows.rows_in(connection, self.project_id)
        names = {row.id: row.name for row in known}
        if self.options.format == "label-studio":
            view = labeling_interface(self.kind, [row.name for row in known if row.active])
            (self.folder / "label_config.xml").write_text(view, encoding="utf-8")
            steps = readme(self.target, self._media_prefix(), self.options.media)
            (self.folder / "README.md").write_text(steps, encoding="utf-8")
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and not _is_media(path)]
        return {
            "format": "winnow-export",
            "version": 1,
            "tables": [self.table],
            "content": {name: value for name, value in asdict(self.options).items() if name != "overwrite"},
            "project": {
                "name": project.name,
                "kind": project.kind,
                "guidelines": project.guidelines,
                "settings": asdict(project.settings),
            },
            "snapshot": asdict(moment),
            "summary": dict(self.weights.about) if self.weights is not None else None,
            "pseudo_labels_of_round": rows.pseudo_labels.number if rows.pseudo_labels is not None else None,
            "counts": {
                "rows": self.n_rows,
                "labels": dict(self.labels),
                "sources": dict(self.sources),
                "media_files": self.n_media,
                "media_missing": len(self.problems),
                "contested": self.n_contested,
                "contested_left_out": rows.n_left_out,
                "decided_in_review": self.n_decided,
            },
            "classes": [
                {
                    "name": row.name,
                    "key": row.key,
                    "color": row.color,
                    "retired": row.retired_at is not None,
                    "counts_as": names[row.effective_id] if row.effective_id is not None else None,
                    "folder": self.folder_names.get(row.name),
                }
                for row in known
            ],
            "files": {path.relative_to(self.folder).as_posix(): _described(path) for path in files},
        }


def _is_media(path: Path) -> bool:
    return len(path.stem) == 64 and path.suffix != ".json"


def _described(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "n_bytes": path.stat().st_size}


def _pack(folder: Path, target: Path) -> None:
    """Write one zip file: media stored, tables deflated, fixed dates, so that equal exports are equal files."""
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        for path in _files_below(folder):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_STORED if _is_media(path) else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            with open(path, "rb") as source, archive.open(entry, "w", force_zip64=True) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)


def _files_below(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files_below(Path(entry.path))
        else:
            yield Path(entry.path)


def _refuse_existing(target: Path, overwrite: bool) -> None:
    if not target.exists() or overwrite:
        if overwrite and target.is_dir() and any(target.iterdir()) and not (target / "manifest.json").is_file():
            raise Conflict(f"{target} is not an export of Winnow and is left alone. Choose another name.")
        return
    raise Conflict(f"{target} already exists. Choose another name, or replace it (--overwrite).")


def _put_in_place(partial: Path, target: Path, overwrite: bool) -> None:
    """Rename `partial` to `target`; an older export is moved aside first and removed afterwards."""
    old = target.with_name(f"{partial.name}.old") if overwrite and target.is_dir() else None
    try:
        if old is not None:
            os.rename(target, old)
        if not overwrite and target.exists():
            raise FileExistsError
        os.replace(partial, target)
    except OSError as problem:
        if old is not None and old.exists() and not target.exists():
            os.rename(old, target)
        raise Conflict(f"{target} was created by another process in the meantime. Choose another name.") from problem
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    sync_path(target.parent)


def _sync_all(path: Path) -> None:
    for file in _files_below(path) if path.is_dir() else (path,):
        if path.is_dir() and _is_media(file):
            continue  # the store has these bytes too
        sync_path(file)


def _clear_leftovers(target: Path) -> None:
    """Remove the temporary files of killed exports to this target."""
    for path in target.parent.iterdir():
        found = _PARTIAL.match(path.name.removesuffix(".d").removesuffix(".old"))
        if found and found["name"] == target.name and not is_running(int(found["pid"])):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()
