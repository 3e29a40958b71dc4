"""The save state in the header ("All saved", "3 unsaved — reconnecting"). It also requests the session cookie."""

from __future__ import annotations

from app.web.state import Session
from app.web.widgets.bundle import widget


def session_badge(session: Session, *, key: str) -> None:
    """Mount the badge once per page. An expired ticket triggers a rerun, which issues a new one."""
    widget("session_badge")(
        key=key,
        data={
            "ticket": session.ticket,
            "annotator_id": session.annotator.id,
            "project_id": session.project.id if session.project else None,
        },
        width="content",
        on_renew_change=lambda: None,
    )
