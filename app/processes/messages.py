"""The message format of child processes: one JSON object on one line.

    {"kind": "progress", "body": {"stage": …, "done": …, "total": …, "note": …, "metrics": {…}}}
    {"kind": "record",   "body": …}    an intermediate result of the request
    {"kind": "result",   "body": …}    the request is finished
    {"kind": "error",    "body": {"type": "InvalidInput", "sentence": …, "result": …}}    the request failed

Progress is `core.types.Progress`. The `type` of an error is a class of `core.errors`, `Cancelled` included. Its
`result` describes the work that was done before the failure, or is null.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from core import errors
from core.errors import Cancelled, WinnowError
from core.types import Progress

Kind = Literal["progress", "record", "result", "error"]
SECONDS_BETWEEN_PROGRESS = 0.5


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a child to its parent."""

    kind: Kind
    body: Any = None

    @property
    def ends(self) -> bool:
        """Whether this is the last message of a request."""
        return self.kind in ("result", "error")

    def progress(self) -> Progress:
        return Progress(**self.body)

    def error(self) -> WinnowError:
        """The error as an exception of `core.errors`; an unknown type becomes a `WinnowError`."""
        found = getattr(errors, str(self.body["type"]), WinnowError)
        kind = found if isinstance(found, type) and issubclass(found, WinnowError) else WinnowError
        return kind(self.body["sentence"])


def progress_message(progress: Progress) -> Message:
    body = asdict(progress)
    return Message("progress", body | {"metrics": dict(progress.metrics)})


def error_message(error: BaseException, sentence: str = "", result: Any = None) -> Message:
    """The message for an error. `sentence` replaces the text of an error that is not meant for users."""
    kind = type(error).__name__ if isinstance(error, WinnowError) else WinnowError.__name__
    return Message("error", {"type": kind, "sentence": sentence or str(error), "result": result})


def encode(message: Message) -> str:
    """Encode a message as one line, without the line end."""
    return json.dumps({"kind": message.kind, "body": message.body}, default=str)


def decode(line: str | bytes) -> Message | None:
    """Decode a line. Returns None if it is not a message, for example the output of a library."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("kind") not in get_args(Kind):
        return None
    return Message(found["kind"], found.get("body"))


class ProgressReporter:
    """A `core.types.Report` that sends at most two messages a second, plus every message that completes its stage.

    When it sends a message and `is_cancelled` returns true, it raises `Cancelled`.
    """

    def __init__(self, send: Callable[[Message], None], is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._send, self._is_cancelled = send, is_cancelled
        self._last = float("-inf")

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_PROGRESS and progress.done != progress.total:
            return
        self._last = now
        if self._is_cancelled():
            raise Cancelled("The job was cancelled.")
        self._send(progress_message(progress))
