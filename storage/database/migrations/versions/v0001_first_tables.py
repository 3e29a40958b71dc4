"""The first tables, one function each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId, UtcDateTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    annotators()
    projects()
    settings()
    classes()
    import_runs()
    queue_cursors()
    rounds()
    artifacts()
    class_events()
    items()
    round_progress()
    workers()
    current_labels()
    item_names()
    item_states()
    label_events()
    leases()
    picks()


def annotators() -> None:
    op.create_table(
        "annotators",
        sa.Column("id", BigId, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("subject", sa.String(length=300), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("removed_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("subject"),
    )


def projects() -> None:
    op.create_table(
        "projects",
        sa.Column("id", BigId, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("guidelines", sa.Text(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("revision", BigId, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("archived_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def settings() -> None:
    op.create_table(
        "settings",
        sa.Column("key", sa.String(length=100), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )


def classes() -> None:
    op.create_table(
        "classes",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", BigId, nullable=False),
        sa.Column("key", sa.String(length=8), nullable=True),
        sa.Column("color", sa.String(length=9), nullable=True),
        sa.Column("effective_id", BigId, nullable=True),
        sa.Column("retired_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["effective_id"], ["classes.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "classes_active_name",
        "classes",
        ["project_id", "name"],
        unique=True,
        sqlite_where=sa.text("retired_at IS NULL AND effective_id IS NULL"),
        postgresql_where=sa.text("retired_at IS NULL AND effective_id IS NULL"),
    )


def import_runs() -> None:
    op.create_table(
        "import_runs",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_import_runs_project_id"), "import_runs", ["project_id"], unique=False)


def queue_cursors() -> None:
    op.create_table(
        "queue_cursors",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("annotator_id", BigId, nullable=False),
        sa.Column("queued", sa.Boolean(), nullable=False),
        sa.Column("queue_rank", BigId, nullable=False),
        sa.Column("shuffle", sa.Integer(), nullable=False),
        sa.Column("item_id", BigId, nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("project_id", "annotator_id", "queued"),
    )


def rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("strategy", sa.String(length=40), nullable=False),
        sa.Column("constraint", sa.JSON(), nullable=False),
        sa.Column("label_sequence", BigId, nullable=False),
        sa.Column("class_event", BigId, nullable=False),
        sa.Column("last_item_id", BigId, nullable=False),
        sa.Column("n_labeled", sa.Integer(), nullable=False),
        sa.Column("replay_of", BigId, nullable=True),
        sa.Column("requested_by", BigId, nullable=True),
        sa.Column("requested_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("stage", sa.String(length=20), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("workflow_id", sa.String(length=80), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.ForeignKeyConstraint(["replay_of"], ["rounds.id"]),
        sa.ForeignKeyConstraint(["requested_by"], ["annotators.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("project_id", "number", name="rounds_number"),
    )


def artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=True),
        sa.Column("round_id", BigId, nullable=True),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("suffix", sa.String(length=16), nullable=False),
        sa.Column("n_bytes", BigId, nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("dtype", sa.String(length=20), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_artifacts_project_id"), "artifacts", ["project_id"], unique=False)
    op.create_index(op.f("ix_artifacts_round_id"), "artifacts", ["round_id"], unique=False)


def class_events() -> None:
    op.create_table(
        "class_events",
        sa.Column("id", BigId, nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("class_id", BigId, nullable=False),
        sa.Column("kind", sa.String(length=12), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("annotator_id", BigId, nullable=True),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.ForeignKeyConstraint(["class_id"], ["classes.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uuid"),
    )
    op.create_index(op.f("ix_class_events_project_id"), "class_events", ["project_id"], unique=False)


def items() -> None:
    op.create_table(
        "items",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.String(length=40), nullable=False),
        sa.Column("n_bytes", BigId, nullable=False),
        sa.Column("link_path", sa.Text(), nullable=True),
        sa.Column("link_mtime_ns", BigId, nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("sample_rate", BigId, nullable=True),
        sa.Column("channels", BigId, nullable=True),
        sa.Column("width", BigId, nullable=True),
        sa.Column("height", BigId, nullable=True),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        sa.Column("truth_class_id", BigId, nullable=True),
        sa.Column("condition", sa.String(length=12), nullable=False),
        sa.Column("condition_note", sa.Text(), nullable=False),
        sa.Column("imported_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.ForeignKeyConstraint(["truth_class_id"], ["classes.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("project_id", "sha256", name="items_content"),
    )


def round_progress() -> None:
    op.create_table(
        "round_progress",
        sa.Column("id", BigId, nullable=False),
        sa.Column("round_id", BigId, nullable=False),
        sa.Column("stage", sa.String(length=20), nullable=False),
        sa.Column("done", BigId, nullable=False),
        sa.Column("total", BigId, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_round_progress_round_id"), "round_progress", ["round_id"], unique=False)


def workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(length=80), nullable=False),
        sa.Column("round_id", BigId, nullable=True),
        sa.Column("stage", sa.String(length=20), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("heartbeat_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"]),
        sa.PrimaryKeyConstraint("id"),
    )


def current_labels() -> None:
    op.create_table(
        "current_labels",
        sa.Column("item_id", BigId, nullable=False),
        sa.Column("annotator_id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("class_id", BigId, nullable=False),
        sa.Column("sequence", BigId, nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.ForeignKeyConstraint(["class_id"], ["classes.id"]),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("item_id", "annotator_id"),
    )
    op.create_index("current_labels_project", "current_labels", ["project_id", "annotator_id"], unique=False)


def item_names() -> None:
    op.create_table(
        "item_names",
        sa.Column("item_id", BigId, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
        sa.PrimaryKeyConstraint("item_id", "name"),
    )


def item_states() -> None:
    op.create_table(
        "item_states",
        sa.Column("item_id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("waiting", sa.Boolean(), nullable=False),
        sa.Column("n_labels", sa.Integer(), nullable=False),
        sa.Column("class_id", BigId, nullable=True),
        sa.Column("decided", sa.Boolean(), nullable=False),
        sa.Column("skipped", sa.Boolean(), nullable=False),
        sa.Column("flagged", sa.Boolean(), nullable=False),
        sa.Column("sequence", BigId, nullable=True),
        sa.Column("queue_rank", BigId, nullable=False),
        sa.Column("shuffle", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["class_id"], ["classes.id"]),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("item_id"),
    )
    op.create_index("item_states_class", "item_states", ["project_id", "class_id"], unique=False)
    op.create_index(
        "item_states_flagged",
        "item_states",
        ["project_id"],
        unique=False,
        sqlite_where=sa.text("flagged"),
        postgresql_where=sa.text("flagged"),
    )
    op.create_index(
        "item_states_queue", "item_states", ["project_id", "waiting", "queue_rank", "shuffle", "item_id"], unique=False
    )
    op.create_index(
        "item_states_skipped",
        "item_states",
        ["project_id"],
        unique=False,
        sqlite_where=sa.text("skipped"),
        postgresql_where=sa.text("skipped"),
    )


def label_events() -> None:
    op.create_table(
        "label_events",
        sa.Column("sequence", BigId, nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("item_id", BigId, nullable=False),
        sa.Column("annotator_id", BigId, nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("class_id", BigId, nullable=True),
        sa.Column("undoes", sa.String(length=36), nullable=True),
        sa.Column("suggestion", sa.String(length=8), nullable=False),
        sa.Column("suggested_class_id", BigId, nullable=True),
        sa.Column("suggested_confidence", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("round_id", BigId, nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("stored_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.ForeignKeyConstraint(["class_id"], ["classes.id"]),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"]),
        sa.ForeignKeyConstraint(["suggested_class_id"], ["classes.id"]),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("uuid"),
        sqlite_autoincrement=True,
    )
    op.create_index("label_events_annotator", "label_events", ["project_id", "annotator_id", "sequence"], unique=False)
    op.create_index("label_events_item", "label_events", ["item_id", "sequence"], unique=False)
    op.create_index("label_events_undoes", "label_events", ["undoes"], unique=False)


def leases() -> None:
    op.create_table(
        "leases",
        sa.Column("item_id", BigId, nullable=False),
        sa.Column("annotator_id", BigId, nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["annotator_id"], ["annotators.id"]),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("item_id", "annotator_id"),
    )
    op.create_index("leases_expiry", "leases", ["project_id", "expires_at"], unique=False)


def picks() -> None:
    op.create_table(
        "picks",
        sa.Column("round_id", BigId, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("item_id", BigId, nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("reason", sa.JSON(), nullable=False),
        sa.Column("hindsight", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["item_id"], ["items.id"]),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"]),
        sa.PrimaryKeyConstraint("round_id", "position"),
    )
    op.create_index(op.f("ix_picks_item_id"), "picks", ["item_id"], unique=False)
