"""The table of recordings: files that are stored once and whose windows are items.

A window has no bytes of its own in the media folder. `items.recording_sha256` names the recording in the same project.
A recording has no name as an item and no label; it has a row as long as one of its windows is an item.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.declarative import Table

IS_WINDOW = "recording_sha256 IS NOT NULL"


class Recording(Table):
    __tablename__ = "recordings"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(Text)  # the original name, exactly; shown escaped, never used as a path
    media_type: Mapped[str] = mapped_column(String(40))
    n_bytes: Mapped[int]
    link_path: Mapped[str | None] = mapped_column(Text)  # None: the bytes are in the content-addressed folder
    link_mtime_ns: Mapped[int | None]
    n_frames: Mapped[int]  # that can be read; the header may state another number
    sample_rate: Mapped[int]
    channels: Mapped[int]
    imported_at: Mapped[datetime]
    __table_args__ = (Index("recordings_content", "sha256"),)


class WindowColumns:
    """Columns of `items` for windows, and the group."""

    recording_sha256: Mapped[str | None] = mapped_column(String(64))  # of a window; `sha256` is then its `window_key`
    first_frame: Mapped[int | None]  # of the recording
    last_frame: Mapped[int | None]  # the last one that belongs to the window
    group_name: Mapped[str] = mapped_column(Text, default="", server_default="")  # speaker, patient, site …


RECORDING_TABLES: tuple[type[Table], ...] = (Recording,)


def windows_index() -> Index:
    """The windows of one recording, in order, without reading the other items."""
    return Index(
        "items_windows",
        "project_id",
        "recording_sha256",
        "first_frame",
        sqlite_where=text(IS_WINDOW),
        postgresql_where=text(IS_WINDOW),
    )
