"""What the workflows of a worker process work with. Set once, when the worker starts: one worker per process."""

from __future__ import annotations

from dataclasses import dataclass

from app.worker.heartbeat import Pulse
from storage.database.store import Store


@dataclass(frozen=True, slots=True)
class Desk:
    store: Store
    worker_id: str
    pulse: Pulse


_desk: Desk | None = None


def take(desk: Desk) -> None:
    global _desk
    _desk = desk


def current() -> Desk:
    if _desk is None:
        raise RuntimeError("Workflows run in a worker: start one with `python -m app worker`.")
    return _desk
