"""Errors of background work: one sentence for the screen and the traceback for the round's log."""

from __future__ import annotations

import errno
import os
import re
import traceback

from core.errors import WinnowError

LOG_LENGTH = 20_000
TORCH_BYTES = re.compile(r"you tried to allocate (\d+) bytes", re.IGNORECASE)
TORCH_SIZE = re.compile(r"tried to allocate ([\d.]+ [KMGT]iB)", re.IGNORECASE)


def sentence(error: BaseException) -> str:
    """One sentence about the error for users. The text of a `WinnowError` is used as it is."""
    if isinstance(error, WinnowError):
        return str(error)
    if needed := memory_needed(error):
        return (
            f"Not enough memory: {needed}. Lower the number of landmarks, views or candidates, or start a worker on a "
            "machine with more memory."
        )
    if is_disk_full(error):
        return "The disk of the worker is full, so the round could not be stored. Free some space and run it again."
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def memory_needed(error: BaseException) -> str:
    """A description of the memory that could not be allocated. Empty for other errors."""
    text = str(error)
    if found := TORCH_BYTES.search(text):
        return f"{int(found.group(1)) / 2**20:,.0f} MiB more were needed"
    if found := TORCH_SIZE.search(text):
        return f"{found.group(1)} more were needed"
    if isinstance(error, MemoryError):
        return text.rstrip(".") or "an allocation failed"
    return ""


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed for lack of space, including system errors that a library has wrapped."""
    return getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)


def traceback_text(error: BaseException) -> str:
    """The traceback, or its last `LOG_LENGTH` characters."""
    return "".join(traceback.format_exception(error))[-LOG_LENGTH:]
