"""The labeling surface: one Components v2 widget that owns its cards, its keys and its queue.

Labels and cards travel over our own routes (`app.web.routes.api`), not through Streamlit's widget state: a rerun can
neither merge, drop nor reorder them, a lost connection or a restarted server is a retry, and the answer to a label is
the acknowledgement that it is on disk.
"""

from __future__ import annotations

from app.web.state import Here
from app.web.widgets.bundle import widget

SCRIPTS = (
    "keys.js", "full_names.js", "player.js", "zoom.js", "deck.js", "class_pad.js", "note_sheet.js", "label_view.js",
    "recording_strip.js",
)  # fmt: skip


def label_card(here: Here, *, key: str) -> str | None:
    """Mount it; gives the name of the screen the person asked to go to, if any."""
    assert here.project is not None
    result = widget("label_card", *SCRIPTS)(
        key=key,
        data={
            "ticket": here.ticket,
            "annotator_id": here.annotator.id,
            "project_id": here.project.id,
            "kind": here.project.kind,
        },
        on_go_change=lambda: None,
    )
    return result.go if isinstance(result.go, str) else None
