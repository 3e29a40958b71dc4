"""Roles, API tokens, the audit log and deletions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId, UtcDateTime

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "memberships",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("annotator_id", BigId, nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.Column("given_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.PrimaryKeyConstraint("project_id", "annotator_id"),
    )
    op.create_table(
        "api_tokens",
        sa.Column("id", BigId, nullable=False),
        sa.Column("annotator_id", BigId, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=10), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False, unique=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_api_tokens_annotator_id", "api_tokens", ["annotator_id"])
    op.create_table(
        "audit_entries",
        sa.Column("id", BigId, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("annotator_id", BigId, nullable=True),
        sa.Column("project_id", BigId, nullable=True),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_entries_project_id", "audit_entries", ["project_id"])
    op.create_table(
        "deletions",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("project_name", sa.Text(), nullable=False),
        sa.Column("item_ids", sa.JSON(), nullable=True),
        sa.Column("requested_by", BigId, nullable=True),
        sa.Column("requested_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["requested_by"], ["annotators.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_deletions_project_id", "deletions", ["project_id"])
