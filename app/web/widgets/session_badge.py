"""The saved state in the header ("All saved", "3 unsaved — reconnecting"); gives the browser its session cookie."""

from __future__ import annotations

from app.web.state import Here
from app.web.widgets.bundle import widget


def session_badge(here: Here, *, key: str) -> None:
    """Mount the badge once per page. An expired ticket triggers a rerun, which issues a new one."""
    widget("session_badge")(
        key=key,
        data={
            "ticket": here.ticket,
            "annotator_id": here.annotator.id,
            "project_id": here.project.id if here.project else None,
        },
        width="content",
        on_renew_change=lambda: None,
    )
