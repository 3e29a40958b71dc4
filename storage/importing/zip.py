"""A zip archive as a source. Bytes are unpacked under generated names, never under those of the archive."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.limits import MIB, Limits, size_problem
from storage.importing.folder_names import FolderMeaning, FolderNames, is_media_name
from storage.importing.reading import Findings, ReadingOptions
from storage.importing.sources import CellPlace, Entry, PackedPlace, Place
from storage.importing.splits import NAMES as SPLIT_NAMES
from storage.importing.zip_reader import BadEntry, ZipEntry, ZipReader

MOST_SIBLINGS = 100  # sibling folders that are remembered, besides those with names of splits
_DRIVE = re.compile(r"[A-Za-z]:")
_BESIDES = ("__MACOSX/", ".DS_Store", "Thumbs.db")  # files that desktop systems add


class ZipSource:
    """Every entry that is a regular file; everything else with a reason."""

    strict = False

    def __init__(
        self,
        path: Path,
        limits: Limits,
        options: ReadingOptions | None = None,
        class_names: Mapping[str, str] | None = None,
    ) -> None:
        self.choices: Sequence[str] = ()  # tables beside the files that are not used
        self.reader = ZipReader(path, limits)
        self.limits = limits
        self.description = str(path)
        self.options, self.class_names = options or ReadingOptions(), class_names or {}
        self._names = FolderNames(self.options, self.class_names)

    def _enter_folders(self) -> FolderNames:
        """The meanings of the archive's folders. Of many siblings, those after MOST_SIBLINGS count only if they have
        the name of a split."""
        names = FolderNames(self.options, self.class_names)
        children: dict[str, set[str]] = {}
        last = ""
        for packed in self.reader.entries():
            folder = packed.name.replace("\\", "/").rpartition("/")[0]
            if folder == last:
                continue
            last, parent = folder, ""
            for name in folder.split("/") if folder else ():
                beside = children.setdefault(parent, set())
                if len(beside) < MOST_SIBLINGS or name.casefold() in SPLIT_NAMES:
                    beside.add(name)
                parent = f"{parent}/{name}" if parent else name
        for parent, beside in children.items():
            names.enter(parent, beside)
        return names

    def findings(self) -> Findings:
        found = self._names.findings()
        found.choices = list(self.choices)
        return found

    def entries(self) -> Iterator[Entry]:
        self._names = self._enter_folders()
        self._meanings: dict[str, FolderMeaning] = {}
        names = {hash(packed.name) for packed in self.reader.entries()}
        seen: set[int] = set()
        for packed in self.reader.entries():
            if packed.is_folder:
                continue
            problem = why_refused(packed, self.limits)
            if problem:
                yield Entry(printable(packed.name), problem=problem)
                continue
            name = packed.name
            if hash(name) in seen:
                name = distinct_name(name, names)
                names.add(hash(name))
            seen.add(hash(name))
            yield self._entry(packed, name)

    def _entry(self, packed: ZipEntry, shown: str) -> Entry:
        folder, _, name = packed.name.replace("\\", "/").rpartition("/")
        if folder not in self._meanings:
            self._meanings[folder] = self._names.meaning(folder)
        meaning, media = self._meanings[folder], is_media_name(name)
        if media:
            self._names.count(folder, meaning)
        labels = meaning.labels if media else ()
        return Entry(shown, PackedPlace(packed.position, packed.size), split=meaning.split, labels=labels)

    def head(self, place: Place, n_bytes: int) -> bytes:
        assert isinstance(place, PackedPlace)
        head = b""
        for block in self.reader.read(self.reader.entry_at(place.position)):
            head += block
            if len(head) >= n_bytes:
                break
        return head[:n_bytes]

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        """Write the entry's bytes to `target`. On `BadEntry`, the partial file is removed."""
        assert isinstance(place, PackedPlace)
        try:
            with open(target, "xb") as file:
                for block in self.reader.read(self.reader.entry_at(place.position)):
                    file.write(block)
        except BadEntry:
            target.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        self.reader.close()


def distinct_name(name: str, taken: set[int]) -> str:
    """A name for a further entry of the same name, such as "dog/a (2).wav", that no other entry has."""
    folder, slash, last = name.rpartition("/")
    stem, dot, ending = last.rpartition(".")
    if not stem:
        stem, dot, ending = last, "", ""
    number = 2
    while hash(found := f"{folder}{slash}{stem} ({number}){dot}{ending}") in taken:
        number += 1
    return found


def why_refused(entry: ZipEntry, limits: Limits) -> str:
    """Why the entry must not be unpacked, one sentence; "" if it may be."""
    name = entry.name
    parts = name.replace("\\", "/").split("/")
    if "\x00" in name:
        return "Its name contains a NUL character."
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        return "Its name is an absolute path."
    if ".." in parts:
        return "Its name leads out of the archive (..)."
    if any(part in name for part in _BESIDES):
        return "It is a file of the operating system, not media."
    kind = stat.S_IFMT(entry.mode)
    if kind == stat.S_IFLNK:
        return "It is a symbolic link; links are not followed."
    if kind not in (0, stat.S_IFREG):
        return "It is not a regular file (a device, pipe or folder)."
    if problem := size_problem(entry.size, limits):
        return problem
    if entry.size > MIB and entry.size > limits.max_zip_ratio * max(entry.packed, 1):
        ratio = entry.size / max(entry.packed, 1)
        return f"It unpacks to {ratio:,.0f} times its size; the limit is {limits.max_zip_ratio:g} (max_zip_ratio)."
    return ""


def printable(name: str) -> str:
    """A name that cannot be stored, in a printable form for reports."""
    return name.replace("\x00", "\\x00")
