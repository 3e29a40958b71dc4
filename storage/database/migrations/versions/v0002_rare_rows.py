"""Indexes that count test, unreadable, skipped and flagged items, and list items in order, without a full scan.

SQLite uses a partial index only when the query repeats its condition word for word; queries say `skipped = 1` there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for table, name, fact in (
        ("item_states", "item_states_skipped", "skipped"),
        ("item_states", "item_states_flagged", "flagged"),
        ("items", "items_held_out", "held_out"),
    ):
        if table == "item_states":
            op.drop_index(name, table_name=table)
        op.create_index(
            name, table, ["project_id"], sqlite_where=sa.text(f"{fact} = 1"), postgresql_where=sa.text(fact)
        )
    unreadable = sa.text("condition <> 'ok'")
    op.create_index("items_unreadable", "items", ["project_id"], sqlite_where=unreadable, postgresql_where=unreadable)
    op.create_index("items_order", "items", ["project_id", "id"])
