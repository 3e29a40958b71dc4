"""A few long-lived child processes that examine files.

A child that crashes or hangs on a file is replaced. The file is marked unreadable with the reason, and the rest of the
batch is not affected (see `storage.media.probe_process`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from core.limits import Limits
from core.module_processes import module_command, module_environment
from storage.media.probe import Content, Measures
from storage.media.probe_process import RECORDING, Examiner
from storage.media.types import HEAD_BYTES, identify


class Examined(NamedTuple):
    """The result for one file. `sha256` is empty when the file was refused before it was read to the end."""

    measures: Measures
    sha256: str = ""
    n_bytes: int = 0
    mtime_ns: int = 0


Job = tuple[str, str]
"""(path, mode) with mode copy, link or move, or (sha256, "kept"); "recording-" before the mode: cut into windows."""


class _Child:
    """One running `storage.media.probe_process`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            module_command("storage.media.probe_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=module_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            text=True,
            encoding="ascii",
            start_new_session=True,
        )
        self._send(settings)

    def _send(self, message: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is noticed when the replies are read
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def examine(self, jobs: Sequence[Job]) -> list[Examined]:
        """The results that the child sent before it ended."""
        self._send(jobs)
        assert self.process.stdout is not None
        results: list[Examined] = []
        while len(results) < len(jobs) and (line := self.process.stdout.readline()).endswith("\n"):
            results += map(_read_reply, json.loads(line))
        return results

    def close(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()


class ProbePool:
    """`submit(jobs)` gives a future with one `Examined` per job, in order. Use it as a context manager."""

    def __init__(
        self,
        media_root: Path,
        incoming: Path,
        limits: Limits,
        n_workers: int | None = None,
        window_seconds: float = 0.0,
    ) -> None:
        self.limits = limits
        self._settings: dict[str, Any] = {
            "limits": dataclasses.asdict(limits),
            "media_root": str(media_root),
            "incoming": str(incoming),
            "window_seconds": window_seconds,
        }
        n_workers = n_workers or min(4, os.cpu_count() or 1)
        self._executor = ThreadPoolExecutor(n_workers, thread_name_prefix="media")
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: set[_Child] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> ProbePool:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            for child in list(self._children):  # cancelled: do not wait for running jobs
                child.process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
        for child in list(self._children):
            child.close()

    def submit(self, jobs: Sequence[Job]) -> Future[list[Examined]]:
        return self._executor.submit(self._examine, list(jobs))

    def _examine(self, jobs: list[Job]) -> list[Examined]:
        results: list[Examined] = []
        while len(results) < len(jobs):
            child = self._take()
            results += child.examine(jobs[len(results) :])
            if len(results) == len(jobs):
                self._idle.put(child)
                return results
            code = child.close()
            with self._lock:
                self._children.discard(child)
            results.append(self._keep_unread(*jobs[len(results)], _cause(code, self.limits)))
        return results

    def _keep_unread(self, path: str, mode: str, reason: str) -> Examined:
        """Hash and store a file that crashed its decoder, without decoding it, so that it is shown as unreadable."""

        def known(data: Content, limits: Limits, before: Callable[[], None]) -> Measures:
            media_type = identify(data[:HEAD_BYTES], lambda offset, n: data[offset : offset + n])
            return Measures("unreadable", reason, media_type or "")

        root, incoming = Path(self._settings["media_root"]), Path(self._settings["incoming"])
        return _read_reply(Examiner(root, incoming, self.limits, known).reply(path, mode.removeprefix(RECORDING)))

    def _take(self) -> _Child:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            child = _Child(self._settings)
            with self._lock:
                self._children.add(child)
            return child


def _read_reply(reply: list[Any]) -> Examined:
    *measures, sha256, n_bytes, mtime_ns = reply
    return Examined(Measures(*measures), sha256, n_bytes, mtime_ns)


def _cause(code: int, limits: Limits) -> str:
    """Why a child ended, as the reason given for the file it was examining."""
    if code in (-signal.SIGALRM, -signal.SIGXCPU):
        return f"Decoding took longer than {limits.decode_seconds:g} s (decode_seconds)."
    if code < 0:
        return f"It crashed the decoder ({signal.Signals(-code).name})."
    return f"It crashed the decoder (exit code {code})."
