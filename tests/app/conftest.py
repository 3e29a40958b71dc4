"""The shared resources of the page process on a fresh store, and the routes as one app."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware

from app.web import resources, tickets
from app.web.access import SESSION_COOKIE, Gate
from app.web.routes.api import api_routes
from app.web.routes.media import media_routes
from app.web.routes.recordings import recording_routes
from storage.database.store import Store
from storage.projects.annotators import annotator_named
from tests.app.asgi_client import Answer, ask
from tests.app.worker_processes import Crew, crew_in
from tests.postgres_server import empty_tables

CACHED = (
    resources.locations,
    resources.store,
    resources.key,
    resources.rules,
    resources.sign_in,
    resources.preview_pool,
    resources.import_roots,
    resources.store_check,
)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Worker processes, ended with the test."""
    with crew_in(tmp_path) as crew:
        yield crew


@pytest.fixture
def page_store(request: pytest.FixtureRequest, sqlite_home, monkeypatch) -> Iterator[Store]:
    """`resources` on a store in a temporary folder, as in a page server on loopback.

    `BOTH_DATABASES` of `tests.app.web.api.callers` as a mark of a test or a module runs it on PostgreSQL too."""
    monkeypatch.setenv("WINNOW_HOME", str(sqlite_home))
    for name in ("WINNOW_HOST", "WINNOW_TOKEN", "WINNOW_DATABASE_URL", "WINNOW_ALLOWED_HOSTS", "WINNOW_IMPORT_ROOTS"):
        monkeypatch.delenv(name, raising=False)
    on_postgres = getattr(request, "param", "sqlite") == "postgresql"
    if on_postgres:
        shared = request.getfixturevalue("shared_postgres_url")
        # Caches of this process use the address as key, and ids start at 1 in every test: each has its own address.
        monkeypatch.setenv("WINNOW_DATABASE_URL", f"{shared}&application_name=test-{uuid.uuid4().hex}")
    for cached in CACHED:
        cached.cache_clear()
    opened = resources.store()
    if on_postgres:
        empty_tables(opened)
    yield opened
    resources.preview_pool().shutdown()
    opened.close()
    for cached in CACHED:
        cached.cache_clear()


@pytest.fixture
def routes(page_store) -> Starlette:
    made = [*api_routes(), *media_routes(), *recording_routes()]
    return Starlette(routes=made, middleware=[Middleware(Gate, rules=resources.rules)])


@pytest.fixture
def post(routes, page_store) -> Callable[..., Answer]:
    """`post(path, body, person="Ana")`: a request with that person's ticket."""

    def send(path: str, body: Any = None, person: str = "Ana", **headers: str) -> Answer:
        who = annotator_named(page_store, person)
        ticket = {"x-winnow-ticket": tickets.issue(resources.key(), who.id, 60)}
        return ask(routes, "POST", path, {} if body is None else body, ticket | headers)

    return send


@pytest.fixture
def get(routes, page_store) -> Callable[..., Answer]:
    """`get(path)` with the session cookie of a known annotator."""

    def fetch(path: str, **headers: str) -> Answer:
        who = annotator_named(page_store, "Ana")
        cookie = {"cookie": f"{SESSION_COOKIE}={tickets.issue(resources.key(), who.id, 60)}"}
        return ask(routes, "GET", path, None, cookie | {k.replace("_", "-"): v for k, v in headers.items()})

    return fetch
