"""Choosing files or a folder, or dropping them: they go straight to disk, and the screen gets the upload's name."""

from __future__ import annotations

from app.web.state import Session
from app.web.widgets.bundle import widget


def uploads(session: Session, *, key: str) -> str | None:
    """The name of the newest finished upload of this widget; None before."""
    result = widget("uploads")(
        key=key,
        data={"ticket": session.ticket, "annotator_id": session.annotator.id, "project_id": None},
        default={"upload": None},
        on_upload_change=lambda: None,
    )
    found = getattr(result, "upload", None)
    return found if isinstance(found, str) else None
