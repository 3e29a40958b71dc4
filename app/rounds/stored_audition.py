"""The audition that is kept with a project (`app.jobs.audition`), as pages and rounds read it. Loads no torch."""

from __future__ import annotations

from typing import Any

from storage.projects.projects import ProjectRow

KEPT = "audition"  # in the project's `extra` settings


def stored_audition(project: ProjectRow) -> dict[str, Any] | None:
    """The newest table; None before the first audition."""
    found = project.settings.extra.get(KEPT)
    return found if isinstance(found, dict) and "rows" in found else None


def preferred_encoder(project: ProjectRow) -> tuple[str, str]:
    """Name and identity of the encoder that was best in the newest audition; empty before it."""
    found = stored_audition(project) or {}
    return str(found.get("best", "")), str(found.get("identity", ""))
