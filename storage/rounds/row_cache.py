"""`core.types.RowCache` on disk: one row per (key, name), computed once, read by memory map.

    folder/<hash of key>/layout.json          the key, the shape and dtype of a row, and a hash of these
    folder/<hash of key>/<shard>.rows         rows one after another, only ever appended
    folder/<hash of key>/<shard>.sums         for each row the checksum of its bytes, 0 if it is not known
    folder/<hash of key>/<shard>.names        for each row the 16-byte hash of its name, appended after its row
    folder/<hash of key>/front.lock           held by the process that fills from the front

A row exists once its name is in the last file, so a killed process leaves at most unreferenced bytes. Each process
that computes rows appends to a shard that it has locked, so several can fill the same key: they start at opposite ends
and read each other's names after every block.

All rows can be computed again. A folder with a damaged layout is therefore removed and filled again. A row whose bytes
do not match their checksum is computed again when it is first read, and replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from core.atomic_files import sync_path
from core.errors import InvalidInput
from storage.system.file_lock import try_lock

LOG = logging.getLogger("winnow.row_cache")
DIGEST = 16
SUM_BYTES = 8
KNOWN = 1 << 32  # added to a CRC-32, so that a known checksum is never 0
DigestType = np.dtype((np.void, DIGEST))
BLOCK_BYTES = 8 << 20
MAX_BLOCK = 1024
BLOCK_SECONDS = 5.0  # of computation that an interruption may lose
MAPPED_BYTES = 128 << 20  # caches up to this size may be mapped as a whole
ROWS_BETWEEN_RELEASES = 64  # in larger ones: the system maps up to a megabyte around every row that is read


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape and dtype of one row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


NO_LAYOUT = Layout((), np.dtype(np.float32))


class FolderRowCache:
    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def rows(
        self,
        key: str,
        names: Sequence[str],
        compute: Callable[[Sequence[int]], NDArray[Any]],
        report: Callable[[int, int], None] | None = None,
    ) -> StoredRows:
        """See `core.types.RowCache.rows`."""
        key_folder = _KeyFolder(self.folder / hashlib.sha256(key.encode()).hexdigest()[:32], key)
        key_folder.remove_damaged()
        digests = digests_of(names)
        wanted = _Wanted(digests, key_folder)
        if wanted.n_missing:
            with key_folder.new_rows() as (shard, in_front):
                _fill(wanted, shard, compute, report, forward=in_front)
        return key_folder.open(digests, compute)


def digests_of(names: Sequence[str]) -> NDArray[np.void]:
    """(n,) 16-byte hashes of the names."""
    joined = b"".join(hashlib.blake2b(name.encode(), digest_size=DIGEST).digest() for name in names)
    return np.frombuffer(joined, dtype=DigestType)


class _Wanted:
    """The names that have no row yet, each at its first position; updated with the rows that other processes finish."""

    def __init__(self, digests: NDArray[np.void], key_folder: _KeyFolder) -> None:
        self.key_folder = key_folder
        unique, first = np.unique(digests, return_index=True)
        order = np.argsort(first)
        self.digests, self.positions = unique[order], first[order]
        self.open = ~np.isin(self.digests, key_folder.known())
        self.n_missing = int(self.open.sum())

    def next_block(self, size: int, forward: bool) -> NDArray[np.int64]:
        """Positions of the next missing rows, from the front or from the back."""
        self.open &= ~np.isin(self.digests, self.key_folder.newly_known())
        places = np.flatnonzero(self.open)
        return places[:size] if forward else places[-size:]


def _fill(
    wanted: _Wanted,
    shard: _Shard,
    compute: Callable[[Sequence[int]], NDArray[Any]],
    report: Callable[[int, int], None] | None,
    forward: bool,
) -> None:
    total, size = wanted.n_missing, 64
    while len(places := wanted.next_block(size, forward)):
        began = time.monotonic()
        computed = np.ascontiguousarray(compute([int(one) for one in wanted.positions[places]]))
        if len(computed) != len(places):
            raise InvalidInput(f"{len(places)} rows were requested and {len(computed)} were computed.")
        shard.append(computed, wanted.digests[places])
        wanted.open[places] = False
        affordable = int(BLOCK_SECONDS * len(places) / max(time.monotonic() - began, 1e-3))
        size = max(1, min(MAX_BLOCK, BLOCK_BYTES // max(1, computed[0].nbytes), max(16, affordable)))
        if report is not None:
            report(total - int(wanted.open.sum()), total)


class _KeyFolder:
    """The files of one key."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self._seen: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def layout(self) -> Layout | None:
        """The stored layout, None if there is none. Raises ValueError for a damaged file."""
        try:
            stored = json.loads((self.folder / "layout.json").read_bytes())
        except FileNotFoundError:
            return None
        try:
            values = {name: stored[name] for name in ("key", "shape", "dtype")}
            if values["key"] != self.key or stored.get("sha256", _hash_of(values)) != _hash_of(values):
                raise ValueError(f"{self.folder / 'layout.json'} does not have the bytes that were written.")
            return Layout(tuple(values["shape"]), np.dtype(values["dtype"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.folder / 'layout.json'} is not a layout.") from error

    def remove_damaged(self) -> None:
        """Remove the rows if their layout cannot be read, because without it their bytes have no meaning."""
        try:
            self.layout()
        except ValueError as error:
            LOG.warning("The cache %s is damaged (%s). Its rows are computed again.", self.folder, error)
            aside = self.folder.with_name(f"{self.folder.name}.{uuid.uuid4().hex}.damaged")
            with contextlib.suppress(FileNotFoundError):  # another process was first
                self.folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)

    def set_layout(self, layout: Layout) -> None:
        """Store the layout if this is the first writer; raise InvalidInput if the stored layout differs."""
        path = self.folder / "layout.json"
        if not path.exists():
            partial = self.folder / f"{uuid.uuid4().hex}.part"
            values = {"key": self.key, "shape": list(layout.shape), "dtype": layout.dtype.str}
            partial.write_text(json.dumps(values | {"sha256": _hash_of(values)}), encoding="utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)
            partial.unlink()
        if (known := self.layout()) != layout:
            raise InvalidInput(
                f"Rows of {self.key!r} are {known}; the new ones are {layout}. A key stands for one "
                "computation: use a new key for changed settings."
            )

    def shards(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.names"))

    def names_of(self, shard: str, start: int = 0) -> NDArray[np.void]:
        """The names of complete rows, from row `start` on."""
        with open(self.folder / f"{shard}.names", "rb") as file:
            file.seek(start * DIGEST)
            data = file.read()
        return np.frombuffer(data[: len(data) // DIGEST * DIGEST], dtype=DigestType)

    def known(self) -> NDArray[np.void]:
        self._seen = {}
        return self.newly_known()

    def newly_known(self) -> NDArray[np.void]:
        """The names that were added since the last call."""
        parts = [np.empty(0, DigestType)]
        for shard in self.shards():
            part = self.names_of(shard, self._seen.get(shard, 0))
            self._seen[shard] = self._seen.get(shard, 0) + len(part)
            parts.append(part)
        return np.concatenate(parts)

    @contextlib.contextmanager
    def new_rows(self) -> Iterator[tuple[_Shard, bool]]:
        """A shard that only this process appends to, and whether this process fills from the front."""
        with open(self.folder / "front.lock", "ab") as front:
            in_front = try_lock(front.fileno())
            for name in [*self.shards(), uuid.uuid4().hex]:
                shard = _Shard(self, name)
                if try_lock(shard.names.fileno()):
                    break
                shard.close()
            try:
                yield shard, in_front
            finally:
                shard.close()

    def sums_of(self, shard: str, n_rows: int) -> NDArray[np.uint64]:
        """(n_rows,) checksums of a shard, 0 where there is none: earlier versions wrote none."""
        sums = np.zeros(n_rows, np.uint64)
        with contextlib.suppress(FileNotFoundError):
            data = (self.folder / f"{shard}.sums").read_bytes()[: n_rows * SUM_BYTES]
            sums[: len(data) // SUM_BYTES] = np.frombuffer(data[: len(data) // SUM_BYTES * SUM_BYTES], np.uint64)
        return sums

    def open(self, digests: NDArray[np.void], compute: Callable[[Sequence[int]], NDArray[Any]]) -> StoredRows:
        layout = self.layout()
        if layout is None or not len(digests):
            return StoredRows([], np.empty((0, 2), np.int64), layout or NO_LAYOUT)
        names = [(shard, self.names_of(shard)) for shard in self.shards()]
        known = np.concatenate([part for _, part in names])
        where = np.concatenate(
            [np.stack([np.full(len(part), i), np.arange(len(part))], axis=1) for i, (_, part) in enumerate(names)]
        )
        order = np.argsort(known, kind="stable")
        places = order[np.minimum(np.searchsorted(known[order], digests), len(known) - 1)]
        if not np.array_equal(known[places], digests):
            raise InvalidInput(
                f"Rows of {self.key!r} are missing from {self.folder}: files were removed in the meantime. Try again."
            )
        maps = [_open_map(self.folder / f"{shard}.rows", len(part), layout) for shard, part in names]
        files = [self.folder / shard for shard, _ in names]
        sums = [self.sums_of(shard, len(part)) for shard, part in names]
        return StoredRows(maps, where[places], layout, _Originals(files, sums, compute))


@dataclass(frozen=True, slots=True)
class _Originals:
    """The files and checksums by which damaged rows are found, and the function that computes them again."""

    files: list[Path]  # of each shard, without suffix
    sums: list[NDArray[np.uint64]]  # of each shard
    compute: Callable[[Sequence[int]], NDArray[Any]]

    def write(self, shard: int, row: int, data: NDArray[Any]) -> None:
        """Replace one row and its checksum on disk."""
        for suffix, position, content in (
            (".rows", row * data.nbytes, data.tobytes()),
            (".sums", row * SUM_BYTES, _checksums(data[None]).tobytes()),
        ):
            with open(self.files[shard].with_suffix(suffix), "r+b") as file:
                file.seek(position)
                file.write(content)


def _checksums(rows: NDArray[Any]) -> NDArray[np.uint64]:
    return np.array([KNOWN + zlib.crc32(row.tobytes()) for row in rows], np.uint64)


def _hash_of(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class _Shard:
    """One pair of files, open for appending."""

    def __init__(self, key_folder: _KeyFolder, name: str) -> None:
        self.key_folder = key_folder
        self.rows: IO[bytes] = open(key_folder.folder / f"{name}.rows", "ab")  # noqa: SIM115
        self.sums: IO[bytes] = open(key_folder.folder / f"{name}.sums", "ab")  # noqa: SIM115
        self.names: IO[bytes] = open(key_folder.folder / f"{name}.names", "ab")  # noqa: SIM115
        self.trimmed = False

    def append(self, rows: NDArray[Any], digests: NDArray[np.void]) -> None:
        """Rows and checksums first, then their names; all on disk when this returns."""
        layout = Layout(rows.shape[1:], rows.dtype)
        self.key_folder.set_layout(layout)
        if not self.trimmed:
            self._trim(layout)
        for file, data in ((self.rows, rows), (self.sums, _checksums(rows)), (self.names, digests)):
            file.write(data.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _trim(self, layout: Layout) -> None:
        """Remove incomplete rows and names that a killed process left."""
        n_rows = os.fstat(self.names.fileno()).st_size // DIGEST
        if layout.row_bytes:
            n_rows = min(n_rows, os.fstat(self.rows.fileno()).st_size // layout.row_bytes)
        self.names.truncate(n_rows * DIGEST)
        self.rows.truncate(n_rows * layout.row_bytes)
        self.sums.truncate(n_rows * SUM_BYTES)  # rows of earlier versions get checksums of 0
        sync_path(self.key_folder.folder)
        self.trimmed = True

    def close(self) -> None:
        self.rows.close()
        self.sums.close()
        self.names.close()


def _open_map(path: Path, n_rows: int, layout: Layout) -> NDArray[Any]:
    if not n_rows or not layout.row_bytes:
        return np.empty((n_rows, *layout.shape), layout.dtype)
    return np.memmap(path, dtype=layout.dtype, mode="r", shape=(n_rows, *layout.shape))


class StoredRows:
    """`core.types.Rows` over the shards of one key."""

    def __init__(
        self,
        maps: list[NDArray[Any]],
        where: NDArray[np.int64],
        layout: Layout,
        originals: _Originals | None = None,
    ) -> None:
        self._maps = maps
        self._originals = originals
        self._checked = np.zeros(len(where), np.bool_)  # (n,) rows whose checksum was compared in this process
        self._where = where  # (n, 2) shard and row in it
        self._all_may_stay = sum(one.nbytes for one in maps) <= MAPPED_BYTES
        self.shape: tuple[int, ...] = (len(where), *layout.shape)
        self.dtype = layout.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(len(rows), ...) copies, in the order of `rows`."""
        where = self._where[np.asarray(rows)]
        taken = np.empty((len(where), *self.shape[1:]), self.dtype)
        size = len(where) if self._all_may_stay else ROWS_BETWEEN_RELEASES
        for start in range(0, len(where), max(1, size)):
            self._gather(where[start : start + size], taken[start : start + size])
            if not self._all_may_stay:
                self._release()
        self._check(np.asarray(rows), taken)
        return taken

    def _check(self, rows: NDArray[np.int64], taken: NDArray[Any]) -> None:
        """Compare rows that are read for the first time with their checksums; replace damaged ones in `taken`."""
        positions = np.arange(len(self))[rows]
        for place in np.flatnonzero(~self._checked[positions]):
            position = int(positions[place])
            shard, row = (int(value) for value in self._where[position])
            assert self._originals is not None
            stored = int(self._originals.sums[shard][row])
            if stored and taken.itemsize and stored != KNOWN + zlib.crc32(taken[place].tobytes()):
                LOG.warning("A cached row in %s is damaged. It is computed again.", self._originals.files[shard])
                taken[place] = self._originals.compute([position])[0]
                self._originals.write(shard, row, taken[place])
                self._originals.sums[shard][row] = int(_checksums(taken[place][None])[0])
        self._checked[positions] = True

    def _gather(self, where: NDArray[np.int64], taken: NDArray[Any]) -> None:
        for shard in np.unique(where[:, 0]):
            here = np.flatnonzero(where[:, 0] == shard)
            taken[here] = self._maps[shard][where[here, 1]]

    def _release(self) -> None:
        """Release the mapped pages of this process; they stay in the file cache of the system."""
        for one in self._maps:
            pages = getattr(one, "_mmap", None)
            if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
                pages.madvise(mmap.MADV_DONTNEED)
