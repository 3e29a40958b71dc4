"""Items store the name that their source uses for their split, such as `val`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("items", sa.Column("split_name", sa.String(length=40), nullable=False, server_default=""))
