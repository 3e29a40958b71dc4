"""Roles: what a person may do in a project, decided here and nowhere else.

Actor     who acts: an annotator and, for an API token, the upper limit of what the token may do. Pages and the API set
          it for everything they do (`acting_as`). Without an actor, the operator acts: the command line, a worker. The
          operator may do everything, because whoever can start these commands can also open the database file.
Role      viewer < annotator < editor < owner; each role includes the rights of the one before it.
Members   A project without members is open: everyone is its owner, as in all stores created before roles existed. A
          project with members, at least one of them an owner, is visible to its members only. With an identity
          provider, whoever creates a project is its first owner.

The functions of storage call `check` or `check_in` with an `Action`. docs/people.md has the table of actions and roles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import Connection, Select, delete, func, select

from core.errors import Conflict, Forbidden, InvalidInput, NotFound
from storage.database.access_schema import Membership
from storage.database.schema import Annotator, Project
from storage.database.store import Store, insert_for, now
from storage.projects import audit

Role = Literal["viewer", "annotator", "editor", "owner"]
Action = Literal["read", "label", "edit", "own"]
ROLES: tuple[Role, ...] = ("viewer", "annotator", "editor", "owner")
NEEDED: dict[Action, Role] = {"read": "viewer", "label": "annotator", "edit": "editor", "own": "owner"}


@dataclass(frozen=True, slots=True)
class Actor:
    annotator_id: int | None  # None: nobody has signed in; open projects only
    ceiling: Role = "owner"
    owns_new: bool = False  # people sign in with an identity provider: new projects belong to their creators


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    annotator_id: int
    name: str
    role: Role
    given_at: datetime


_acting: ContextVar[Actor | None] = ContextVar("winnow_actor", default=None)
_resolvers: list[Callable[[], Actor | None]] = []


@contextlib.contextmanager
def acting_as(actor: Actor | None) -> Iterator[None]:
    """Run everything in the block as this actor, including threads that inherit the context."""
    token = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(token)


def resolve_with(resolver: Callable[[], Actor | None]) -> None:
    """Find the actor with `resolver` where `acting_as` is not in effect (from the session of a page, for example)."""
    _resolvers[:] = [resolver]


def current_actor() -> Actor | None:
    """The actor in effect; None: the operator."""
    actor = _acting.get()
    return actor if actor is not None or not _resolvers else _resolvers[0]()


def role_in(connection: Connection, project_id: int, actor: Actor | None = None) -> Role | None:
    """The role of the actor (default: the current one) in a project; None when the project is closed to them."""
    actor = actor or current_actor()
    if actor is None:
        return "owner"
    query = select(Membership.annotator_id, Membership.role).where(Membership.project_id == project_id)
    members: dict[int, str] = dict(connection.execute(query).all())
    if not members:
        return actor.ceiling
    role = members.get(actor.annotator_id) if actor.annotator_id is not None else None
    return None if role is None else min(cast(Role, role), actor.ceiling, key=ROLES.index)


def role_of(store: Store, project_id: int) -> Role | None:
    """`role_in` of the current actor."""
    with store.read() as connection:
        return role_in(connection, project_id)


def check_in(connection: Connection, project_id: int, action: Action) -> None:
    """Raise Forbidden, or NotFound for a project that is closed to the actor, unless the action is allowed."""
    if current_actor() is None:
        return
    role = role_in(connection, project_id)
    if role is None:
        raise NotFound(f"There is no project {project_id}.")
    if ROLES.index(role) < ROLES.index(NEEDED[action]):
        raise Forbidden(_refusal(connection, project_id, role, action))


def refusal_in(connection: Connection, project_id: int, action: Action) -> str:
    """Why the action is not allowed; "" when it is."""
    try:
        check_in(connection, project_id, action)
    except (Forbidden, NotFound) as error:
        return str(error)
    return ""


def check(store: Store, project_id: int, action: Action) -> None:
    if current_actor() is not None:
        with store.read() as connection:
            check_in(connection, project_id, action)


def check_create() -> None:
    """Creating a project needs a person, or a token with the role editor or owner."""
    actor = current_actor()
    if actor is not None and ROLES.index(actor.ceiling) < ROLES.index("editor"):
        raise Forbidden(f"This token has the role {actor.ceiling}. Creating a project needs the role editor or owner.")


def own_new_project(connection: Connection, project_id: int) -> None:
    """Make the actor the owner of a project that was just created, if people sign in with an identity provider."""
    actor = current_actor()
    if actor is not None and actor.owns_new and actor.annotator_id is not None:
        _give(connection, project_id, actor.annotator_id, "owner")


def visible_projects(connection: Connection) -> set[int] | None:
    """The ids of the closed and open projects that the actor can see; None: all of them."""
    actor = current_actor()
    if actor is None:
        return None
    closed = select(Membership.project_id)
    mine = select(Membership.project_id).where(Membership.annotator_id == actor.annotator_id)
    query = select(Project.id).where(Project.id.not_in(closed) | Project.id.in_(mine))
    return set(connection.execute(query).scalars())


def list_members(store: Store, project_id: int) -> list[MemberRow]:
    """The members of a project, owners first; empty for an open project."""
    with store.read() as connection:
        check_in(connection, project_id, "read")
        rows = [MemberRow(**row._asdict()) for row in connection.execute(_members(project_id))]
    return sorted(rows, key=lambda row: (-ROLES.index(row.role), row.name))


def set_role(store: Store, project_id: int, annotator_id: int, role: Role | None) -> MemberRow | None:
    """Set the role of a member and return the member; None removes the member. The first member must be an owner, and
    the last owner keeps the role as long as there are other members."""
    if role is not None and role not in ROLES:
        raise InvalidInput(f"There is no role {role!r}. Use one of: {', '.join(ROLES)}.")
    with store.write() as connection:
        check_in(connection, project_id, "own")
        _require_known(connection, project_id, annotator_id)
        _give(connection, project_id, annotator_id, role)
        _require_owner(connection, project_id)
        found = connection.execute(_members(project_id).where(Membership.annotator_id == annotator_id)).one_or_none()
    return MemberRow(**found._asdict()) if found is not None else None


def _members(project_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(Membership.annotator_id, Annotator.name, Membership.role, Membership.given_at)
        .join(Annotator, Annotator.id == Membership.annotator_id)
        .where(Membership.project_id == project_id)
    )


def _give(connection: Connection, project_id: int, annotator_id: int, role: Role | None) -> None:
    key = {"project_id": project_id, "annotator_id": annotator_id}
    if role is None:
        which = (Membership.project_id == project_id, Membership.annotator_id == annotator_id)
        if not connection.execute(delete(Membership).where(*which)).rowcount:
            return
    else:
        values = {"role": role, "given_at": now()}
        statement = insert_for(connection, Membership).values(**key, **values)
        connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))
    detail = {"annotator": annotator_id, "role": role}
    audit.record(connection, audit.Entry("set_role", project_id, _actor_id(), detail))


def _actor_id() -> int | None:
    actor = current_actor()
    return None if actor is None else actor.annotator_id


def _require_known(connection: Connection, project_id: int, annotator_id: int) -> None:
    if connection.execute(select(Project.id).where(Project.id == project_id)).one_or_none() is None:
        raise NotFound(f"There is no project {project_id}.")
    if connection.execute(select(Annotator.id).where(Annotator.id == annotator_id)).one_or_none() is None:
        raise NotFound(f"There is no annotator {annotator_id}.")


def _require_owner(connection: Connection, project_id: int) -> None:
    query = select(Membership.role, func.count()).where(Membership.project_id == project_id).group_by(Membership.role)
    counts: dict[str, int] = dict(connection.execute(query).all())
    if counts and not counts.get("owner"):
        raise Conflict(
            f"The project would have {sum(counts.values())} members and no owner. Make someone an owner first. "
            "Without any member the project is open to everyone."
        )


def _refusal(connection: Connection, project_id: int, role: Role, action: Action) -> str:
    name = connection.execute(select(Project.name).where(Project.id == project_id)).scalar()
    return f"Your role in {name!r} is {role}. This needs the role {NEEDED[action]}. Ask an owner of the project."
