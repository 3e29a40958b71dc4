"""The child's side of `app.processes.child.PipedChild`: requests from stdin, messages to stdout."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from app.processes.messages import Message, ProgressReporter, encode
from core.errors import Cancelled


class Channel:
    """Writes messages to the original stdout. All other output of the process, C libraries included, goes to stderr."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.report = ProgressReporter(self.send)

    def send(self, message: Message) -> None:
        """Write one message. Raises `Cancelled` when the parent no longer reads."""
        try:
            self._out.write(encode(message) + "\n")
            self._out.flush()
        except BrokenPipeError:
            raise Cancelled("The process that started this one has ended.") from None

    def requests(self) -> Iterator[Any]:
        """Yield the parent's requests, one after another.

        The process exits when stdin is closed, even in the middle of a request. Work in a child process must therefore
        be safe to kill at any step.
        """
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def read() -> None:
            for line in sys.stdin:
                waiting.put(json.loads(line))
            os._exit(0)

        threading.Thread(target=read, name="winnow-requests", daemon=True).start()
        while True:
            yield waiting.get()
