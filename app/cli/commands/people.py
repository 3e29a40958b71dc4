"""Commands for annotators, API tokens, roles and the audit log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.options import Json
from app.cli.output import print_note, show
from app.cli.projects import find_project, open_store

if TYPE_CHECKING:
    from storage.projects.tokens import TokenRow

RoleName = Literal["viewer", "annotator", "editor", "owner"]
tokens = typer.Typer(help="Tokens for programs that use the API: new, list, revoke.", no_args_is_help=True)


@tokens.command("new")
def new_token(
    name: Annotated[str, typer.Option(help="What the token is for, such as ci.")],
    role: Annotated[RoleName, typer.Option(help="The highest role of the token, in any project.")] = "annotator",
    person: Annotated[
        str | None, typer.Option(help="The annotator of the token's labels; default: one with the token's name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a token and print it. It is stored as a hash and cannot be shown again."""
    from storage.projects.tokens import create_token

    with open_store() as store:
        row, text = create_token(store, name, role, person=person)
    print_note(
        f"Token {row.id} ({row.name}, {row.role}) labels as {row.annotator!r}. Save it now: it is not shown again."
    )
    show({**_plain(row), "token": text}, as_json, text)


@tokens.command("list")
def list_tokens(
    revoked: Annotated[bool, typer.Option("--revoked", help="Include revoked tokens.")] = False,
    as_json: Json = False,
) -> None:
    """List the tokens with their roles and when they were last used."""
    from storage.projects.tokens import list_tokens as listed

    with open_store() as store:
        rows = listed(store, include_revoked=revoked)
    lines = [f"{row.id:>4}  {row.name}  ({row.role}, labels as {row.annotator!r}, {_use(row)})" for row in rows]
    show([_plain(row) for row in rows], as_json, "\n".join(lines) or "There are no tokens.")


@tokens.command("revoke")
def revoke(token: Annotated[int, typer.Argument(help="Number of the token.")], as_json: Json = False) -> None:
    """Revoke a token. Requests with it are refused from now on."""
    from storage.projects.tokens import revoke_token

    with open_store() as store:
        row = revoke_token(store, token)
    show(_plain(row), as_json, f"Token {row.id} ({row.name}) is revoked.")


def role(
    project: Annotated[str, typer.Argument(help="Name or id of the project.")],
    person: Annotated[str | None, typer.Argument(help="Name of the annotator; default: list the members.")] = None,
    role_: Annotated[
        Literal["viewer", "annotator", "editor", "owner", "none"] | None,
        typer.Argument(metavar="ROLE", help="viewer, annotator, editor or owner; none removes the person."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the members of a project, or give someone a role. A project without members is open to everyone."""
    from core.config import require
    from storage.projects.annotators import annotator_named, list_annotators
    from storage.projects.roles import list_members, set_role

    with open_store() as store:
        found = find_project(store, project)
        if person is not None:
            require(role_ is not None, "Name the role as well: viewer, annotator, editor, owner, or none.")
            new = person.strip() not in {row.name for row in list_annotators(store, include_removed=True)}
            who = annotator_named(store, person)
            if new:
                print_note(
                    f"{who.name!r} is a new name. Accounts of an identity provider get roles after their first sign-in."
                )
            set_role(store, found.id, who.id, None if role_ == "none" else role_)
        rows = list_members(store, found.id)
    members = [{"annotator": row.name, "role": row.role} for row in rows]
    lines = [f"{row.role:>9}  {row.name}" for row in rows]
    show(members, as_json, "\n".join(lines) or f"The project {found.name!r} has no members: everyone is an owner.")


def people(
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Refuse further labels of this annotator.")] = None,
    restore: Annotated[str | None, typer.Option(metavar="NAME", help="Let a removed annotator label again.")] = None,
    as_json: Json = False,
) -> None:
    """List the annotators, remove one, or restore a removed one. Their labels always stay."""
    from core.errors import NotFound
    from storage.projects.annotators import list_annotators, remove_annotator, restore_annotator

    with open_store() as store:
        for name, change in ((remove, remove_annotator), (restore, restore_annotator)):
            if name is not None:
                found = [row for row in list_annotators(store, include_removed=True) if row.name == name]
                if not found:
                    raise NotFound(f"There is no annotator called {name!r}. List them with: python -m app people")
                change(store, found[0].id)
        rows = list_annotators(store, include_removed=True)
    plain = [{"id": row.id, "name": row.name, "removed": row.removed_at is not None} for row in rows]
    lines = [f"{row.id:>4}  {row.name}{' (removed)' if row.removed_at else ''}" for row in rows]
    show(plain, as_json, "\n".join(lines) or "There are no annotators yet.")


def audit(
    project: Annotated[str | None, typer.Argument(help="Name or id of a project; default: all.")] = None,
    limit: Annotated[int, typer.Option(help="Number of entries, newest first.")] = 100,
    as_json: Json = False,
) -> None:
    """Show who changed access and what was deleted, newest first."""
    from storage.projects.annotators import list_annotators
    from storage.projects.audit import list_entries

    with open_store() as store:
        rows = list_entries(store, find_project(store, project).id if project else None, limit)
        names = {row.id: row.name for row in list_annotators(store, include_removed=True)}
    plain = [{**asdict(row), "at": row.at.isoformat(), "by": names.get(row.annotator_id or 0, "")} for row in rows]
    lines = [f"{one['at'][:19]}  {one['kind']}  {one['by'] or 'command line'}  {one['detail']}" for one in plain]
    show(plain, as_json, "\n".join(lines) or "There are no entries.")


def _plain(row: TokenRow) -> dict[str, Any]:
    times = ("created_at", "last_used_at", "revoked_at")
    return {name: value.isoformat() if name in times and value else value for name, value in asdict(row).items()}


def _use(row: TokenRow) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "never used" if row.last_used_at is None else f"last used {row.last_used_at:%Y-%m-%d %H:%M} UTC"
