"""Whether a process of this machine still runs."""

from __future__ import annotations

import os


def is_running(pid: int) -> bool:
    """Whether a process with this number exists, of any user. A reused number counts as running."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
