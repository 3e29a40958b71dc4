"""The process that draws previews: it decodes untrusted files, under limits on memory, time and output.

Started by `app.views.previews.pool` as `python -m app.views.previews.process`. The first line of standard input holds
the limits as JSON. A request is one JSON line [kind, part, n_bytes] followed by the bytes of the file; a reply is one
JSON line [reason, n_bytes] followed by the bytes of the drawing. The reason is empty when there is a drawing.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import BinaryIO

from app.views.previews import drawing as previews
from core.errors import InvalidInput
from core.limits import Limits
from storage.media.probe_process import confine, guard_decoding


def reply_to(data: bytes, kind: str, part: str, limits: Limits) -> tuple[str, bytes]:
    """(reason, drawing): one of the two is empty."""
    try:
        return "", previews.draw(data, kind, part, limits)
    except InvalidInput as problem:
        return str(problem), b""
    except MemoryError:
        return f"Drawing it needs more than the {limits.decode_bytes:,} bytes allowed (decode_bytes).", b""
    except Exception as problem:  # decoders raise anything on damaged data
        return f"It does not decode ({type(problem).__name__}).", b""


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    limits = Limits(**json.loads(requests.readline()))
    confine(limits)
    while line := requests.readline():
        kind, part, n_bytes = json.loads(line)
        data = requests.read(n_bytes)
        if len(data) < n_bytes:
            return
        guard_decoding(limits)
        reason, drawing = reply_to(data, kind, part, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps([reason, len(drawing)]).encode() + b"\n" + drawing)
        replies.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
