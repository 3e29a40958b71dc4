"""What the workflows of a worker process work with. Set once, when the worker starts: one worker per process."""

from __future__ import annotations

from dataclasses import dataclass

from app.worker.heartbeat import Heartbeat
from storage.database.store import Store


@dataclass(frozen=True, slots=True)
class WorkerContext:
    store: Store
    worker_id: str
    pulse: Heartbeat


_desk: WorkerContext | None = None


def take(desk: WorkerContext) -> None:
    global _desk
    _desk = desk


def current() -> WorkerContext:
    if _desk is None:
        raise RuntimeError("Workflows run in a worker: start one with `python -m app worker`.")
    return _desk
