"""A scan of a watched folder for files that are new or changed, and complete.

A file that is still being written is left alone. It counts as settled if its size and modification time were the same
at two scans at least `settle_seconds` apart, or if it was last modified longer ago than `OLD_SECONDS`. Names that begin
with a dot or have the extension of an unfinished download are ignored; a file is imported once it is renamed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from storage.database.store import Store
from storage.importing import watches
from storage.importing.folder import FolderSource
from storage.importing.sources import Entry, FilePlace

UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", ".download", ".filepart", ".swp", "~")
OLD_SECONDS = 60.0
CHUNK = 500
REFUSED = (-1, 0)  # the signature of anything that is not a regular file


class Arrival(NamedTuple):
    """An entry to import or refuse, and the state of its file when it was scanned."""

    entry: Entry
    path: str
    n_bytes: int
    mtime_ns: int


class SettledFiles(FolderSource):
    """Only these files of a folder, as a source for `storage.importing.run`."""

    def __init__(self, root: Path, arrivals: Sequence[Arrival]) -> None:
        super().__init__(root)
        self._arrivals = arrivals

    def entries(self) -> Iterator[Entry]:
        return (arrival.entry for arrival in self._arrivals)


class FolderScanner:
    """Finds files that have stopped changing. Files that were still changing are remembered between scans, in memory
    only: after a restart, each of them must stay unchanged for `settle_seconds` again."""

    def __init__(self, settle_seconds: float) -> None:
        self.settle_seconds = settle_seconds
        self._changing: dict[str, tuple[int, int, float]] = {}  # path -> size, modification time, unchanged since

    @property
    def n_changing(self) -> int:
        """The number of files that the last scan left alone because they were still changing."""
        return len(self._changing)

    def scan(self, store: Store, project_id: int, root: Path, limit: int) -> list[Arrival]:
        """At most `limit` arrivals. The whole folder is read, with one chunk of names in memory at a time."""
        found: list[Arrival] = []
        before, self._changing = self._changing, {}
        entries = FolderSource(root).entries()
        while chunk := list(islice(entries, CHUNK)):
            here = [arrival for entry in chunk if (arrival := _arrival(root, entry)) is not None]
            known = watches.known_files(store, project_id, [arrival.path for arrival in here])
            for arrival in here:
                if known.get(arrival.path) == (arrival.n_bytes, arrival.mtime_ns):
                    continue
                if not self._settled(arrival, before):
                    continue
                found.append(arrival)
                if len(found) >= limit:
                    self._changing = before | self._changing
                    return found
        return found

    def _settled(self, arrival: Arrival, before: dict[str, tuple[int, int, float]]) -> bool:
        if arrival.entry.problem or self._is_old(arrival):
            return True
        size, changed, since = before.get(arrival.path, (-1, -1, 0.0))
        if (size, changed) != (arrival.n_bytes, arrival.mtime_ns):
            since = time.monotonic()
        elif time.monotonic() - since >= self.settle_seconds:
            return True
        self._changing[arrival.path] = (arrival.n_bytes, arrival.mtime_ns, since)
        return False

    def _is_old(self, arrival: Arrival) -> bool:
        """Whether content and name were last changed long ago by this machine's clock."""
        try:
            touched = os.lstat(arrival.path).st_ctime
        except OSError:
            return False
        return time.time() - max(touched, arrival.mtime_ns / 1e9) > max(OLD_SECONDS, self.settle_seconds)


def _arrival(root: Path, entry: Entry) -> Arrival | None:
    """The arrival of an entry; None for names that are ignored and files that no longer exist."""
    name = entry.name.rpartition("/")[2]
    if name.startswith(".") or name.lower().endswith(UNFINISHED) or "/." in f"/{entry.name}":
        return None
    if not isinstance(entry.place, FilePlace):
        return Arrival(entry, f"{root}/{entry.name}", *REFUSED)
    try:
        status = os.lstat(entry.place.path)
    except OSError:
        return None
    return Arrival(entry, entry.place.path, status.st_size, status.st_mtime_ns)
