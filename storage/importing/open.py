"""Opens a path as a source: a folder, an archive, a table, or a folder or archive with a table in it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from core.errors import InvalidInput
from core.limits import Limits
from storage.importing.folder import FolderSource, head_of_file
from storage.importing.reading import ReadingOptions
from storage.importing.sources import FilePlace, PackedPlace, Source
from storage.importing.tables.discovery import EXPORT, TABLES, Discovery, TableFinder
from storage.importing.tables.finders import Finder, FolderFinder, NoSuchFile, ZipFinder
from storage.importing.tables.label_table import LabelTable, Locate
from storage.importing.tables.source import ManifestSource
from storage.importing.tables.synsets import synset_names
from storage.importing.zip import ZipSource
from storage.importing.zip_reader import BadEntry


def open_source(
    path: Path | str,
    limits: Limits | None = None,
    locate: Locate = lambda sha256: None,
    reading: ReadingOptions | None = None,
) -> Source:
    """The source at `path`; close it after use. `locate` finds bytes in the store by their hash."""
    path, limits, reading = Path(path).expanduser(), limits or Limits(), reading or ReadingOptions()
    if not path.exists():
        raise InvalidInput(f"There is no {path}. Give a folder, a zip archive or a table.")
    if path.is_dir():
        return _open_folder(path, path, limits, locate, reading)
    if not path.is_file():
        raise InvalidInput(f"{path} is not a regular file. Give a folder, a zip archive or a table.")
    try:
        head = head_of_file(str(path.resolve()), 4)
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}.") from problem
    if head in (b"PK\x03\x04", b"PK\x05\x06"):
        return _open_zip(path, limits, locate, reading)
    if path.name == EXPORT and (found := _discover_in_folder(path.parent, limits, reading)).exact:
        return ManifestSource(found.tables, str(path), locate)
    if path.suffix.lower() not in TABLES and head != b"PAR1":
        raise InvalidInput(
            f"{path.name} is not a folder, a zip archive or a manifest ({', '.join(TABLES)}). "
            "To import single files, give the folder they are in."
        )
    _check_size(path.stat().st_size, path.name, limits)
    table = LabelTable(path, path.name, _media_finder(path.parent, reading), options=reading)
    return ManifestSource([table], str(path), locate)


def _media_finder(folder: Path, reading: ReadingOptions) -> FolderFinder:
    """A finder for a table's files: below the media root if one is named, else below the table's folder."""
    if not reading.media_root:
        return FolderFinder(folder)
    root = Path(reading.media_root).expanduser()
    root = root if root.is_absolute() else folder / root
    if not root.is_dir():
        raise InvalidInput(f"The media root {root} is not a folder. Name the folder that the table's paths start from.")
    return FolderFinder(root)


def _open_folder(path: Path, folder: Path, limits: Limits, locate: Locate, reading: ReadingOptions) -> Source:
    found = _discover_in_folder(folder, limits, reading)
    if found.tables:
        tables = ManifestSource(
            found.tables, str(path), locate, questions=found.questions, count_others=not found.exact
        )
        tables.choices = found.choices
        return tables
    finder = FolderFinder(folder)
    source = FolderSource(folder, reading, synset_names(finder, lambda name: _local(finder, name, limits)))
    source.choices = found.choices
    return source


def _discover_in_folder(folder: Path, limits: Limits, reading: ReadingOptions) -> Discovery:
    finder = FolderFinder(folder)
    found = TableFinder(finder, lambda name: _local(finder, name, limits), reading).find()
    if reading.media_root:
        root = _media_finder(folder, reading)
        for table in found.tables:
            table.look_in(root)
    return found


def _local(finder: FolderFinder, name: str, limits: Limits) -> Path:
    place = finder.find(name)
    assert isinstance(place, FilePlace)
    path = Path(place.path)
    _check_size(path.stat().st_size, name, limits)
    return path


def _check_size(n_bytes: int, name: str, limits: Limits) -> None:
    if n_bytes > limits.max_manifest_bytes:
        raise InvalidInput(
            f"The manifest {name} has {n_bytes:,} bytes; the limit is {limits.max_manifest_bytes:,} "
            "(max_manifest_bytes). Split it, or raise the limit."
        )


def _open_zip(path: Path, limits: Limits, locate: Locate, reading: ReadingOptions) -> Source:
    source = ZipSource(path, limits, reading)
    scratch = tempfile.TemporaryDirectory(prefix="winnow-")
    try:
        finder = ZipFinder(source, limits)
        unpacked = _Unpacked(finder, Path(scratch.name), limits)
        found = TableFinder(finder, unpacked.fetch, reading).find()
        if not found.tables:
            source.class_names, source.choices = synset_names(finder, unpacked.fetch), found.choices
            scratch.cleanup()
            return source
        if reading.media_root:
            root = ZipFinder(source, limits, reading.media_root.strip("/"))
            for table in found.tables:
                table.look_in(root)
        tables = ManifestSource(
            found.tables, str(path), locate, scratch, questions=found.questions, count_others=not found.exact
        )
        tables.choices = found.choices
        return tables
    except BadEntry as problem:
        source.close()
        raise InvalidInput(f"The manifest in {path.name} cannot be read. {problem}") from problem
    except NoSuchFile as problem:
        source.close()
        raise InvalidInput(f"{path.name} lacks a table that its manifest.json names. {problem}") from problem
    except BaseException:
        source.close()
        raise


class _Unpacked:
    """Tables of an archive, unpacked under generated names; the files that they list stay packed."""

    def __init__(self, finder: Finder, folder: Path, limits: Limits) -> None:
        self._finder, self._folder, self._limits = finder, folder, limits
        self._paths: dict[str, Path] = {}

    def fetch(self, name: str) -> Path:
        if name not in self._paths:
            place = self._finder.find(name)
            assert isinstance(place, PackedPlace)
            _check_size(place.n_bytes, name, self._limits)
            target = self._folder / f"{len(self._paths)}{Path(name).suffix}"
            self._finder.unpack(place, target)
            self._paths[name] = target
        return self._paths[name]
