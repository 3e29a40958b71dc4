"""Item states carry the project revision of their last change, so that a reader can fetch only what has changed.

The index holds only rows that changed after their import. SQLite uses it only when the query repeats its condition
word for word.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("item_states", sa.Column("revision", BigId, nullable=False, server_default="0"))
    changed = sa.text("revision > 0")
    op.create_index(
        "item_states_changed",
        "item_states",
        ["project_id", "revision"],
        sqlite_where=changed,
        postgresql_where=changed,
    )
