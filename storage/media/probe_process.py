"""The process that handles untrusted files: it reads, hashes, decodes and stores one file after another.

Started by `storage.media.probe_pool` as `python -m storage.media.probe_process`. One JSON line in is a batch of jobs,
one or more lines out are lists of replies. Before a decoder runs, the replies so far are sent and an alarm and a CPU
limit are set. If a hostile file ends this process, the parent can tell which file it was and has all earlier replies.

A job is [path, mode]:  copy  put the bytes into the media folder     link  leave them where they are
                        move  the file is temporary: move it into the media folder, or delete it when it is refused
                        kept  `path` is the hash of bytes in a pack of the media folder: examine them there
A mode that starts with "recording-" (recording-copy …) requests the measures of a recording. With `window_seconds`,
every longer sound is a recording.
After the first batch with many jobs, small contents go into a pack (`storage.media.packs`); others become files.
A reply is the list of `storage.media.probe.Measures`, then sha256, n_bytes and mtime_ns.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.limits import Limits, size_problem
from storage.media.packs import SMALL_BYTES, Altered, PackWriter
from storage.media.probe import Content, Measures, Refused, examine, examine_recording
from storage.media.types import HEAD_BYTES, identify
from storage.media.windows import FileContent

RECORDING = "recording-"
SMALL = 4 << 20  # files up to this size are read in one piece
CHUNK = 1 << 20
MANY = 64  # a batch with this many jobs starts a pack; fewer do not justify one
DISK_FULL = "The disk is full."
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


Examine = Callable[[Content, Limits, Callable[[], None]], Measures]


class Examiner:
    """Does one job at a time. `examine` can be replaced by a known verdict, so that nothing is decoded."""

    def __init__(
        self,
        media_root: Path,
        incoming: Path,
        limits: Limits,
        examine: Examine = examine,
        window_seconds: float = 0.0,
    ) -> None:
        self.media_root, self.incoming, self.limits = str(media_root), str(incoming), limits
        self._examine, self._window_seconds, self._is_recording = examine, window_seconds, False
        self._n_staged = 0
        self._shards: set[str] | None = None  # folders that may hold separate files
        self.packing = False
        self.packs = PackWriter(media_root)

    def reply(self, path: str, mode: str, before_decoding: Callable[[], None] = lambda: None) -> list[Any]:
        self._is_recording = mode.startswith(RECORDING)
        mode = mode.removeprefix(RECORDING)
        try:
            if mode == "kept":
                return self._kept(path, before_decoding)
            found, sha256, status = self._open(path, mode, before_decoding)
        except Refused as reason:
            return _reply(Measures("refused", str(reason)))
        except OSError as problem:
            return _unkept(problem)
        finally:
            if mode == "move":
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        return _reply(found, sha256, status.st_size, status.st_mtime_ns)

    def flush(self, replies: list[list[Any]]) -> None:
        """Flush before replies are sent, so that a reply is true: the bytes are stored, or the reply says why not."""
        try:
            self.packs.flush()
        except OSError as problem:
            replies[:] = [_unkept(problem)] * len(replies)
            self.packs.failure = None

    def _examine_content(self, data: Content, limits: Limits, before: Callable[[], None]) -> Measures:
        """Measures of the file: as a recording if the job requests it, or if the sound is longer than a window."""
        if self._is_recording:
            return examine_recording(data, limits, before)
        if self._window_seconds and self._is_audio(data):
            found = examine_recording(data, limits, before)
            if found.status != "ok" or (found.seconds or 0.0) > self._window_seconds:
                return found
        return self._examine(data, limits, before)

    def _is_audio(self, data: Content) -> bool:
        media_type = identify(data[:HEAD_BYTES], lambda offset, n: data[offset : offset + n])
        return media_type is not None and media_type.startswith("audio/")

    def _size_problem(self, n_bytes: int) -> str | None:
        if not (self._is_recording or self._window_seconds):
            return size_problem(n_bytes, self.limits)
        most = self.limits.max_recording_bytes
        return f"It has {n_bytes:,} bytes; the limit is {most:,} (max_recording_bytes)." if n_bytes > most else None

    def _kept(self, sha256: str, before: Callable[[], None]) -> list[Any]:
        try:
            data = self.packs.packs.read(sha256)
        except Altered as problem:
            raise Refused(str(problem)) from problem
        return _reply(self._examine_content(data, self.limits, before), sha256, len(data))

    def _open(self, path: str, mode: str, before: Callable[[], None]) -> tuple[Measures, str, os.stat_result]:
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except OSError as problem:
            if os.path.islink(path):
                raise Refused("It is a symbolic link; links are not followed.") from problem
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Refused("It is not a regular file.")
            if too_large := self._size_problem(status.st_size):
                raise Refused(too_large)
            if status.st_size <= SMALL:
                return self._small(descriptor, path, mode, before, status)
            return self._large(descriptor, path, mode, before, status)
        finally:
            os.close(descriptor)

    def _small(
        self, descriptor: int, path: str, mode: str, before: Callable[[], None], status: os.stat_result
    ) -> tuple[Measures, str, os.stat_result]:
        data = os.read(descriptor, status.st_size + 1)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size + 1 - len(data))):
            data += more
        _check_unchanged(descriptor, status, len(data))
        sha256 = hashlib.sha256(data).hexdigest()
        found = self._examine_content(data, self.limits, before)
        if found.status != "refused" and mode != "link":
            self._store(data, path, mode, sha256)
        return found, sha256, status

    def _large(
        self, descriptor: int, path: str, mode: str, before: Callable[[], None], status: os.stat_result
    ) -> tuple[Measures, str, os.stat_result]:
        """Copy first and then examine the copy, so that a later change of the original has no effect."""
        digest, n_bytes = hashlib.sha256(), 0
        staged = self._staging_name() if mode == "copy" else path
        with contextlib.ExitStack() as stack:
            copy = stack.enter_context(open(staged, "xb")) if mode == "copy" else None
            if copy is not None:
                stack.callback(Path(staged).unlink, missing_ok=True)
            while block := os.read(descriptor, CHUNK):
                n_bytes += len(block)
                if n_bytes > status.st_size:
                    break
                digest.update(block)
                if copy is not None:
                    copy.write(block)
            _check_unchanged(descriptor, status, n_bytes)
            if copy is not None:
                copy.close()
            with open(staged, "rb") as again:
                data = FileContent(again.fileno())
                found = self._examine_content(data, self.limits, before)
                if mode == "link":
                    _check_unchanged(descriptor, status, n_bytes)
                elif found.status != "refused":
                    self._store(data, staged, "move", digest.hexdigest())
        return found, digest.hexdigest(), status

    def _store(self, data: Content, path: str, mode: str, sha256: str) -> None:
        """Store the bytes under their hash, atomically. An existing file is compared, not trusted."""
        folder = f"{self.media_root}/{sha256[:2]}"
        final = f"{folder}/{sha256}"
        if self._shards is None:
            self._shards = set(os.listdir(self.media_root))
        if sha256[:2] in self._shards and os.path.exists(final):
            with open(final, "rb") as known:
                if _equal(known.fileno(), data):
                    return
        elif isinstance(data, bytes) and len(data) <= SMALL_BYTES:
            if self.packs.holds(sha256, data):
                return
            if self.packing:
                self.packs.append(sha256, data)
                return
        staged = path if mode == "move" else self._staging_name()
        if mode != "move":
            assert isinstance(data, bytes)  # large files are moved
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                written = os.write(descriptor, data)
                while written < len(data):
                    written += os.write(descriptor, data[written:])
            finally:
                os.close(descriptor)
        try:
            os.rename(staged, final)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            os.rename(staged, final)
        self._shards.add(sha256[:2])

    def _staging_name(self) -> str:
        self._n_staged += 1
        return f"{self.incoming}/{os.getpid()}-{id(self):x}-{self._n_staged}"


def _check_unchanged(descriptor: int, before: os.stat_result, n_bytes: int) -> None:
    now = os.fstat(descriptor)
    if n_bytes != before.st_size or now.st_size != before.st_size or now.st_mtime_ns != before.st_mtime_ns:
        raise Refused("It changed while it was read. Import it again when it is complete.")


def _equal(descriptor: int, data: Content) -> bool:
    if os.fstat(descriptor).st_size != len(data):
        return False
    return all(os.read(descriptor, CHUNK) == data[at : at + CHUNK] for at in range(0, len(data), CHUNK))


def _unkept(problem: OSError) -> list[Any]:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return _reply(Measures("refused", DISK_FULL if full else f"It cannot be read or kept: {problem.strerror}."))


def _reply(found: Measures, sha256: str = "", n_bytes: int = 0, mtime_ns: int = 0) -> list[Any]:
    return [*found, sha256, n_bytes, mtime_ns]


def confine(limits: Limits) -> None:
    """Limit the rest of this process: address space, no core file. It ends when the parent's pipe closes."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.decode_bytes, limits.decode_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends this process, also in the middle of C code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe


