"""Content-addressed storage of media: `media/ab/abcdef…`, each file named after the SHA-256 of its content, and packs.

A file is renamed to its hash only when it is complete, and bytes are compared with the hash when they are read. Small
files of large imports are stored together (`storage.media.packs`); a separate file takes precedence over a pack. Linked
items stay where they are and are read from there, with the same comparison.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import platform
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from core.atomic_files import replace_durably, sync_path
from core.errors import InvalidInput, NotFound
from storage.media.packs import Altered, Packs
from storage.system.processes import is_running

_HASH = re.compile(r"[0-9a-f]{64}\Z")
_CHUNK = 1 << 20


class MediaMissing(NotFound):
    """The file of an item does not exist or cannot be read."""


class MediaChanged(NotFound):
    """The bytes of an item differ from those that were imported."""


class MediaFolder:
    """Content-addressed files under one folder of the local file system."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.packs = Packs(self.root)
        self._verified: dict[str, FileState] = {}  # path -> state in which its bytes matched the hash
        self._verifying = threading.Lock()

    def path(self, sha256: str) -> Path:
        """The path of the separate file with this hash, whether or not it exists."""
        if not _HASH.match(sha256):
            raise InvalidInput(f"{sha256[:80]!r} is not a SHA-256 in hex.")
        return self.root / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file() or self.packs.has(sha256)

    def put(self, stream: BinaryIO | bytes) -> str:
        """Store the bytes and return their hash; on disk when this returns."""
        source = io.BytesIO(stream) if isinstance(stream, bytes) else stream
        with self.incoming() as folder:
            staged = folder / "one"
            digest = hashlib.sha256()
            with open(staged, "xb") as file:
                while block := source.read(_CHUNK):
                    digest.update(block)
                    file.write(block)
            final = self.path(digest.hexdigest())
            final.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(staged, final)
        return digest.hexdigest()

    def locate(self, sha256: str, link_path: str | None = None) -> Path | None:
        """The regular file with the item's bytes, not verified here; None when the bytes are in a pack."""
        path = Path(link_path) if link_path is not None else self.path(sha256)
        try:
            status = path.lstat() if link_path is not None else path.stat()
        except OSError as problem:
            if link_path is None and isinstance(problem, FileNotFoundError) and self.packs.has(sha256):
                return None
            raise MediaMissing(f"The file {path} cannot be read: {problem.strerror}.") from problem
        if not stat.S_ISREG(status.st_mode):
            raise MediaChanged(f"{path} is no longer a regular file.")
        return path

    def open(self, sha256: str, link_path: str | None = None) -> BinaryIO:
        """The bytes as a stream. The reader must verify those that come from a file."""
        path = self.locate(sha256, link_path)
        if path is None:
            return io.BytesIO(self._packed(sha256))
        try:
            return open(path, "rb", opener=_open_regular)
        except OSError as problem:
            raise MediaMissing(f"The file {path} cannot be read: {problem.strerror}.") from problem

    def read(self, sha256: str, link_path: str | None = None) -> bytes:
        """The bytes, compared with the hash. Raises `MediaMissing` or `MediaChanged` rather than return other bytes."""
        if link_path is None and self.locate(sha256) is None:
            return self._packed(sha256)
        with self.open(sha256, link_path) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise MediaChanged(f"The file {link_path or self.path(sha256)} has changed since it was imported.")
        return data

    def check(self, sha256: str, link_path: str | None = None) -> None:
        """Like `read`, in constant memory."""
        with self.open(sha256, link_path) as file:
            digest = hashlib.sha256()
            while block := file.read(_CHUNK):
                digest.update(block)
            if digest.hexdigest() != sha256:
                raise MediaChanged(f"The file {link_path or self.path(sha256)} has changed since it was imported.")

    def verified(self, sha256: str, link_path: str | None = None) -> Path | None:
        """The path of the file. Its bytes are compared with the hash once per process and file state. None when they
        are in a pack, where every read compares them."""
        path = self.locate(sha256, link_path)
        if path is None:
            return None
        with self._verifying:  # a second reader of a large file waits instead of hashing it, too
            state = file_state(path)
            if self._verified.get(str(path)) != (sha256, *state):
                self.check(sha256, link_path)
                if file_state(path) != state:
                    raise MediaChanged(f"The file {path} changed while it was read.")
                if len(self._verified) >= VERIFIED:
                    self._verified.clear()
                self._verified[str(path)] = (sha256, *state)
        return path

    def _packed(self, sha256: str) -> bytes:
        """The bytes from a pack, compared with the hash."""
        try:
            return self.packs.read(sha256)
        except Altered as problem:
            raise MediaChanged(f"The bytes of {sha256} have changed since they were imported: {problem}") from problem
        except OSError as problem:
            raise MediaMissing(f"The bytes of {sha256} cannot be read: {problem.strerror}.") from problem

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Path]:
        """A temporary folder for incoming files of this process. It is removed afterwards, together with
        those of processes that have ended."""
        waiting = self.root / "incoming"
        waiting.mkdir(parents=True, exist_ok=True)
        for leftover in waiting.iterdir():
            if not _alive(leftover.name):
                shutil.rmtree(leftover, ignore_errors=True)
        folder = waiting / f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sync(self, hashes: Sequence[str]) -> None:
        """Flush the contents with these hashes to disk: file by file when they are few, else the whole file system."""
        if len(hashes) <= FEW:
            single = {self.path(sha256) for sha256 in hashes if self.path(sha256).exists()}
            for path in single | self.packs.files([one for one in hashes if self.path(one) not in single]):
                with contextlib.suppress(FileNotFoundError):  # renamed by a repair
                    sync_path(path)
                    sync_path(path.parent)
            if hashes:
                sync_path(self.root)
        else:
            self.sync_all()

    def sync_all(self) -> None:
        """Flush everything stored so far to disk."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            if _syncfs is None or _syncfs(descriptor) != 0:
                os.sync()
        finally:
            os.close(descriptor)


FEW = 16
VERIFIED = 100_000  # files remembered as verified
FileState = tuple[str, int, int, int]  # hash, size, modification time, inode


def file_state(path: Path) -> tuple[int, int, int]:
    """(size, modification time, inode): another state means that the bytes may differ."""
    try:
        status = path.stat()
    except OSError as problem:
        raise MediaMissing(f"The file {path} cannot be read: {problem.strerror}.") from problem
    return status.st_size, status.st_mtime_ns, status.st_ino


def _find_syncfs() -> ctypes._NamedFuncPointer | None:  # Linux only; elsewhere os.sync does more than is needed
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
    return function


_syncfs = _find_syncfs()


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file without blocking. A FIFO in its place is detected and refused."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", path)
    return descriptor


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", platform.node())


def _alive(name: str) -> bool:
    """Whether the process that created `incoming/<host>-<pid>-…` may still run. Processes of other machines count
    as running."""
    host, _, rest = name.partition("-")
    pid = rest.partition("-")[0]
    if host != _host() or not pid.isdigit():
        return True
    return is_running(int(pid))
