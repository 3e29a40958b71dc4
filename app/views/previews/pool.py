"""Draws previews in a few long-lived child processes, so that no file can crash or slow down the page server.

Each child has limits on address space, CPU and wall time (`app.views.previews.process`). The pool also limits the time
and size of a reply, and replaces a child that crashed or exceeded a limit. Files that cause this are remembered for a
while: further requests for them fail at once instead of occupying a child.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import selectors
import subprocess
import threading
import time
from collections import OrderedDict

from core.errors import InvalidInput, WinnowError
from core.limits import Limits
from core.module_processes import module_command, module_environment

MAX_REPLY_BYTES = 32 << 20
GRACE_SECONDS = 5.0  # after the child's own limit, before the pool kills it
START_SECONDS = 60.0  # the longest start of a new child, on a busy machine
WAIT_SECONDS = 60.0  # the longest wait for a free child
REMEMBERED = 1024
Window = tuple[str, int, int]  # path of a recording, first and last frame
WINDOW_PART = "window.wav"  # the frames themselves
REMEMBERED_SECONDS = 600.0


class PreviewFailed(InvalidInput):
    """The file cannot be drawn. The text is the reason."""


class PreviewBusy(WinnowError):
    """No child is free, or the server is shutting down. The same request may succeed later."""


class _Child:
    """One running process of `app.views.previews.process`."""

    def __init__(self, limits: Limits) -> None:
        self.process = subprocess.Popen(
            module_command("app.views.previews.process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=module_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
            bufsize=0,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._fresh = True
        self._unread = b""
        self._send(json.dumps(dataclasses.asdict(limits)).encode() + b"\n")

    def draw(self, data: bytes, kind: str, part: str, seconds: float, window: Window | None) -> bytes | None:
        """The drawing. None if the child ended, sent too much data or took too long, and must be replaced."""
        deadline = time.monotonic() + seconds + GRACE_SECONDS + (START_SECONDS if self._fresh else 0.0)
        self._send(json.dumps([kind, part, len(data), window]).encode() + b"\n" + data)
        head = self._read_line(deadline)
        if head is None:
            return None
        self._fresh = False
        reason, n_bytes = json.loads(head)
        if reason:
            raise PreviewFailed(reason)
        return self._read(n_bytes, deadline) if n_bytes <= MAX_REPLY_BYTES else None

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Kill the child and close its pipes."""
        self.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._stdout.close()

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError):  # if the child has ended, reading its reply fails
            while view:
                view = view[self._stdin.write(view) :]

    def _read_line(self, deadline: float) -> bytes | None:
        while b"\n" not in self._unread:
            if len(self._unread) > 65_536 or not self._receive(deadline):
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _read(self, n_bytes: int, deadline: float) -> bytes | None:
        while len(self._unread) < n_bytes:
            if not self._receive(deadline):
                return None
        data, self._unread = self._unread[:n_bytes], self._unread[n_bytes:]
        return data

    def _receive(self, deadline: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return False
        block = self._stdout.read(1 << 20)
        self._unread += block or b""
        return bool(block)


class PreviewPool:
    """Draws previews. `draw` blocks until the drawing is finished; at most `n_children` are drawn at once."""

    def __init__(self, limits: Limits, n_children: int = 2) -> None:
        self.limits = limits
        self._free: queue.SimpleQueue[_Child | None] = queue.SimpleQueue()
        for _ in range(n_children):
            self._free.put(None)  # a child is started when it is first needed
        self._running: set[_Child] = set()
        self._failed: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def draw(self, data: bytes, kind: str, part: str, name: str, window: Window | None = None) -> bytes:
        """Draw one part of the file `name` (its hash), or of a window: (path, or "" for `data`; first frame; last
        frame). Raises PreviewFailed with the reason, or PreviewBusy if the request may succeed later."""
        self._raise_known(name)
        try:
            child = self._free.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise PreviewBusy("Other previews are being drawn. Reload in a moment.") from None
        try:
            child = child or self._start()
            self._raise_known(name)
            drawn = child.draw(data, kind, part, self.limits.decode_seconds, window)
            if drawn is None:
                self._discard(child)
                child = None
                raise self._remember(name)
            return drawn
        finally:
            self._free.put(child)

    def close(self) -> None:
        """Kill every child. Current drawings fail, and new ones are refused. Safe to call in a signal handler."""
        self._closed = True
        for child in list(self._running):
            child.kill()

    def shutdown(self) -> None:
        """Call `close` and wait until all children have ended."""
        self.close()
        for child in list(self._running):
            child.close()

    def _start(self) -> _Child:
        if self._closed:
            raise PreviewBusy("The server is shutting down.")
        child = _Child(self.limits)
        self._running.add(child)
        if self._closed:  # closed between the check and the start
            child.kill()
        return child

    def _discard(self, child: _Child) -> None:
        self._running.discard(child)
        child.close()

    def _raise_known(self, name: str) -> None:
        with self._lock:
            known = self._failed.get(name)
        if known is not None and time.monotonic() - known[0] < REMEMBERED_SECONDS:
            raise PreviewFailed(known[1])

    def _remember(self, name: str) -> WinnowError:
        if self._closed:
            return PreviewBusy("The server is shutting down.")
        reason = (
            f"Drawing it exceeded the limit of {self.limits.decode_seconds:g} s or {self.limits.decode_bytes:,} bytes "
            "(decode_seconds, decode_bytes), or crashed the decoder."
        )
        with self._lock:
            self._failed[name] = (time.monotonic(), reason)
            while len(self._failed) > REMEMBERED:
                self._failed.popitem(last=False)
        return PreviewFailed(reason)
