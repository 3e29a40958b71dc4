"""API tokens: each belongs to an annotator, has a role, can be revoked, and is stored as its SHA-256 only.

A token is 32 random bytes, so a plain hash is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, insert, select, update

from core.config import require
from core.errors import NotFound
from storage.database.access_schema import ApiToken
from storage.database.schema import Annotator
from storage.database.store import Store, now
from storage.database.strings import named
from storage.projects import audit
from storage.projects.annotators import annotator_named
from storage.projects.roles import ROLES, Role

PREFIX = "winnow_"
USE_NOTED_EVERY = timedelta(minutes=1)  # a write for each request would cost more than the request


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    id: int
    name: str
    annotator_id: int
    annotator: str
    role: Role
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


def create_token(store: Store, name: str, role: Role, *, person: str | None = None) -> tuple[TokenRow, str]:
    """A new token and its text, which cannot be shown again. Labels given with it are stored under `person`, by default
    the token's own name."""
    require(role in ROLES, f"There is no role {role!r}. Use one of: {', '.join(ROLES)}.")
    name = named(name.strip(), "The token's name", 200)
    annotator = annotator_named(store, person or name)
    text = PREFIX + secrets.token_urlsafe(32)
    values = {"annotator_id": annotator.id, "name": name, "role": role, "sha256": _digest(text), "created_at": now()}
    with store.write() as connection:
        token_id = connection.execute(insert(ApiToken).values(values).returning(ApiToken.id)).scalar_one()
        audit.record(connection, audit.Entry("create_token", None, annotator.id, {"token": token_id, "role": role}))
    return get_token(store, token_id), text


def list_tokens(store: Store, include_revoked: bool = False) -> list[TokenRow]:
    query = _query().order_by(ApiToken.id)
    if not include_revoked:
        query = query.where(ApiToken.revoked_at.is_(None))
    with store.read() as connection:
        return [TokenRow(**row._asdict()) for row in connection.execute(query)]


def get_token(store: Store, token_id: int) -> TokenRow:
    with store.read() as connection:
        row = connection.execute(_query().where(ApiToken.id == token_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no token {token_id}. `python -m app token list` shows them.")
    return TokenRow(**row._asdict())


def revoke_token(store: Store, token_id: int) -> TokenRow:
    """Refuse the token from now on. No effect on one that is already revoked."""
    get_token(store, token_id)
    which = (ApiToken.id == token_id, ApiToken.revoked_at.is_(None))
    with store.write() as connection:
        if connection.execute(update(ApiToken).where(*which).values(revoked_at=now())).rowcount:
            audit.record(connection, audit.Entry("revoke_token", None, None, {"token": token_id}))
    return get_token(store, token_id)


def redeem(store: Store, text: str) -> TokenRow | None:
    """The token with this text; None if it is unknown or revoked, or if its annotator was removed. Records its use."""
    query = _query().where(
        ApiToken.sha256 == _digest(text), ApiToken.revoked_at.is_(None), Annotator.removed_at.is_(None)
    )
    with store.read() as connection:
        row = connection.execute(query).one_or_none()
    if row is None:
        return None
    token = TokenRow(**row._asdict())
    if token.last_used_at is None or now() - token.last_used_at > USE_NOTED_EVERY:
        with store.write() as connection:
            connection.execute(update(ApiToken).where(ApiToken.id == token.id).values(last_used_at=now()))
    return token


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _query() -> Select[*tuple[Any, ...]]:
    columns = (ApiToken.id, ApiToken.name, ApiToken.annotator_id, Annotator.name.label("annotator"), ApiToken.role)
    times = (ApiToken.created_at, ApiToken.last_used_at, ApiToken.revoked_at)
    return select(*columns, *times).join(Annotator, Annotator.id == ApiToken.annotator_id)
