"""A folder as a source: every regular file below it, in the order of names; everything else with a reason."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.errors import InvalidInput
from storage.importing.folder_names import FolderNames, is_media_name
from storage.importing.reading import Findings, ReadingOptions
from storage.importing.sources import (
    CellPlace,
    Entry,
    FilePlace,
    PackedPlace,
    Place,
    readable_name,
)

_KINDS = (
    (stat.S_ISLNK, "a symbolic link; links are not followed"),
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FolderSource:
    """Walks the folder with one open directory per level and its names in memory; never follows a link."""

    strict = False

    def __init__(
        self, root: Path, options: ReadingOptions | None = None, class_names: Mapping[str, str] | None = None
    ) -> None:
        try:
            self.root = Path(root).resolve(strict=True)
            os.scandir(self.root).close()
        except OSError as problem:
            raise InvalidInput(f"The folder {root} cannot be read: {problem.strerror}.") from problem
        self.description = str(self.root)
        self.choices: Sequence[str] = ()  # tables beside the files that are not used
        self._options, self._class_names = options or ReadingOptions(), class_names or {}
        self._names = FolderNames(self._options, self._class_names)

    def entries(self) -> Iterator[Entry]:
        self._names = FolderNames(self._options, self._class_names)
        yield from self._below(str(self.root), "")

    def findings(self) -> Findings:
        found = self._names.findings()
        found.choices = list(self.choices)
        return found

    def _below(self, folder: str, prefix: str) -> Iterator[Entry]:
        try:
            found = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as problem:
            yield Entry(readable_name(prefix), problem=f"The folder cannot be read: {problem.strerror}.")
            return
        inside = readable_name(prefix.rstrip("/"))
        self._names.enter(inside, {readable_name(entry.name) for entry in found if entry.is_dir(follow_symlinks=False)})
        meaning = self._names.meaning(inside)
        n_media = sum(entry.is_file(follow_symlinks=False) and is_media_name(entry.name) for entry in found)
        self._names.count(inside, meaning, n_media)
        for entry in found:
            name = prefix + entry.name
            if entry.is_file(follow_symlinks=False):
                labels = meaning.labels if is_media_name(entry.name) else ()
                yield Entry(readable_name(name), FilePlace(entry.path), "", meaning.split, labels)
            elif entry.is_dir(follow_symlinks=False):
                yield from self._below(entry.path, name + "/")
            else:
                yield Entry(readable_name(name), problem=f"It is {_kind(entry)}.")

    def head(self, place: Place, n_bytes: int) -> bytes:
        assert isinstance(place, FilePlace)
        return head_of_file(place.path, n_bytes)

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        raise TypeError("A folder has no packed entries.")

    def close(self) -> None:
        """No effect: the source holds no open file."""


def head_of_file(path: str, n_bytes: int) -> bytes:
    """The first bytes of a regular file; never waits for a FIFO and never follows a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file", path)
        return os.read(descriptor, n_bytes)
    finally:
        os.close(descriptor)


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return "not readable"
    return next((what for holds, what in _KINDS if holds(mode)), "not a regular file")
