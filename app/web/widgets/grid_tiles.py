"""The grid of all items as tiles that can be selected and labeled together. It uses the routes of the labeling card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.web.state import Session
from app.web.widgets.bundle import widget

SHARED = (
    "shared.css", "mounting.js", "keys.js", "full_names.js", "progress.js", "class_pad.js", "selection.js",
    "grid_filters.js", "grid_preview.js", "grid_actions.js",
)  # fmt: skip


def grid_tiles(
    session: Session, *, items: Sequence[int] | None, key: str, like: Mapping[str, Any] | None = None
) -> str | None:
    """Mount the grid with all items or only `items`. With `like`, it first shows the items most similar to that one.
    Returns the screen that the user chose, `label:<item id>` for an item to open, or None."""
    assert session.project is not None
    result = widget("grid_tiles", *SHARED)(
        key=key,
        data={
            "ticket": session.ticket,
            "annotator_id": session.annotator.id,
            "project_id": session.project.id,
            "kind": session.project.kind,
            "like": dict(like) if like is not None else None,
            "items": list(items) if items is not None else None,
        },
        on_go_change=lambda: None,
    )
    return result.go if isinstance(result.go, str) else None
