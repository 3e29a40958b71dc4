"""Picks that are second looks at labels."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("picks", sa.Column("look_after", BigId, nullable=True))
