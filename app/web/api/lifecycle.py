"""Endpoints that manage a project: delete, duplicate, test items, disk use."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.jobs.deletions import start_deletion
from app.web import resources
from app.web.api import models
from app.web.api.jobs import shown_job
from app.web.api.models import BodyId, Id, Received, Returned
from app.web.api.projects import shown
from storage.labeling.held_out import move_to_pool, move_to_test
from storage.projects.deletion import plan_deletion
from storage.projects.disk_use import disk_use
from storage.projects.projects import get_project
from storage.projects.setups import duplicate_setup

router = APIRouter(tags=["projects"])
ItemIds = Annotated[list[BodyId], Field(min_length=1, max_length=100_000)]


class NewDeletion(Received):
    """`confirm` must be the exact name of the project. Without `item_ids`, the entire project is deleted."""

    confirm: Annotated[str, Field(max_length=200)]
    item_ids: ItemIds | None = None


class DeletionPlan(Returned):
    project: str
    whole_project: bool
    items: int
    events: int
    rounds: int
    media_removed: int
    media_bytes: int
    media_shared: int
    linked_files: int


class NewName(Received):
    name: models.Name


class TestItems(Received):
    item_ids: ItemIds
    test: bool = True


class MovedItems(Returned):
    moved: int
    unchanged: int
    warnings: list[str]


class DiskUse(Returned):
    media_files: int
    media_bytes: int
    shared_bytes: int
    linked_files: int
    artifact_files: int
    artifact_bytes: int


@router.get("/projects/{project}/deletion")
def deletion_plan(project: Id) -> DeletionPlan:
    """Show what deleting the project would remove and keep. Nothing is changed."""
    get_project(resources.store(), project)
    return DeletionPlan.model_validate(plan_deletion(resources.store(), project))


@router.post("/projects/{project}/deletion", status_code=202)
def delete_project(project: Id, new: NewDeletion) -> models.Job:
    """Permanently delete the project, or some of its items, in a background job."""
    get_project(resources.store(), project)
    return shown_job(start_deletion(resources.store(), project, new.confirm, new.item_ids))


@router.post("/projects/{project}/duplicate", status_code=201)
def duplicate(project: Id, new: NewName) -> models.Project:
    """Create a project with the same classes, settings and guidelines, without items."""
    return shown(duplicate_setup(resources.store(), project, new.name))


@router.post("/projects/{project}/test-items", tags=["items"])
def move_test_items(project: Id, wanted: TestItems) -> MovedItems:
    """Move items to the test items or, with `test` false, back to the pool. The response may contain warnings."""
    move = move_to_test if wanted.test else move_to_pool
    done = move(resources.store(), project, wanted.item_ids)
    return MovedItems(moved=done.moved, unchanged=done.unchanged, warnings=list(done.warnings))


@router.get("/projects/{project}/disk")
def get_disk_use(project: Id) -> DiskUse:
    """The disk space of the project's media and arrays, in bytes."""
    get_project(resources.store(), project)
    return DiskUse.model_validate(disk_use(resources.store(), project))
