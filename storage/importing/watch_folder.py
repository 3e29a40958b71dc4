"""A scan of a watched folder: which files are new or changed, and no longer change.

A file that is still being written is left alone: it counts as settled when its size and time of change were the same at
two looks at least `patience` seconds apart, or when it was last touched longer ago than `OLD_SECONDS`. Names that begin
with a dot or end as unfinished downloads do are not looked at: writers that finish by renaming need no patience.
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
REFUSED = (-1, 0)  # the signature of what is no regular file


class Arrival(NamedTuple):
    """An entry that something has to become of, and the state of its file when it was looked at."""

    entry: Entry
    path: str
    n_bytes: int
    mtime_ns: int


class SettledFiles(FolderSource):
    """These files of a folder alone, as a source for `storage.importing.run`."""

    def __init__(self, root: Path, arrivals: Sequence[Arrival]) -> None:
        super().__init__(root)
        self._arrivals = arrivals

    def entries(self) -> Iterator[Entry]:
        return (arrival.entry for arrival in self._arrivals)


class Lookout:
    """Remembers between looks what was still moving; forgets with the process, which only costs patience."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._moving: dict[str, tuple[int, int, float]] = {}  # path -> size, time of change, since when

    @property
    def n_moving(self) -> int:
        """Files that the last look left alone."""
        return len(self._moving)

    def look(self, store: Store, project_id: int, root: Path, limit: int) -> list[Arrival]:
        """At most `limit` arrivals. The whole folder is gone through, a chunk of names in memory at a time."""
        found: list[Arrival] = []
        before, self._moving = self._moving, {}
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
                    self._moving = before | self._moving
                    return found
        return found

    def _settled(self, arrival: Arrival, before: dict[str, tuple[int, int, float]]) -> bool:
        if arrival.entry.problem or self._is_old(arrival):
            return True
        size, changed, since = before.get(arrival.path, (-1, -1, 0.0))
        if (size, changed) != (arrival.n_bytes, arrival.mtime_ns):
            since = time.monotonic()
        elif time.monotonic() - since >= self.patience:
            return True
        self._moving[arrival.path] = (arrival.n_bytes, arrival.mtime_ns, since)
        return False

    def _is_old(self, arrival: Arrival) -> bool:
        """Last changed, in content or in name, long ago by this machine's clock."""
        try:
            touched = os.lstat(arrival.path).st_ctime
        except OSError:
            return False
        return time.time() - max(touched, arrival.mtime_ns / 1e9) > max(OLD_SECONDS, self.patience)


def _arrival(root: Path, entry: Entry) -> Arrival | None:
    """None for what is not to be looked at, or is gone again."""
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
