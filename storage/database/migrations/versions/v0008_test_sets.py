"""Test sets drawn from the pool."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId, UtcDateTime

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "test_sets",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("drawn_by", BigId, nullable=True),
        sa.Column("drawn_at", UtcDateTime(), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.ForeignKeyConstraint(["drawn_by"], ["annotators.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_test_sets_project_id", "test_sets", ["project_id"])
    op.add_column("items", sa.Column("test_set_id", BigId, nullable=True))
