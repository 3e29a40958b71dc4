"""Large arrays and files, named by the SHA-256 of their bytes: written once, never changed, memory-mapped for reading.

A file gets its final name when it is complete and on disk. Its bytes are compared with its hash when a process opens it
for the first time, and again when the file has changed; other bytes are never returned. The folder may be any fsspec
address (`s3://bucket/winnow`): files are then written to a local cache and uploaded, and downloaded into the cache
before they are read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import numpy as np
from numpy.typing import NDArray

from core.atomic_files import replace_durably
from core.errors import InvalidInput, NotFound

CHUNK = 1 << 20


class ArtifactUnreadable(NotFound):
    """The file behind an artifact is missing, or its bytes are not those that were written."""


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """Identifies a stored file, with the shape and dtype of an array."""

    sha256: str
    suffix: str
    n_bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def name(self) -> str:
        return f"{self.sha256[:2]}/{self.sha256}{self.suffix}"


class _HashingFile:
    """Writes to `file` and computes the hash of the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash, self.n_bytes = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.hash.update(view)
        self.n_bytes += len(view)
        self.file.write(view)
        return len(view)


class ArtifactFolder:
    def __init__(self, address: str | Path, cache: Path | None = None) -> None:
        self.address = str(address)
        self.remote = "://" in self.address and not self.address.startswith("file://")
        local = self.address.removeprefix("file://")
        self.folder = Path(local) if not self.remote else Path(cache or ".winnow-cache")
        self._files: Any = None
        self._root = ""
        self._verified: dict[str, tuple[int, int, int]] = {}  # name -> inode, size and time of a file that matched
        if self.remote:
            self._files, self._root = fsspec.core.url_to_fs(self.address)

    def put_array(self, array: NDArray[Any]) -> ArtifactRef:
        """Store an array as .npy without pickle; object arrays are refused."""
        array = np.asarray(array)
        if array.dtype.hasobject:
            raise InvalidInput(f"An array of type {array.dtype} holds Python objects; store numbers or fixed strings.")
        with self._new_file() as (partial, file):
            np.lib.format.write_array(file, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
            return self._keep(partial, file, ".npy", array)

    def put_bytes(self, data: bytes, suffix: str) -> ArtifactRef:
        with self._new_file() as (partial, file):
            file.write(data)
            return self._keep(partial, file, suffix)

    def put_file(self, path: Path, suffix: str | None = None) -> ArtifactRef:
        """Store a copy of the file at `path`."""
        with self._new_file() as (partial, file):
            with open(path, "rb") as source:
                while block := source.read(CHUNK):
                    file.write(block)
            return self._keep(partial, file, suffix if suffix is not None else path.suffix)

    def open_array(self, ref: ArtifactRef) -> NDArray[Any]:
        """The array, memory-mapped and read-only; never unpickled."""
        path = self.path(ref)
        try:
            if 0 in ref.shape or ref.shape == ():
                return np.asarray(np.load(path, allow_pickle=False))
            mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return mapped
        except (ValueError, OSError, EOFError) as problem:
            raise ArtifactUnreadable(f"The file {ref.name} in {self.address} is not an array of numbers.") from problem

    def path(self, ref: ArtifactRef) -> Path:
        """A local file with the bytes, compared with their hash; fetched first when the folder is remote."""
        path = self.folder / ref.name
        if not path.exists() and self._files is not None:
            self._fetch(ref, path)
        try:
            right = self.verify(ref)
            if not right and self._files is not None:  # the local copy is damaged: fetch it again
                self._fetch(ref, path)
                right = self.verify(ref)
        except OSError as problem:
            raise ArtifactUnreadable(
                f"The file {ref.name} in {self.address} cannot be read ({problem.strerror})."
            ) from problem
        if not right:
            raise ArtifactUnreadable(
                f"The file {ref.name} in {self.address} is damaged: its bytes do not have the hash in its name."
            )
        return path

    def has(self, ref: ArtifactRef) -> bool:
        """Whether the file is in the folder; nothing is downloaded."""
        if self._files is not None:
            return bool(self._files.exists(f"{self._root}/{ref.name}"))
        return (self.folder / ref.name).exists()

    def remove(self, name: str) -> bool:
        """Remove the file with this name (`ArtifactRef.name` without its folder), here and from the remote folder."""
        path = f"{name[:2]}/{name}"
        existed = (self.folder / path).exists()
        (self.folder / path).unlink(missing_ok=True)
        if self._files is not None and self._files.exists(f"{self._root}/{path}"):
            self._files.rm_file(f"{self._root}/{path}")
            existed = True
        return existed

    def verify(self, ref: ArtifactRef) -> bool:
        """Whether the local file's bytes have their hash; computed once for each state of the file in this process."""
        path = self.folder / ref.name
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._verified.get(ref.name) == state:
            return True
        with open(path, "rb") as file:
            right = hashlib.file_digest(file, "sha256").hexdigest() == ref.sha256
        if right:
            self._verified[ref.name] = state
        return right

    @contextmanager
    def _new_file(self) -> Iterator[tuple[Path, _HashingFile]]:
        folder = self.folder / "incoming"
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / uuid.uuid4().hex
        try:
            with open(partial, "xb") as file:
                yield partial, _HashingFile(file)
        finally:
            partial.unlink(missing_ok=True)

    def _keep(self, partial: Path, file: _HashingFile, suffix: str, array: NDArray[Any] | None = None) -> ArtifactRef:
        file.file.flush()
        shape, dtype = (array.shape, array.dtype.str) if array is not None else ((), "")
        ref = ArtifactRef(file.hash.hexdigest(), suffix, file.n_bytes, tuple(map(int, shape)), dtype)
        path = self.folder / ref.name
        path.parent.mkdir(exist_ok=True)
        replace_durably(partial, path)
        if self._files is not None and not self._files.exists(f"{self._root}/{ref.name}"):
            self._files.makedirs(f"{self._root}/{ref.sha256[:2]}", exist_ok=True)
            self._files.put_file(str(path), f"{self._root}/{ref.name}")
        return ref

    def _fetch(self, ref: ArtifactRef, path: Path) -> None:
        assert self._files is not None
        if not self._files.exists(f"{self._root}/{ref.name}"):
            return
        with self._new_file() as (partial, file):
            with self._files.open(f"{self._root}/{ref.name}", "rb") as source:
                shutil.copyfileobj(source, file, CHUNK)
            if file.hash.hexdigest() != ref.sha256:
                raise ArtifactUnreadable(
                    f"The file {ref.name} in {self.address} is damaged: its bytes do not have the hash in its name."
                )
            file.file.flush()
            path.parent.mkdir(exist_ok=True)
            os.replace(partial, path)
