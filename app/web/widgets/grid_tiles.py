"""Tiles that are selected and labeled together: one Components v2 widget over the same routes as the labeling card."""

from __future__ import annotations

from collections.abc import Sequence

from app.web.state import Here
from app.web.widgets.bundle import widget


def grid_tiles(here: Here, *, items: Sequence[int] | None, key: str) -> str | None:
    """Mount it over all waiting items, or only `items`; gives the name of the screen the person asked to go to."""
    assert here.project is not None
    result = widget("grid_tiles", "selection.js")(
        key=key,
        data={
            "ticket": here.ticket,
            "annotator_id": here.annotator.id,
            "project_id": here.project.id,
            "kind": here.project.kind,
            "items": list(items) if items is not None else None,
        },
        on_go_change=lambda: None,
    )
    return result.go if isinstance(result.go, str) else None
