"""Reads the audition that is stored with a project (`app.jobs.audition`). This module does not load torch."""

from __future__ import annotations

from typing import Any

from storage.projects.projects import ProjectRow

KEPT = "audition"  # its key in the project's `extra` settings


def stored_audition(project: ProjectRow) -> dict[str, Any] | None:
    """The newest audition table. None before the first audition."""
    found = project.settings.extra.get(KEPT)
    return found if isinstance(found, dict) and "rows" in found else None


def preferred_encoder(project: ProjectRow) -> tuple[str, str]:
    """Name and identity of the best encoder of the newest audition. Both are empty before the first audition."""
    found = stored_audition(project) or {}
    return str(found.get("best", "")), str(found.get("identity", ""))
