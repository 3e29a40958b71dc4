"""Durations and moments as people read them."""

from __future__ import annotations

from datetime import datetime

from storage.database.store import now


def duration(seconds: float) -> str:
    """ "12 s", "3 min", "1.5 h"; at least one second."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def ago(moment: datetime) -> str:
    """ "just now", "3 min ago", "4 days ago"."""
    seconds = max((now() - moment).total_seconds(), 0.0)
    if seconds >= 48 * 3600:
        return f"{round(seconds / 86400):,} days ago"
    return "just now" if seconds < 2 else f"{duration(seconds)} ago"
