"""The labeling surface: one Components v2 widget that owns its cards, its keys and its queue.

Labels and cards travel over our own routes (`app.web.routes.api`), not through Streamlit's widget state: a rerun can
neither merge, drop nor reorder them, a lost connection or a restarted server is a retry, and the answer to a label is
the acknowledgement that it is on disk.
"""

from __future__ import annotations

from app.web.state import Session
from app.web.widgets.bundle import widget

SHARED = (
    "shared.css", "mounting.js", "keys.js", "full_names.js", "progress.js", "player.js", "zoom.js", "deck.js",
    "class_pad.js", "note_sheet.js", "label_view.js", "recording_strip.js",
)  # fmt: skip


def label_card(session: Session, *, open_item: int | None = None, key: str) -> str | None:
    """Mount it, with `open_item` on the card if given; returns the name of the screen that the person chose."""
    assert session.project is not None
    result = widget("label_card", *SHARED)(
        key=key,
        data={
            "ticket": session.ticket,
            "annotator_id": session.annotator.id,
            "project_id": session.project.id,
            "kind": session.project.kind,
            "open_item": open_item,
        },
        on_go_change=lambda: None,
    )
    return result.go if isinstance(result.go, str) else None
