"""Windows of recordings as items, the recordings themselves, and groups that splits keep together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId, UtcDateTime

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "recordings",
        sa.Column("project_id", BigId, sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.String(length=40), nullable=False),
        sa.Column("n_bytes", BigId, nullable=False),
        sa.Column("link_path", sa.Text(), nullable=True),
        sa.Column("link_mtime_ns", BigId, nullable=True),
        sa.Column("n_frames", BigId, nullable=False),
        sa.Column("sample_rate", BigId, nullable=False),
        sa.Column("channels", BigId, nullable=False),
        sa.Column("imported_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "sha256"),
    )
    op.create_index("recordings_content", "recordings", ["sha256"])
    op.add_column("items", sa.Column("recording_sha256", sa.String(length=64), nullable=True))
    op.add_column("items", sa.Column("first_frame", BigId, nullable=True))
    op.add_column("items", sa.Column("last_frame", BigId, nullable=True))
    op.add_column("items", sa.Column("group_name", sa.Text(), nullable=False, server_default=""))
    windows = sa.text("recording_sha256 IS NOT NULL")
    op.create_index(
        "items_windows",
        "items",
        ["project_id", "recording_sha256", "first_frame"],
        sqlite_where=windows,
        postgresql_where=windows,
    )
