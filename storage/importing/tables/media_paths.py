"""Finding the file that a path in a table names.

Tables name files relative to themselves or to a folder beside them, with or without the extension, or by the file name
alone. The first rows of a table show which of these forms it uses; later rows are looked up in the same way.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from storage.importing.folder_names import CONTAINERS, is_media_name
from storage.importing.sources import Place
from storage.importing.tables.finders import Finder, InvalidRow, NoSuchFile, check_path

LABEL_STUDIO = "/data/"
_LOCAL_FILES = re.compile(r"/data/local-files/\?d=")
_UPLOAD = re.compile(r"/data/upload/")
_UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-")
MOST_FOLDERS = 50
MOST_FILES = 1_000  # of a folder, whose extensions are read


class MediaPaths:
    """Looks up the paths of one table. `start` is the table's folder in the finder."""

    def __init__(self, finder: Finder, start: str = "") -> None:
        self._finder, self._start = finder, start
        self._ways: list[tuple[str, str]] = [(start, "")]  # (folder, extension to add)
        self._by_name: dict[str, list[str]] | None = None

    @property
    def root(self) -> str:
        """The folder that most paths are relative to; "" is the source itself."""
        return self._ways[0][0]

    def learn(self, paths: Sequence[str]) -> None:
        """Determine from a few paths of the table how it names files."""
        paths = [path for path in paths if path]
        if not paths or self._n_found(paths, self._start, "") == len(paths):
            return
        hits = {way: n for way in self._possible_ways() if (n := self._n_found(paths, *way))}
        if hits:
            self._ways = sorted(hits, key=lambda way: -hits[way])  # stable: nearer folders first
        else:
            self._index()

    def find(self, path: str) -> Place:
        """The place of the file that `path` names. Raises `InvalidRow` with the reason if there is none."""
        names = list(_spellings(path))
        for name in names:
            check_path(name)
            for folder, extension in self._ways:
                try:
                    return self._finder.find(posixpath.join(folder, name + extension))
                except NoSuchFile:
                    continue
        if self._by_name is not None:
            return self._find_by_name(names)
        raise NoSuchFile("There is no such file.")

    def _n_found(self, paths: Sequence[str], folder: str, extension: str) -> int:
        return sum(self._is_there(path, folder, extension) for path in paths)

    def _is_there(self, path: str, folder: str, extension: str) -> bool:
        for name in _spellings(path):
            try:
                check_path(name)
                self._finder.find(posixpath.join(folder, name + extension))
                return True
            except InvalidRow:
                continue
        return False

    def _possible_ways(self) -> Iterator[tuple[str, str]]:
        for folder in self._possible_folders():
            yield folder, ""
            names = self._finder.files(folder)[:MOST_FILES]
            extensions = Counter(posixpath.splitext(name)[1] for name in names if is_media_name(name))
            yield from ((folder, extension) for extension, _ in extensions.most_common() if extension)

    def _possible_folders(self) -> Iterator[str]:
        for top in dict.fromkeys((self._start, "")):
            yield top
            inside = self._finder.folders(top)[:MOST_FOLDERS]
            for name in sorted(inside, key=lambda name: name.casefold() not in CONTAINERS):
                yield posixpath.join(top, name)

    def _index(self) -> None:
        """Index all files by name, with and without the extension, for a table that names no folders."""
        self._by_name = {}
        for path in self._finder.all_files():
            name = posixpath.basename(path)
            if is_media_name(name):
                for key in {name, posixpath.splitext(name)[0]}:
                    self._by_name.setdefault(key, []).append(path)

    def _find_by_name(self, names: Sequence[str]) -> Place:
        assert self._by_name is not None
        for name in names:
            found = self._by_name.get(posixpath.basename(name.replace("\\", "/")), [])
            if len(found) == 1:
                return self._finder.find(found[0])
            if found:
                raise InvalidRow(f"{len(found)} files have this name ({found[0]!r}, {found[1]!r}). Name their folder.")
        raise NoSuchFile("There is no such file.")


def _spellings(path: str) -> Iterator[str]:
    """The paths that a file may have on disk: an address of Label Studio can stand for several."""
    if not path.startswith(LABEL_STUDIO):
        yield path
        return
    if found := _LOCAL_FILES.match(path) or _UPLOAD.match(path):
        name = unquote(path[found.end() :]).lstrip("/")
        if _UPLOAD.match(path):
            yield f"upload/{name}"
        parts = name.split("/")
        yield from ("/".join(parts[start:]) for start in range(len(parts)))
        if _UPLOAD_PREFIX.match(parts[-1]):
            yield _UPLOAD_PREFIX.sub("", parts[-1], count=1)
    else:
        yield path
