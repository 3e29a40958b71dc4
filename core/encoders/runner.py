"""The parent's side of an encoder that runs in a process with limits (`core.encoders.encoding_process`).

If the network fails on an item, or the process exceeds a limit, the item gets a message instead of features; after a
limit the others are encoded in a new process. If MOST_LOST processes end on their first item, the encoder is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.encoders.description import AudioInput
from core.encoders.folders import Encoder
from core.encoders.tensors import pool_shifts
from core.encoders.windows import Windows
from core.errors import InvalidInput
from core.limits import Limits, current_limits
from core.module_processes import ROOT, module_command, module_environment

MODULE = "core.encoders.encoding_process"
READ_BYTES = 1 << 20
TICK_SECONDS = 0.5
MOST_LOST = 3  # the encoder is refused after this many processes that ended on their first item
START_SECONDS = 180.0

Encoded = NDArray[np.float32] | str  # features (width,) of an item, or why it has none
Tick = Callable[[], None]  # called twice a second while the parent waits; may raise Cancelled


class Lost(Exception):
    """The process ended in the middle of its work."""


def default_threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class EncoderRunner:
    """Runs one encoder. Use it as a context manager: leaving the block ends its process."""

    def __init__(self, encoder: Encoder, limits: Limits | None = None, threads: int | None = None) -> None:
        self.encoder, self.limits = encoder, limits or current_limits()
        self.threads = threads or default_threads()
        self.process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._lost_in_a_row = 0
        self._waiting: list[Windows] = []

    def __enter__(self) -> EncoderRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, tick: Tick = lambda: None) -> int | None:
        """Start the process; returns the network's fixed batch size, or None. InvalidInput says why it is unusable."""
        self.close()
        settings = {
            "folder": str(self.encoder.folder.absolute()),
            "seconds": self.limits.encode_seconds,
            "bytes": self.limits.encode_bytes,
            "threads": self.threads,
        }
        environment = module_environment(OMP_NUM_THREADS=str(self.threads), OPENBLAS_NUM_THREADS="1")
        self.process = subprocess.Popen(
            module_command(MODULE),
            cwd=ROOT, env=environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._write([(json.dumps(settings) + "\n").encode()])
        try:
            about = self._line(START_SECONDS, tick)
        except Lost as problem:
            raise InvalidInput(f"The encoder {self.encoder.name} cannot be loaded: {problem}") from problem
        if "error" in about:
            raise InvalidInput(f"The encoder {self.encoder.name} cannot be used. {about['error']}")
        batch: int | None = about["batch"]
        return batch

    def close(self) -> None:
        """End the process."""
        process, self.process, self._buffer = self.process, None, bytearray()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        process.wait()

    def submit(self, items: Sequence[Windows]) -> None:
        """Start to encode these items; `collect` returns their features. The caller may decode others meanwhile."""
        self._waiting = list(items)
        if self.process is None:
            self.start()
        with contextlib.suppress(Lost):  # noticed by `collect`
            self._send(items)

    def collect(self, tick: Tick = lambda: None) -> list[Encoded]:
        """Features of the submitted items, in order, or a sentence for those that have none."""
        items, self._waiting = self._waiting, []
        if not items:
            return []
        try:
            found = self._receive(items, tick)
            if not isinstance(found, str):
                self._lost_in_a_row = 0
                return found
        except Lost:
            pass
        return [self._encode_alone(item, tick) for item in items]  # to find the failing item

    def encode(self, items: Sequence[Windows], tick: Tick = lambda: None) -> list[Encoded]:
        """Features of these items, or a sentence for those that have none."""
        self.submit(items)
        return self.collect(tick)

    def _encode_alone(self, item: Windows, tick: Tick) -> Encoded:
        try:
            if self.process is None or self.process.poll() is not None:
                self.start(tick)
            self._send([item])
            found = self._receive([item], tick)
            self._lost_in_a_row = 0
            return found if isinstance(found, str) else found[0]
        except Lost as problem:
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= MOST_LOST:
                raise InvalidInput(
                    f"The encoder {self.encoder.name} was stopped on {self._lost_in_a_row} items in a row: {problem} "
                    "Use a smaller encoder, or raise the limit (encode_seconds, encode_bytes)."
                ) from problem
            return str(problem)

    def _send(self, items: Sequence[Windows]) -> None:
        arrays = [np.stack(windows) for windows in items]
        header = json.dumps([[array.shape, array.dtype.str] for array in arrays]) + "\n"
        self._write([header.encode(), *(array.data for array in arrays)])

    def _receive(self, items: Sequence[Windows], tick: Tick) -> list[Encoded] | str:
        """The features of the items that were sent; a sentence if the network failed on one of them."""
        n_windows = sum(map(len, items))
        seconds = self.limits.encode_seconds * max(1, n_windows) + TICK_SECONDS
        about = self._line(seconds, tick)
        if "error" in about:
            return str(about["error"])
        shape = about["shape"]
        vectors = np.frombuffer(self._read(4 * int(np.prod(shape)), seconds, tick), np.float32).reshape(shape)
        ends = np.cumsum([len(windows) for windows in items])
        return [self._pooled(vectors[end - len(one) : end]) for one, end in zip(items, ends, strict=True)]

    def _pooled(self, vectors: NDArray[np.float32]) -> Encoded:
        source, output = self.encoder.description.input, self.encoder.description.output
        found = pool_shifts(vectors, output.pooling, source.shifts if isinstance(source, AudioInput) else 1)
        if not np.isfinite(found).all():
            n_broken = int((~np.isfinite(found)).sum())
            return f"The encoder gives {n_broken} of {len(found)} values that are not numbers."
        return found

    def _write(self, parts: Sequence[Any]) -> None:
        assert self.process is not None and self.process.stdin is not None
        try:
            for part in parts:
                self.process.stdin.write(part)
            self.process.stdin.flush()
        except BrokenPipeError as problem:
            raise Lost(self._ended()) from problem

    def _line(self, seconds: float, tick: Tick) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            self._fill(until, tick)
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        about: dict[str, Any] = json.loads(line)
        return about

    def _read(self, size: int, seconds: float, tick: Tick) -> bytes:
        until = time.monotonic() + seconds
        while len(self._buffer) < size:
            self._fill(until, tick)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self, until: float, tick: Tick) -> None:
        """Read what the process has sent. Raises Lost if it has ended or sends nothing in time."""
        assert self.process is not None and self.process.stdout is not None
        while not select.select([self.process.stdout], [], [], TICK_SECONDS)[0]:
            tick()
            if time.monotonic() > until:
                self.close()
                raise Lost(f"It took more than {self.limits.encode_seconds:g} s for an item (encode_seconds).")
        block = os.read(self.process.stdout.fileno(), READ_BYTES)
        if not block:
            raise Lost(self._ended())
        self._buffer += block

    def _ended(self) -> str:
        """Why the process ended, as a sentence."""
        assert self.process is not None
        code = self.process.wait()
        self.close()
        if code == -signal.SIGALRM:
            return f"It took more than {self.limits.encode_seconds:g} s for an item (encode_seconds)."
        limit = f"{self.limits.encode_bytes / (1 << 20):,.0f} MiB (encode_bytes)"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"Its process ended ({how}), probably for lack of memory; the limit is {limit}."
