"""The context of the workflows in a worker process. It is set once, when the worker of the process starts."""

from __future__ import annotations

from dataclasses import dataclass

from app.worker.heartbeat import Heartbeat
from storage.database.store import Store


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The objects of a worker that its workflows use."""

    store: Store
    worker_id: str
    heartbeat: Heartbeat


_context: WorkerContext | None = None


def set_context(context: WorkerContext) -> None:
    global _context
    _context = context


def current() -> WorkerContext:
    """The context of this process. Raises `RuntimeError` if no worker runs in it."""
    if _context is None:
        raise RuntimeError("Workflows run in a worker: start one with `python -m app worker`.")
    return _context
