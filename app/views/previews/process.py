"""The process that draws previews: it decodes untrusted files, under limits on memory, time and output.

`app.views.previews.pool` starts it as `python -m app.views.previews.process`. The first line of standard input contains
the limits as JSON. A request is one JSON line [kind, part, n_bytes, window] followed by the bytes of the file; a reply
is one JSON line [reason, n_bytes] followed by the bytes of the drawing. The reason is empty if there is a drawing.

`window` is null or [path, first frame, last frame]: these frames of the recording at `path` are drawn. If the path is
empty, the frames are taken from the bytes of the request. The part `window.wav` consists of the frames themselves.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import BinaryIO

from app.views.previews import drawing as previews
from app.views.previews.pool import WINDOW_PART, Window
from core.errors import InvalidInput
from core.limits import Limits
from storage.media.probe_process import confine, guard_decoding
from storage.media.windows import FileContent, cut


def reply_to(data: bytes, kind: str, part: str, limits: Limits, window: Window | None = None) -> tuple[str, bytes]:
    """(reason, drawing) for one request. Exactly one of them is empty."""
    try:
        if window is not None:
            data = cut_from(data, window)
            if part == WINDOW_PART:
                return "", data
        return "", previews.draw(data, kind, part, limits)
    except InvalidInput as problem:
        return str(problem), b""
    except MemoryError:
        return f"Drawing it needs more than the {limits.decode_bytes:,} bytes allowed (decode_bytes).", b""
    except Exception as problem:  # decoders can raise any exception for damaged data
        return f"It cannot be decoded ({type(problem).__name__}).", b""


def cut_from(data: bytes, window: Window) -> bytes:
    """The frames of a window as a WAV file."""
    path, first, last = window
    if not path:
        return cut(data, first, last)
    with open(path, "rb") as file:
        return cut(FileContent(file.fileno()), first, last)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until stdin is closed."""
    limits = Limits(**json.loads(requests.readline()))
    confine(limits)
    while line := requests.readline():
        kind, part, n_bytes, window = json.loads(line)
        data = requests.read(n_bytes)
        if len(data) < n_bytes:
            return
        guard_decoding(limits)
        reason, drawing = reply_to(data, kind, part, limits, window)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps([reason, len(drawing)]).encode() + b"\n" + drawing)
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
