"""What each annotator did in a project, as the lines of a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from app.views.text import visible
from storage.projects.annotators import AnnotatorStatistics


def annotator_lines(found: Sequence[AnnotatorStatistics], at: datetime) -> list[dict[str, Any]]:
    """One line per annotator. `at` is the present time in the zone for which `found` counts days."""
    return [
        {
            "Annotator": visible(one.name),
            "Labels": one.n_labels,
            "Today": one.per_day.get(at.date(), 0),
            "Skipped": one.n_skips,
            "Flagged": one.n_flags,
            "Undone": one.n_undone,
            "Seconds per label": round(one.median_seconds, 1) if one.median_seconds is not None else None,
            "Last action": one.last_at.astimezone(at.tzinfo) if one.last_at is not None else None,
        }
        for one in found
    ]
