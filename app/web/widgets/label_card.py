"""The labeling card: one Components v2 widget that manages its cards, keys and queue in the browser.

Labels and cards are sent over our own routes (`app.web.routes.api`), not through Streamlit's widget state. A rerun
therefore cannot merge, drop or reorder them. After a lost connection or a server restart the widget retries. The
response to a label confirms that it is on disk.
"""

from __future__ import annotations

from app.web.state import Session
from app.web.widgets.bundle import widget

SHARED = (
    "shared.css", "mounting.js", "keys.js", "full_names.js", "progress.js", "player.js", "zoom.js", "deck.js",
    "class_pad.js", "note_sheet.js", "label_view.js", "recording_strip.js",
)  # fmt: skip


def label_card(session: Session, *, open_item: int | None = None, key: str) -> str | None:
    """Mount the card, with the item `open_item` if given. Returns the name of the screen that the user chose, or
    None."""
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
