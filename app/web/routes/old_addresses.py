"""Redirects for bookmarks and links: screen addresses of earlier versions, and `/label`, which is the start page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

RENAMED = {"/label": "/", "/learn": "/train", "/collect": "/data", "/deliver": "/export"}


def old_address_routes() -> list[Route]:
    return [Route(old, redirect, methods=["GET", "HEAD"]) for old in RENAMED]


def redirect(request: Request) -> RedirectResponse:
    """Redirect to the new address with the same query, such as `?project=3`."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(RENAMED[request.url.path] + query, status_code=308)
