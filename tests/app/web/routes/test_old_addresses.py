"""Addresses of renamed screens lead to the new ones."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette

from app.web.routes.old_addresses import old_address_routes
from tests.app.asgi_client import ask


@pytest.mark.parametrize(
    ("old", "new"), [("learn", "train"), ("collect", "data"), ("deliver", "export"), ("label", "")]
)
def test_an_old_address_redirects_to_the_new_one_with_its_query(old, new):
    server = Starlette(routes=old_address_routes())
    for method in ("GET", "HEAD"):
        answer = ask(server, method, f"http://127.0.0.1/{old}?project=3&round=2")
        assert (answer.status, answer.headers["location"]) == (308, f"/{new}?project=3&round=2")
    assert ask(server, "GET", f"http://127.0.0.1/{old}").headers["location"] == f"/{new}"
    assert ask(server, "GET", f"http://127.0.0.1/{new}").status == 404  # Streamlit serves the screens
