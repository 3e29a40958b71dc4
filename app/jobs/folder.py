"""The folder of one job, `WINNOW_HOME/jobs/ID`.

    job.json        the job with its request
    message.json    the newest message of the job's process (`app.processes.messages`), replaced as a whole
    cancel          an empty file; the job ends at its next progress report
    lock            a lock that is taken before the process starts and released when it ends, even if it is killed
    stderr.txt      what the process wrote to stderr

Jobs of earlier versions have `arguments` instead of a request and `progress.json`, `result.json`, `ended.json` and
`error.txt` instead of the message. They are read as well.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from app.processes.messages import Message, ProgressReporter, decode, encode
from core.atomic_files import write_file
from storage.system.file_lock import try_lock, unlock

ERROR_LENGTH = 600
CANCELLED_CODE = 130  # the exit code of a cancelled job in the old format


class JobFolder:
    """Reads and writes the files of one job. Only the job's process writes messages; all other processes read them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_job(self) -> dict[str, Any] | None:
        """The content of `job.json`. None if the job does not exist."""
        return _read_object(self.path / "job.json")

    def write_job(self, values: dict[str, Any]) -> None:
        write_file(self.path / "job.json", json.dumps(values))

    def newest(self) -> Message | None:
        """The newest message. None before the first one."""
        try:
            return decode((self.path / "message.json").read_bytes())
        except OSError:
            return self._newest_in_old_format()

    def send(self, message: Message) -> None:
        write_file(self.path / "message.json", encode(message))

    def reporter(self) -> ProgressReporter:
        return ProgressReporter(self.send, self.is_cancelled)

    def cancel(self) -> None:
        if self.path.is_dir():
            (self.path / "cancel").touch()

    def is_cancelled(self) -> bool:
        return (self.path / "cancel").exists()

    def open_lock(self) -> int:
        """Take the lock and return its descriptor, which the job's process inherits."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try_lock(descriptor)
        return descriptor

    def is_locked(self) -> bool:
        """Whether the job's process exists, even if it is paused."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                if try_lock(descriptor):
                    unlock(descriptor)
                    return False
                return True
            finally:
                os.close(descriptor)
        return False

    def _newest_in_old_format(self) -> Message | None:
        progress, ended = _read_object(self.path / "progress.json"), _read_object(self.path / "ended.json")
        if ended is None:
            return None if progress is None else Message("progress", progress)
        result, code = _read_object(self.path / "result.json"), int(ended.get("code", 1))
        if code == 0:
            return Message("result", result)
        kind = "Cancelled" if code == CANCELLED_CODE else "WinnowError"
        return Message("error", {"type": kind, "sentence": self._error_text(), "result": result})

    def _error_text(self) -> str:
        with contextlib.suppress(OSError):
            return (self.path / "error.txt").read_text(errors="replace").strip()[-ERROR_LENGTH:]
        return ""


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
