"""Simulations of a project as rows: requested on a screen, computed seed by seed by workers, shown on pages.

A simulation that ended without all its records can be resumed: a new attempt starts after the existing records. A
record is written once; writing it again has no effect. Cancelling changes the status; workers read it and stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, update

from core.errors import Conflict, NotFound
from storage.database.schema import Item, Simulation, SimulationRecord, SimulationSeed
from storage.database.store import Store, insert_for, now
from storage.projects import projects, roles
from storage.rounds.log import finite

UNFINISHED = ("requested", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRow:
    """The request and its status, without the records."""

    id: int
    project_id: int
    asked: Mapping[str, Any]
    settings: Mapping[str, Any]
    status: str  # requested | running | finished | failed | cancelled
    attempt: int
    last_item_id: int
    pool: str
    error: str
    log: str
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    n_records: int
    n_fresh: int  # records of this attempt
    notes: tuple[str, ...]  # current activity, one per seed in progress

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED


def request(store: Store, project_id: int, asked: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """Request a simulation; returns its id. A worker starts it within a second or two."""
    with store.write() as connection:
        projects.touch(connection, project_id)
        newest = connection.execute(select(func.max(Item.id)).where(Item.project_id == project_id)).scalar()
        values = {"project_id": project_id, "asked": dict(asked), "settings": dict(settings), "status": "requested"}
        query = insert(Simulation).values(**values, last_item_id=newest or 0, requested_at=now())
        return int(connection.execute(query.returning(Simulation.id)).scalar_one())


def resume(store: Store, simulation_id: int) -> int:
    """Resume an ended simulation after its existing records; returns the number of the new attempt."""
    with store.write() as connection:
        row = _locked(connection, simulation_id)
        projects.touch(connection, row.project_id)
        if row.status in UNFINISHED:
            raise Conflict("This simulation is already running.")
        attempt = int(row.attempt) + 1
        connection.execute(delete(SimulationSeed).where(SimulationSeed.simulation_id == simulation_id))
        fresh = {"started_at": None, "finished_at": None, "error": "", "log": ""}
        _set(connection, simulation_id, status="requested", attempt=attempt, **fresh)
        return attempt


def begin(store: Store, simulation_id: int, attempt: int, settings: Mapping[str, Any], pool: str) -> bool:
    """Store the resolved settings and the digest of the pool, and mark the attempt as running.

    A second call for the same attempt has no effect. False if the attempt is no longer wanted. Raises Conflict if the
    pool has changed since the simulation first started.
    """
    with store.write() as connection:
        row = _found(connection, simulation_id)
        if not _wanted(row, attempt):
            return False
        if row.pool and row.pool != pool:
            raise Conflict("Items or known labels changed since this simulation started. Start a new one.")
        values = {} if row.pool else {"settings": dict(settings), "pool": pool}
        _set(connection, simulation_id, status="running", started_at=row.started_at or now(), **values)
        return True


def start_seed(store: Store, simulation_id: int, seed: int) -> int:
    """Register that a worker starts a seed; returns the number of starts since its last record, with this one."""
    key = {"simulation_id": simulation_id, "seed": seed}
    with store.write() as connection:
        starting = insert_for(connection, SimulationSeed).values(**key, starts=1, note="", at=now())
        again = {"starts": SimulationSeed.starts + 1, "note": "", "at": now()}
        query = starting.on_conflict_do_update(index_elements=["simulation_id", "seed"], set_=again)
        return int(connection.execute(query.returning(SimulationSeed.starts)).scalar_one())


def note(store: Store, simulation_id: int, seed: int, text: str) -> None:
    """Store the current activity for a started seed."""
    with store.write() as connection:
        connection.execute(update(SimulationSeed).where(*_of_seed(simulation_id, seed)).values(note=text, at=now()))


def add(store: Store, simulation_id: int, record: Mapping[str, Any]) -> bool:
    """Store a record unless it exists; returns whether it was new. A record of a removed simulation is dropped."""
    key = {"strategy": record["strategy"], "seed": record["seed"], "round": record["round"]}
    with store.write() as connection:
        if _found(connection, simulation_id) is None:
            return False
        values = {"simulation_id": simulation_id, **key, "record": finite(dict(record))[0], "at": now()}
        query = insert_for(connection, SimulationRecord).values(**values).on_conflict_do_nothing()
        is_new = connection.execute(query.returning(SimulationRecord.round)).one_or_none() is not None
        if is_new:
            seed = _of_seed(simulation_id, int(record["seed"]))
            connection.execute(update(SimulationSeed).where(*seed).values(starts=1))
        return is_new


def records(store: Store, simulation_id: int, strategy: str | None = None, seed: int | None = None) -> list[Any]:
    """Stored records, ordered by strategy, seed and round; `strategy` and `seed` restrict them."""
    table = SimulationRecord
    query = select(table.record).where(table.simulation_id == simulation_id)
    query = query if strategy is None else query.where(table.strategy == strategy)
    query = query if seed is None else query.where(table.seed == seed)
    with store.read() as connection:
        found = connection.execute(query.order_by(table.strategy, table.seed, table.round)).scalars()
        return [dict(one) for one in found]


def seed_done(store: Store, simulation_id: int, attempt: int, seed: int, n_wanted: int) -> None:
    """End the work on a seed; finish the simulation when it has `n_wanted` records."""
    with store.write() as connection:
        row = _found(connection, simulation_id)  # locked: if seeds end together, the last one counts all records
        connection.execute(delete(SimulationSeed).where(*_of_seed(simulation_id, seed)))
        count = select(func.count()).where(SimulationRecord.simulation_id == simulation_id)
        if _wanted(row, attempt) and connection.execute(count).scalar_one() >= n_wanted:
            _set(connection, simulation_id, status="finished", finished_at=now())


def fail(store: Store, simulation_id: int, attempt: int, error: str, log: str = "") -> None:
    _end(store, simulation_id, attempt, status="failed", error=error, log=log)


def cancel(store: Store, simulation_id: int) -> None:
    """Cancel; workers stop within a few seconds. An ended simulation is not changed."""
    _end(store, simulation_id, None, status="cancelled")


def remove(store: Store, simulation_id: int) -> None:
    """Delete an ended simulation and its records."""
    with store.write() as connection:
        row = _locked(connection, simulation_id)
        roles.check_in(connection, row.project_id, "edit")
        if row.status in UNFINISHED:
            raise Conflict("This simulation is running; cancel it first.")
        for table in (SimulationSeed, SimulationRecord):
            connection.execute(delete(table).where(table.simulation_id == simulation_id))
        connection.execute(delete(Simulation).where(Simulation.id == simulation_id))


def is_wanted(store: Store, simulation_id: int, attempt: int) -> bool:
    """Whether this attempt should continue."""
    with store.read() as connection:
        row = connection.execute(_query().where(Simulation.id == simulation_id)).one_or_none()
    return _wanted(row, attempt)


def get(store: Store, simulation_id: int) -> SimulationRow:
    found = _rows(store, Simulation.id == simulation_id)
    if not found:
        raise NotFound("This simulation no longer exists.")
    return found[0]


def listed(store: Store, project_id: int) -> list[SimulationRow]:
    """The simulations of a project, newest first."""
    return _rows(store, Simulation.project_id == project_id)[::-1]


def unfinished(store: Store) -> list[SimulationRow]:
    """All requested and running simulations, oldest first."""
    return _rows(store, Simulation.status.in_(UNFINISHED))


def not_finished(store: Store) -> list[SimulationRow]:
    """All simulations that are not finished, failed and cancelled ones included."""
    return _rows(store, Simulation.status != "finished")


def _rows(store: Store, where: Any) -> list[SimulationRow]:
    fresh = func.sum(case((SimulationRecord.at >= Simulation.started_at, 1), else_=0))
    counts = select(SimulationRecord.simulation_id, func.count(), fresh).join(Simulation).where(where)
    counts = counts.group_by(SimulationRecord.simulation_id)
    notes = select(SimulationSeed.simulation_id, SimulationSeed.note).join(Simulation)
    notes = notes.where(where, SimulationSeed.note != "").order_by(SimulationSeed.seed)
    with store.read() as connection:
        rows = connection.execute(_query().where(where).order_by(Simulation.id)).all()
        counted = {row[0]: (int(row[1]), int(row[2])) for row in connection.execute(counts)}
        activities = [(int(row[0]), str(row[1])) for row in connection.execute(notes)]
    return [
        SimulationRow(
            **row._asdict(),
            n_records=counted.get(row.id, (0, 0))[0],
            n_fresh=counted.get(row.id, (0, 0))[1],
            notes=tuple(note for simulation_id, note in activities if simulation_id == row.id),
        )
        for row in rows
    ]


def _query() -> Any:
    return select(*Simulation.__table__.columns)


def _of_seed(simulation_id: int, seed: int) -> tuple[Any, Any]:
    return SimulationSeed.simulation_id == simulation_id, SimulationSeed.seed == seed


def _wanted(row: Any, attempt: int) -> bool:
    return row is not None and row.status in UNFINISHED and row.attempt == attempt


def _found(connection: Connection, simulation_id: int) -> Any:
    """The row, locked; None when it was removed."""
    return connection.execute(_query().where(Simulation.id == simulation_id).with_for_update()).one_or_none()


def _locked(connection: Connection, simulation_id: int) -> Any:
    row = _found(connection, simulation_id)
    if row is None:
        raise NotFound("This simulation no longer exists.")
    return row


def _set(connection: Connection, simulation_id: int, **values: Any) -> None:
    connection.execute(update(Simulation).where(Simulation.id == simulation_id).values(**values))


def _end(store: Store, simulation_id: int, attempt: int | None, **values: Any) -> None:
    with store.write() as connection:
        row = _found(connection, simulation_id)
        if row is not None and _wanted(row, row.attempt if attempt is None else attempt):
            roles.check_in(connection, row.project_id, "edit")
            connection.execute(delete(SimulationSeed).where(SimulationSeed.simulation_id == simulation_id))
            _set(connection, simulation_id, finished_at=now(), **values)
