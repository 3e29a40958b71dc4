"""The engine of background work: DBOS Transact, which keeps workflows and their finished steps in a database.

With a SQLite store the engine uses its own file, WINNOW_HOME/engine.sqlite. With a PostgreSQL store it uses the schema
`dbos` of that database, so that workers on any machine share it. Only JSON passes through the engine: ids, settings and
the names of artifacts, never arrays or pickles.

The engine stores the worker of each running workflow (`executor_id`). The `workers` table of the store says which
workers are alive; a workflow whose worker is dead is put back on its queue (`adopt`). The engine refuses results of a
superseded worker, because each claim has its own token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID, WorkflowStatus

from storage.database.advisory_lock import polled_advisory_lock
from storage.database.locations import engine_url
from storage.database.store import Store
from storage.system.file_lock import file_lock

NAME = "winnow"
VERSION = "5"  # increase it when a workflow's steps change: workers run only workflows of their own version
ROUNDS, UNITS = "winnow-rounds", "winnow-units"  # whole rounds and comparisons; blocks of work of a round
STUDIES = "winnow-studies"  # simulations and their seeds, on a separate queue so that rounds never wait for them
UNFINISHED = ("PENDING", "ENQUEUED", "DELAYED")
MIGRATE_SECONDS = 60.0
LOCK = 7305809  # key of the advisory lock on PostgreSQL


def migrate(store: Store) -> None:
    """Create or update the engine's tables. A lock serializes concurrent calls, also from other processes."""
    logging.getLogger("dbos").setLevel(logging.ERROR)
    if store.is_sqlite:
        with file_lock(Path(store.home) / "engine.lock", "The engine's tables", MIGRATE_SECONDS):
            DBOS.migrate(engine_url(store.url, store.home))
    else:
        with polled_advisory_lock(store.engine, LOCK, "The engine's tables", MIGRATE_SECONDS):
            DBOS.migrate(engine_url(store.url, store.home))


def launch(store: Store, worker_id: str, polling_seconds: float = 1.0) -> None:
    """Start the engine in this process under the worker's id. `migrate` must have created its tables."""
    config: DBOSConfig = {
        "name": NAME,
        "system_database_url": engine_url(store.url, store.home),
        "application_version": VERSION,
        "executor_id": worker_id,
        "serializer": DBOSPortableJSONSerializer(),
        "run_migrations": False,
        "log_level": "ERROR",
        "enable_otlp": False,
        "use_listen_notify": False,
        "scheduler_polling_interval_sec": 3600.0,
    }
    DBOS(config=config)
    DBOS.launch()
    for queue in (ROUNDS, UNITS, STUDIES):
        DBOS.register_queue(
            queue, worker_concurrency=1, polling_interval_sec=polling_seconds, on_conflict="always_update"
        )


def shut_down() -> None:
    DBOS.destroy(destroy_registry=False)


def enqueue(queue: str, workflow: Callable[..., Any], workflow_id: str, *args: Any) -> None:
    """Put a workflow on a queue. Does nothing if a workflow with this id exists, in any state."""
    with SetWorkflowID(workflow_id):
        DBOS.enqueue_workflow(queue, workflow, *args)


def status(workflow_id: str) -> WorkflowStatus | None:
    found = DBOS.list_workflows(workflow_ids=[workflow_id], load_input=False)
    return found[0] if found else None


def statuses(workflow_ids: Sequence[str]) -> dict[str, WorkflowStatus]:
    found = DBOS.list_workflows(workflow_ids=list(workflow_ids), load_input=False)
    return {row.workflow_id: row for row in found}


def owns(workflow_id: str, worker_id: str) -> bool:
    """Whether this worker is still the one that runs the workflow."""
    row = status(workflow_id)
    return row is not None and row.status == "PENDING" and row.executor_id == worker_id


def adopt(living: Collection[str]) -> list[str]:
    """Put workflows whose worker is not in `living` back on their queue. Returns their ids.

    Only one worker may call this at a time (`app.worker.worker` chooses the longest-running one).
    """
    orphans = [
        row
        for row in DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
        if row.executor_id not in living
    ]
    for row in orphans:
        DBOS.resume_workflow(row.workflow_id, queue_name=row.queue_name)
    return [row.workflow_id for row in orphans]


def outdated(living: Collection[str]) -> list[str]:
    """Ids of the unfinished workflows that another version of the program enqueued and no living worker runs."""
    unfinished = DBOS.list_workflows(status=list(UNFINISHED), load_input=False, load_output=False)
    return [row.workflow_id for row in unfinished if row.app_version != VERSION and row.executor_id not in living]


def delete(workflow_ids: Sequence[str], with_children: bool = False) -> None:
    """Remove workflows and the results of their steps; with `with_children` also the workflows that they enqueued."""
    for workflow_id in workflow_ids:
        DBOS.delete_workflow(workflow_id, delete_children=with_children)


def cancel(workflow_ids: Sequence[str]) -> None:
    """Cancel workflows that wait on a queue. A running workflow is stopped by its own `report` instead."""
    if workflow_ids:
        DBOS.cancel_workflows(list(workflow_ids))