def guard_decoding(limits: Limits) -> None:
    """Allow at most `decode_seconds` of wall and CPU time from now until the next call."""
    signal.setitimer(signal.ITIMER_REAL, limits.decode_seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    allowed = int(used.ru_utime + used.ru_stime + limits.decode_seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    """Examine batches from stdin until it is closed."""
    settings = json.loads(sys.stdin.readline())
    limits = Limits(**settings["limits"])
    examiner = Examiner(
        Path(settings["media_root"]),
        Path(settings["incoming"]),
        limits,
        window_seconds=float(settings.get("window_seconds", 0.0)),
    )
    confine(limits)
    gc.freeze()  # garbage collection of the modules loaded so far took a fifth of the time on small files
    replies: list[list[Any]] = []
    guarded = False

    def send() -> None:
        if replies:
            examiner.flush(replies)
            sys.stdout.write(json.dumps(replies) + "\n")
            sys.stdout.flush()
            replies.clear()

    def before_decoding() -> None:
        nonlocal guarded
        send()
        guard_decoding(limits)
        guarded = True

    for line in sys.stdin:
        jobs = json.loads(line)
        examiner.packing |= len(jobs) >= MANY
        for path, mode in jobs:
            replies.append(examiner.reply(path, mode, before_decoding))
            if guarded:
                signal.setitimer(signal.ITIMER_REAL, 0)
                guarded = False
        send()


if __name__ == "__main__":
    main()
