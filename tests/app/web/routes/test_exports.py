"""Finished exports: only with a session, only by generated names, only as files."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette

from app.web import resources, tickets
from app.web.access import SESSION_COOKIE
from app.web.routes.exports import export_folder, export_routes
from storage.projects.annotators import annotator_named
from tests.app.asgi_client import ask


@pytest.fixture
def server(page_store) -> Starlette:
    export_folder().mkdir(parents=True)
    (export_folder() / "birds-csv-0a1b2c3d.zip").write_bytes(b"PK content")
    (export_folder() / "secret.txt").write_text("not an export")
    return Starlette(routes=export_routes())


@pytest.fixture
def cookie(page_store) -> dict[str, str]:
    who = annotator_named(page_store, "Ana")
    return {"cookie": f"{SESSION_COOKIE}={tickets.issue(resources.key(), who.id, 60)}"}


def test_an_export_is_downloaded_as_a_file_by_someone_with_a_session(server, cookie):
    answer = ask(server, "GET", "/api/exports/birds-csv-0a1b2c3d.zip", None, cookie)
    assert (answer.status, answer.body) == (200, b"PK content")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == 'attachment; filename="birds-csv-0a1b2c3d.zip"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["cache-control"] == "no-store"


def test_without_a_session_there_is_nothing(server):
    """A download needs a session."""
    for headers in ({}, {"cookie": f"{SESSION_COOKIE}=made.up"}):
        answer = ask(server, "GET", "/api/exports/birds-csv-0a1b2c3d.zip", None, headers)
        assert answer.status == 401 and b"PK" not in answer.body


def test_other_names_are_not_found(server, cookie):
    """A name leads to an export of this folder or to 404, never to another file."""
    for name in ("secret.txt", "..", "../winnow.sqlite", "..%2fwinnow.sqlite", "none.zip", "A.zip", "a" * 99 + ".zip"):
        assert ask(server, "GET", f"/api/exports/{name}", None, cookie).status == 404, name
    assert ask(server, "POST", "/api/exports/birds-csv-0a1b2c3d.zip", None, cookie).status == 405
