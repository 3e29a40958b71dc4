"""Durations and times as text for users."""

from __future__ import annotations

from datetime import datetime

from storage.database.store import now


def duration(seconds: float) -> str:
    """Format a duration: "12 s", "3 min", "1.5 h". The shortest is one second."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def ago(moment: datetime) -> str:
    """Format a past time: "just now", "3 min ago", "4 days ago"."""
    seconds = max((now() - moment).total_seconds(), 0.0)
    if seconds >= 48 * 3600:
        return f"{round(seconds / 86400):,} days ago"
    return "just now" if seconds < 2 else f"{duration(seconds)} ago"
