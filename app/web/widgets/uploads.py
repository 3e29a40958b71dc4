"""The file upload: choose or drop files or a folder. They are written directly to the server's disk."""

from __future__ import annotations

from app.web.state import Session
from app.web.widgets.bundle import widget


def uploads(session: Session, *, key: str) -> str | None:
    """Mount the widget. Returns the name of its newest finished upload, or None."""
    result = widget("uploads")(
        key=key,
        data={"ticket": session.ticket, "annotator_id": session.annotator.id, "project_id": None},
        default={"upload": None},
        on_upload_change=lambda: None,
    )
    found = getattr(result, "upload", None)
    return found if isinstance(found, str) else None
