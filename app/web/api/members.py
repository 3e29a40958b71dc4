"""Endpoints for the members of a project and their roles. A project without members is open to everyone."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter

from app.web import resources
from app.web.api import models
from app.web.api.models import Id, Received, Returned
from storage.projects import roles
from storage.projects.annotators import known_person
from storage.projects.projects import get_project
from storage.projects.roles import Role

router = APIRouter(tags=["projects"])


class Member(Returned):
    annotator_id: int
    name: str
    role: Role
    given_at: datetime


class NewMember(Received):
    """`person` is the name of someone who has signed in or labeled here before."""

    person: models.Name
    role: Role


@router.get("/projects/{project}/members")
def list_members(project: Id) -> list[Member]:
    """List the members with their roles, owners first. Empty for a project that is open to everyone."""
    get_project(resources.store(), project)
    return [Member.model_validate(row) for row in roles.list_members(resources.store(), project)]


@router.put("/projects/{project}/members")
def give_role(project: Id, new: NewMember) -> Member:
    """Give a person a role, or change it. The first member must be an owner; after that, only members can see the
    project."""
    store = resources.store()
    roles.check(store, project, "own")
    return Member.model_validate(roles.set_role(store, project, known_person(store, new.person).id, new.role))


@router.delete("/projects/{project}/members/{annotator}", status_code=204)
def remove_member(project: Id, annotator: Id) -> None:
    """Remove a member. The last owner cannot be removed before the other members. A project without members is open to
    everyone."""
    roles.set_role(resources.store(), project, annotator, None)
