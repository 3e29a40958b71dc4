"""Finders of a table's files: below a folder, or in an archive. Paths never lead outside, and links are refused."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from core.limits import Limits
from storage.importing.folder import head_of_file
from storage.importing.sources import CellPlace, FilePlace, PackedPlace, Place
from storage.importing.zip import ZipSource, why_refused

_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.\-]*://|(data|file|https?|ftp|javascript|s3|gs):)", re.IGNORECASE)
_HIDDEN = ("__MACOSX", ".")


class InvalidRow(Exception):
    """A row that is not imported; the text is the reason."""


class NoSuchFile(InvalidRow):
    """No file has this name here; it may exist in another place."""


class Finder(Protocol):
    """Finds the file that a path names; lists folders and files. Paths are relative, with slashes; "" is the top."""

    def find(self, path: str) -> Place:
        """The place of the file. Raises `InvalidRow` with the reason if the file may not be used."""
        ...

    def folders(self, folder: str = "") -> list[str]:
        """Names of the folders directly in a folder, in order; hidden ones are left out."""
        ...

    def files(self, folder: str = "") -> list[str]:
        """Names of the files directly in a folder, in order; hidden ones are left out."""
        ...

    def all_files(self) -> Iterator[str]:
        """Paths of all files."""
        ...

    def head(self, place: Place, n_bytes: int) -> bytes: ...

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None: ...

    def close(self) -> None: ...


class FolderFinder:
    """Regular files below `root`, reached without symbolic links."""

    def __init__(self, root: Path | str) -> None:
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
            raise NoSuchFile("There is no such file.") from None
        if stat.S_ISLNK(mode):
            raise InvalidRow("It is a symbolic link; links are not followed.")
        if not stat.S_ISREG(mode):
            raise InvalidRow("It is not a regular file.")
        return FilePlace(full)

    def folders(self, folder: str = "") -> list[str]:
        return self._listed(folder, folders=True)

    def files(self, folder: str = "") -> list[str]:
        return self._listed(folder, folders=False)

    def _listed(self, folder: str, folders: bool) -> list[str]:
        try:
            with os.scandir(os.path.join(self.root, folder)) as found:
                return sorted(
                    entry.name
                    for entry in found
                    if not entry.name.startswith(_HIDDEN)
                    and (entry.is_dir(follow_symlinks=False) if folders else entry.is_file(follow_symlinks=False))
                )
        except OSError:
            return []

    def all_files(self) -> Iterator[str]:
        start = len(self.root.rstrip("/")) + 1
        for folder, inside, names in os.walk(self.root):
            inside[:] = sorted(name for name in inside if not name.startswith(_HIDDEN))
            for name in sorted(names):
                if not name.startswith(_HIDDEN):
                    yield os.path.join(folder, name)[start:]

    def head(self, place: Place, n_bytes: int) -> bytes:
        assert isinstance(place, FilePlace)
        return head_of_file(place.path, n_bytes)

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        raise TypeError("A folder has no packed entries.")

    def close(self) -> None:
        """No effect: the finder holds no open file."""


class ZipFinder:
    """Entries of an archive below one of its folders, by name."""

    def __init__(self, source: ZipSource, limits: Limits, folder: str = "") -> None:
        self._source, self._limits, self._folder = source, limits, f"{folder}/" if folder else ""
        self._positions: dict[str, int] = {}
        for entry in source.reader.entries():
            self._positions.setdefault(entry.name, entry.position)

    def find(self, path: str) -> Place:
        path = path.removeprefix("./")
        name = self._folder + path.replace("\\", "/")
        position = self._positions.get(name, self._positions.get(self._folder + path))
        if position is None:
            raise NoSuchFile("There is no such entry in the archive.")
        entry = self._source.reader.entry_at(position)
        if problem := why_refused(entry, self._limits):
            raise InvalidRow(problem)
        return PackedPlace(position, entry.size)

    def folders(self, folder: str = "") -> list[str]:
        inside = f"{folder}/" if folder else ""
        found = {path[len(inside) :].partition("/")[0] for path in self._below(inside) if "/" in path[len(inside) :]}
        return sorted(name for name in found if not name.startswith(_HIDDEN))

    def files(self, folder: str = "") -> list[str]:
        inside = f"{folder}/" if folder else ""
        found = (path[len(inside) :] for path in self._below(inside))
        return sorted(name for name in found if name and "/" not in name and not name.startswith(_HIDDEN))

    def all_files(self) -> Iterator[str]:
        return (path for path in self._below("") if path and not path.endswith("/") and "__MACOSX" not in path)

    def _below(self, inside: str) -> Iterator[str]:
        start = self._folder + inside
        return (name[len(self._folder) :] for name in self._positions if name.startswith(start))

    def head(self, place: Place, n_bytes: int) -> bytes:
        return self._source.head(place, n_bytes)

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        self._source.unpack(place, target)

    def close(self) -> None:
        self._source.close()


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
