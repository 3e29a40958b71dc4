"""`python -m tests.drills.shifted_clock MODULE ARGUMENTS`: runs a module with a clock that is shifted by a file.

The file named by WINNOW_DRILL_CLOCK contains the offset in seconds and may change at any time. The offset applies to
`time.time` and to the clock of the store (`storage.database.store.now`) and of its backups. It does not apply to clocks
that only measure durations (`time.monotonic`).
"""

from __future__ import annotations

import datetime as datetimes
import importlib
import os
import runpy
import sys
import time
from pathlib import Path

VARIABLE = "WINNOW_DRILL_CLOCK"
STORE_CLOCKS = ("storage.database.store", "storage.database.backups", "storage.database.backup_files")
_exact_time = time.time


def offset_seconds() -> float:
    """The offset in the file; 0 if there is no file."""
    try:
        return float(Path(os.environ[VARIABLE]).read_text())
    except (KeyError, OSError, ValueError):
        return 0.0


def shifted_time() -> float:
    return _exact_time() + offset_seconds()


class ShiftedDatetime(datetimes.datetime):
    """`datetime` whose `now` is shifted; everything else is inherited."""

    @classmethod
    def now(cls, tz: datetimes.tzinfo | None = None) -> datetimes.datetime:  # type: ignore[override]
        return datetimes.datetime.fromtimestamp(shifted_time(), tz)


def shift_clocks() -> None:
    time.time = shifted_time
    for name in STORE_CLOCKS:
        module = importlib.import_module(name)
        if hasattr(module, "datetime"):
            module.datetime = ShiftedDatetime  # type: ignore[attr-defined]


if __name__ == "__main__":
    shift_clocks()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
