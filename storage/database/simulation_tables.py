"""The tables of simulations: what was asked, every record, and where each seed is. Part of the schema
(`storage.database.schema`), in a file of their own.

Facts         simulations, simulation_records
Passing       simulation_seeds: who is at which seed; losing it loses nothing
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.schema import Table


class Simulation(Table):
    """A simulation of a project: its question, and how far it came."""

    __tablename__ = "simulations"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    asked: Mapped[dict[str, Any]]  # app.simulation.requests.Asked
    settings: Mapped[dict[str, Any]]  # core.config.RoundConfig; `auto` is settled by the worker that begins it
    status: Mapped[str] = mapped_column(String(12))  # requested | running | finished | failed | cancelled
    attempt: Mapped[int] = mapped_column(Integer, default=1)  # grows each time it is gone on with
    last_item_id: Mapped[int]  # newest item when it was asked for
    pool: Mapped[str] = mapped_column(String(64), default="")  # digest of items and known labels, once begun
    error: Mapped[str] = mapped_column(Text, default="")
    log: Mapped[str] = mapped_column(Text, default="")
    requested_at: Mapped[datetime]
    started_at: Mapped[datetime | None]  # of this attempt
    finished_at: Mapped[datetime | None]


class SimulationRecord(Table):
    """One trained model and what it chose next; written once, by whoever comes first."""

    __tablename__ = "simulation_records"
    simulation_id: Mapped[int] = mapped_column(ForeignKey("simulations.id"), primary_key=True)
    strategy: Mapped[str] = mapped_column(String(60), primary_key=True)
    seed: Mapped[int] = mapped_column(Integer, primary_key=True)
    round: Mapped[int] = mapped_column(Integer, primary_key=True)
    record: Mapped[dict[str, Any]]  # core.rounds.simulation_plan.RoundRecord
    at: Mapped[datetime]


class SimulationSeed(Table):
    """Where a seed is that some worker took up."""

    __tablename__ = "simulation_seeds"
    simulation_id: Mapped[int] = mapped_column(ForeignKey("simulations.id"), primary_key=True)
    seed: Mapped[int] = mapped_column(Integer, primary_key=True)
    starts: Mapped[int] = mapped_column(Integer, default=0)  # workers that took it up since its last record
    note: Mapped[str] = mapped_column(Text, default="")  # what is at work; empty when nobody is
    at: Mapped[datetime]
