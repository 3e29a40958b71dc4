"""Deletions as background jobs."""

from __future__ import annotations

from collections.abc import Sequence

from app.jobs import jobs
from app.jobs.jobs import Job
from app.jobs.requests import DeletionRequest
from app.views.text import count
from storage.database.store import Store
from storage.projects.deletion import DeletionRow, request_deletion, unfinished_deletions
from storage.projects.roles import acting_as


def start_deletion(store: Store, project_id: int, confirmation: str, item_ids: Sequence[int] | None = None) -> Job:
    """Record a deletion and run it in the background."""
    return _start(store, request_deletion(store, project_id, confirmation, item_ids))


def resume_deletions(store: Store) -> list[Job]:
    """Continue deletions whose process has ended. Called when a server starts."""
    running = {view.job.title for view in jobs.list_jobs(store.home) if view.status == "running"}
    return [_start(store, row) for row in unfinished_deletions(store) if _title(row) not in running]


def _start(store: Store, row: DeletionRow) -> Job:
    with acting_as(None):  # an owner confirmed it; the process must be able to finish it after the roles are deleted
        return jobs.start(store.home, _title(row), DeletionRequest(deletion_id=row.id), row.project_id)


def _title(row: DeletionRow) -> str:
    what = f"{count(len(row.item_ids), 'item')} of {row.project_name}" if row.item_ids is not None else row.project_name
    return f"Deletion {row.id}: {what}"
