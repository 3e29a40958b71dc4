"""Requests to the API in this process, with a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from app.web import resources
from app.web.access import Gate
from app.web.api.application import api_mount
from storage.database.store import Store
from storage.projects.roles import Role
from storage.projects.tokens import create_token
from tests.app.asgi_client import Answer, ask

BOTH_DATABASES = pytest.mark.parametrize(
    "page_store", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)


def api_app() -> Starlette:
    return Starlette(routes=[api_mount()], middleware=[Middleware(Gate, rules=resources.rules)])


def caller(app: Starlette, store: Store, role: Role = "owner", person: str = "Ana") -> Callable[..., Answer]:
    """`call(method, path, body, **headers)` with a new token of this person."""
    _, text = create_token(store, f"token of {person}", role, person=person)

    def call(method: str, path: str, body: Any = None, **headers: str) -> Answer:
        given = {"authorization": f"Bearer {text}"} | {k.replace("_", "-"): v for k, v in headers.items()}
        if body is not None and "content-type" not in given:
            given["content-type"] = "application/json"
        return ask(app, method, f"/api/v1{path}", body, given)

    return call
