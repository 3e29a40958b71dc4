"""Endpoints for projects, their settings and their classes."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request

from app.web import resources
from app.web.api import models
from app.web.api.models import Id
from core.acquisition import catalog
from core.config import require
from storage.labeling.pool import Pool
from storage.projects import classes, projects, roles
from storage.projects.class_rows import ClassRow
from storage.projects.projects import ProjectRow, ProjectSettings

router = APIRouter(tags=["projects"])


@router.get("/me")
def me(request: Request) -> models.Me:
    """Describe the token of this request."""
    token = request.state.token
    return models.Me(token=token.name, role=token.role, annotator_id=token.annotator_id, annotator=token.annotator)


@router.get("/projects")
def list_projects(archived: bool = False) -> list[models.Project]:
    """List the projects that this token can see."""
    return [shown(row) for row in projects.list_projects(resources.store(), include_archived=archived)]


@router.post("/projects", status_code=201)
def create_project(new: models.NewProject) -> models.Project:
    """Create a project. With an identity provider, the token's person becomes its owner; otherwise it is open to
    everyone until it has members."""
    settings = changed_settings(ProjectSettings(), new.settings)
    store = resources.store()
    row = projects.create_project(store, new.name, new.kind, new.classes, settings=settings, guidelines=new.guidelines)
    return shown(row)


@router.get("/projects/{project}")
def get_project(project: Id) -> models.ProjectDetail:
    """Get a project with its counts."""
    store = resources.store()
    row = projects.get_project(store, project)
    role = roles.role_of(store, project)
    counts = models.Counts.model_validate(Pool(store, project).counts())
    return models.ProjectDetail(**shown(row).model_dump(), role=role or "", counts=counts)


@router.patch("/projects/{project}")
def change_project(project: Id, change: models.ProjectChange) -> models.Project:
    """Change the name, the guidelines or some settings."""
    store = resources.store()
    settings = None
    if change.settings is not None:
        settings = changed_settings(projects.get_project(store, project).settings, change.settings)
    row = projects.update_project(store, project, name=change.name, guidelines=change.guidelines, settings=settings)
    return shown(row)


@router.get("/projects/{project}/classes", tags=["classes"])
def list_classes(project: Id, inactive: bool = False) -> list[models.Class]:
    """List the classes in their order. With `inactive`, merged and retired classes are included."""
    projects.get_project(resources.store(), project)
    return [_class(row) for row in classes.list_classes(resources.store(), project, include_inactive=inactive)]


@router.post("/projects/{project}/classes", status_code=201, tags=["classes"])
def add_class(project: Id, new: models.NewClass, request: Request) -> models.Class:
    """Add a class."""
    return _class(classes.add_class(resources.store(), project, new.name, by=_annotator(request)))


@router.patch("/projects/{project}/classes/{class_id}", tags=["classes"])
def change_class(project: Id, class_id: Id, change: models.ClassChange, request: Request) -> models.Class:
    """Rename a class, or change its key or color."""
    store = resources.store()
    row = classes.style_class(store, project, class_id, key=change.key, color=change.color)
    if change.name is not None:
        row = classes.rename_class(store, project, class_id, change.name, by=_annotator(request))
    return _class(row)


@router.post("/projects/{project}/classes/{class_id}/merge", tags=["classes"])
def merge_class(project: Id, class_id: Id, merge: models.Merge, request: Request) -> models.Class:
    """Make all labels of the class count as labels of another class."""
    row = classes.merge_classes(resources.store(), project, class_id, merge.into, by=_annotator(request))
    return _class(row)


@router.post("/projects/{project}/classes/{class_id}/unmerge", tags=["classes"])
def unmerge_class(project: Id, class_id: Id, request: Request) -> models.Class:
    """Undo a merge."""
    return _class(classes.unmerge_class(resources.store(), project, class_id, by=_annotator(request)))


@router.post("/projects/{project}/classes/{class_id}/retire", tags=["classes"])
def retire_class(project: Id, class_id: Id, request: Request) -> models.Class:
    """Stop accepting new labels of the class. Its existing labels stay in history and exports."""
    return _class(classes.retire_class(resources.store(), project, class_id, by=_annotator(request)))


@router.post("/projects/{project}/classes/{class_id}/restore", tags=["classes"])
def restore_class(project: Id, class_id: Id, request: Request) -> models.Class:
    """Restore a retired class."""
    return _class(classes.restore_class(resources.store(), project, class_id, by=_annotator(request)))


def shown(row: ProjectRow) -> models.Project:
    return models.Project(**(dataclasses.asdict(row) | {"settings": dataclasses.asdict(row.settings)}))


def changed_settings(settings: ProjectSettings, change: models.Settings) -> ProjectSettings:
    """The settings with the fields of `change` that are set. Raises InvalidInput for an unknown strategy."""
    values: dict[str, Any] = change.model_dump(exclude_none=True)
    known, strategy = catalog.names(), values.get("strategy")
    require(
        strategy is None or strategy in known, f"There is no strategy {strategy!r}. Use one of: {', '.join(known)}."
    )
    return dataclasses.replace(settings, **values)


def _class(row: ClassRow) -> models.Class:
    return models.Class.model_validate(row)


def _annotator(request: Request) -> int:
    return int(request.state.token.annotator_id)
