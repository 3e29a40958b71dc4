"""Indexes for finding items: notes, named splits, items with several labels, and the items of an annotator."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    notes, shared = sa.text("kind = 'note'"), sa.text("n_labels > 1")
    op.create_index(
        "label_events_notes", "label_events", ["project_id", "item_id"], sqlite_where=notes, postgresql_where=notes
    )
    op.create_index(
        "item_states_shared", "item_states", ["project_id", "item_id"], sqlite_where=shared, postgresql_where=shared
    )
    split = sa.text("split_name <> ''")
    op.create_index("items_split", "items", ["project_id", "split_name"], sqlite_where=split, postgresql_where=split)
    op.drop_index("current_labels_project", "current_labels")
    op.create_index("current_labels_annotator", "current_labels", ["project_id", "annotator_id", "item_id"])
