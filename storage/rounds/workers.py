"""Workers and their heartbeats: host, device and current stage of each.

A worker updates its row every few seconds. A worker whose heartbeat is older than `STALE_SECONDS` counts as dead, and
another worker takes over its round. Rows of dead workers are kept for a day, for the Workers panel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, update

from storage.database.schema import Round, Worker
from storage.database.store import Store, now

STALE_SECONDS = 20.0
KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One line of the Workers panel."""

    id: str
    host: str
    pid: int
    device: str
    round_id: int | None
    project_id: int | None  # of the round it works on
    stage: str
    started_at: datetime
    heartbeat_at: datetime
    living: bool


def list_workers(store: Store, stale_seconds: float = STALE_SECONDS) -> list[WorkerRow]:
    """Workers with a heartbeat in the last day: active ones first, each group in the order of registration."""
    query = select(Worker, Round.project_id).join(Round, Round.id == Worker.round_id, isouter=True)
    with store.read() as connection:
        rows = connection.execute(query.order_by(Worker.started_at, Worker.id)).all()
    at = now()
    found = [_row(row, at, stale_seconds) for row in rows]
    return [w for w in found if w.living] + [w for w in found if not w.living]


def living_workers(store: Store, stale_seconds: float = STALE_SECONDS) -> list[WorkerRow]:
    return [worker for worker in list_workers(store, stale_seconds) if worker.living]


def _row(row: Any, at: datetime, stale_seconds: float) -> WorkerRow:
    age = abs((at - row.heartbeat_at).total_seconds())  # a time in the far future comes from a wrong clock
    return WorkerRow(
        id=row.id,
        host=row.host,
        pid=row.pid,
        device=row.device,
        round_id=row.round_id,
        project_id=row.project_id,
        stage=row.stage,
        started_at=row.started_at,
        heartbeat_at=row.heartbeat_at,
        living=age <= stale_seconds,
    )


def register(store: Store, worker_id: str, *, host: str, pid: int, device: str) -> None:
    """Add the row of a worker that has started, and remove rows without a heartbeat for a day."""
    at = now()
    with store.write() as connection:
        connection.execute(delete(Worker).where(Worker.heartbeat_at < at - KEPT))
        connection.execute(
            insert(Worker).values(
                id=worker_id, host=host, pid=pid, device=device, stage="", started_at=at, heartbeat_at=at
            )
        )


def beat(store: Store, worker_id: str, *, round_id: int | None, stage: str) -> bool:
    """Update the heartbeat. False if the row was removed after a day without one; the worker must register again."""
    with store.write() as connection:
        done = connection.execute(
            update(Worker).where(Worker.id == worker_id).values(round_id=round_id, stage=stage, heartbeat_at=now())
        )
    return bool(done.rowcount)


def remove(store: Store, worker_ids: Collection[str]) -> None:
    """Remove the rows of workers that have stopped or were found dead."""
    with store.write() as connection:
        connection.execute(delete(Worker).where(Worker.id.in_(list(worker_ids))))
