"""Watched folders, and the outcome for each of their files."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId, UtcDateTime

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "watches",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("labels", sa.String(length=10), nullable=False),
        sa.Column("buffer_size", sa.Integer(), nullable=False),
        sa.Column("remaining", BigId, nullable=True),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("buffer", sa.JSON(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("looked_at", UtcDateTime(), nullable=True),
        sa.Column("stopped_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("project_id"),
    )
    op.create_table(
        "watched_files",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("path_key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("n_bytes", BigId, nullable=False),
        sa.Column("mtime_ns", BigId, nullable=False),
        sa.Column("outcome", sa.String(length=12), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("project_id", "path_key"),
    )
    op.create_index("watched_files_outcome", "watched_files", ["project_id", "outcome", "at"])
