"""Simulations, their records, and the progress of their seeds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.database.declarative import BigId, UtcDateTime

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "simulations",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("asked", sa.JSON(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("last_item_id", BigId, nullable=False),
        sa.Column("pool", sa.String(length=64), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("requested_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_simulations_project_id", "simulations", ["project_id"])
    op.create_table(
        "simulation_records",
        sa.Column("simulation_id", BigId, nullable=False),
        sa.Column("strategy", sa.String(length=60), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["simulation_id"], ["simulations.id"]),
        sa.PrimaryKeyConstraint("simulation_id", "strategy", "seed", "round"),
    )
    op.create_table(
        "simulation_seeds",
        sa.Column("simulation_id", BigId, nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["simulation_id"], ["simulations.id"]),
        sa.PrimaryKeyConstraint("simulation_id", "seed"),
    )
