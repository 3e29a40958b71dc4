"""The activity of each annotator in a project, as the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from app.views.durations import ago
from app.views.text import visible
from storage.projects.annotators import AnnotatorStatistics

COLUMNS = ("Annotator", "Labels", "Today", "Skipped", "Flagged", "Undone", "Time per label", "Last action")


def annotator_lines(found: Sequence[AnnotatorStatistics], at: datetime) -> list[list[str]]:
    """One row per annotator with the cells of COLUMNS. `at` is the current time in the time zone in which `found`
    counts days."""
    return [
        [
            visible(one.name),
            f"{one.n_labels:,}",
            f"{one.per_day.get(at.date(), 0):,}",
            f"{one.n_skips:,}",
            f"{one.n_flags:,}",
            f"{one.n_undone:,}",
            f"{one.median_seconds:.1f} s" if one.median_seconds is not None else "",
            ago(one.last_at) if one.last_at is not None else "",
        ]
        for one in found
    ]
