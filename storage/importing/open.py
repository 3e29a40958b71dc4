"""Which kind of source a path is: a folder, an archive, a manifest, or a folder or archive that carries a manifest."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from core.errors import InvalidInput
from core.limits import Limits
from storage.importing.folder import FolderSource, head_of_file
from storage.importing.manifests import Finder, FolderFinder, ManifestSource, ZipFinder
from storage.importing.sources import Place, Source
from storage.importing.zip import ZipSource
from storage.importing.zip_reader import BadEntry, ZipEntry

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".json", ".txt")
MANIFESTS = tuple(
    f"{stem}{suffix}" for stem in ("manifest", "metadata") for suffix in (".csv", ".tsv", ".jsonl", ".parquet")
)
EXPORT = "manifest.json"  # what an export of Winnow says about itself
Locate = Callable[[str], Place | None]


def open_source(path: Path | str, limits: Limits | None = None, locate: Locate = lambda sha256: None) -> Source:
    """The source at `path`; close it after use. `locate` knows bytes that the store has, by their hash."""
    path, limits = Path(path).expanduser(), limits or Limits()
    if not path.exists():
        raise InvalidInput(f"There is no {path}. Give a folder, a zip archive or a manifest.")
    if path.is_dir():
        tables = _tables_in(path)
        if not tables:
            return FolderSource(path)
        return ManifestSource([(table, FolderFinder(table.parent)) for table in tables], str(path), locate)
    if not path.is_file():
        raise InvalidInput(f"{path} is not a regular file. Give a folder, a zip archive or a manifest.")
    try:
        head = head_of_file(str(path.resolve()), 4)
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}.") from problem
    if head in (b"PK\x03\x04", b"PK\x05\x06"):
        return _open_zip(path, limits, locate)
    if path.name == EXPORT and (tables := _tables_in(path.parent)):
        return ManifestSource([(table, FolderFinder(table.parent)) for table in tables], str(path), locate)
    if path.suffix.lower() not in TABLES and head != b"PAR1":
        raise InvalidInput(
            f"{path.name} is not a folder, a zip archive or a manifest ({', '.join(TABLES)}). "
            "To import single files, give the folder they are in."
        )
    _check_size(path.stat().st_size, path.name, limits)
    return ManifestSource([(path, FolderFinder(path.parent))], str(path), locate)


def _tables_in(folder: Path) -> list[Path]:
    """The tables that describe a folder: those its export names, or a manifest at its top."""
    if (folder / EXPORT).is_file():
        return [folder / name for name in _exported_tables((folder / EXPORT).read_bytes(), str(folder))]
    return next(([folder / name] for name in MANIFESTS if (folder / name).is_file()), [])


def _exported_tables(content: bytes, where: str) -> list[str]:
    """Names of the tables of an export, or nothing when this is another kind of file."""
    try:
        said = json.loads(content)
    except ValueError:
        return []
    if not isinstance(said, dict) or said.get("format") != "winnow-export":
        return []
    tables = said.get("tables")
    if not isinstance(tables, list) or not all(isinstance(name, str) and _plain(name) for name in tables):
        raise InvalidInput(f"The manifest.json of {where} does not name its tables. Export again.")
    return tables


def _plain(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/") and "\x00" not in name


def _check_size(n_bytes: int, name: str, limits: Limits) -> None:
    if n_bytes > limits.max_manifest_bytes:
        raise InvalidInput(
            f"The manifest {name} has {n_bytes:,} bytes; the limit is {limits.max_manifest_bytes:,} "
            "(max_manifest_bytes). Split it, or raise the limit."
        )


def _open_zip(path: Path, limits: Limits, locate: Locate) -> Source:
    source = ZipSource(path, limits)
    try:
        inside = {entry.name: entry for entry in source.reader.entries() if entry.name in (EXPORT, *MANIFESTS)}
        names = next(([name] for name in MANIFESTS if name in inside), [])
        if EXPORT in inside:
            content = _unpacked(source, inside[EXPORT], limits)
            names = _exported_tables(content, path.name) or names
        if not names:
            return source
        wanted = {entry.name: entry for entry in source.reader.entries() if entry.name in names}
        if missing := sorted(set(names) - set(wanted)):
            raise InvalidInput(f"{path.name} lacks {', '.join(missing)}, which its manifest.json names.")
        return _zip_manifest(source, [wanted[name] for name in names], limits, locate)
    except BadEntry as problem:
        source.close()
        raise InvalidInput(f"The manifest in {path.name} cannot be read. {problem}") from problem
    except BaseException:
        source.close()
        raise


def _zip_manifest(source: ZipSource, entries: list[ZipEntry], limits: Limits, locate: Locate) -> ManifestSource:
    """The tables are unpacked under names of our own; what they list stays packed."""
    scratch = tempfile.TemporaryDirectory(prefix="winnow-")
    tables: list[tuple[Path, Finder]] = []
    for number, entry in enumerate(entries):
        table = Path(scratch.name) / f"{number}{Path(entry.name).suffix}"
        table.write_bytes(_unpacked(source, entry, limits))
        folder = entry.name.rpartition("/")[0]
        tables.append((table, ZipFinder(source, limits, f"{folder}/" if folder else "")))
    return ManifestSource(tables, source.description, locate, scratch)


def _unpacked(source: ZipSource, entry: ZipEntry, limits: Limits) -> bytes:
    _check_size(entry.size, entry.name, limits)
    return b"".join(source.reader.read(entry))
