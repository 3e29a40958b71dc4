"""Downloads of finished exports, for requests with a session."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from app.web import resources, tickets
from app.web.access import SESSION_COOKIE

NAME = re.compile(r"[a-z0-9-]{1,80}\.zip\Z")
HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "Cache-Control": "no-store"}


def export_routes() -> list[Route]:
    return [Route("/api/exports/{name}", download, methods=["GET", "HEAD"])]


def export_folder() -> Path:
    return resources.locations().home / "exports"


def download(request: Request) -> Response:
    if tickets.redeem(resources.key(), request.cookies.get(SESSION_COOKIE)) is None:
        return JSONResponse({"error": "Open Winnow in this browser first."}, status_code=401, headers=HEADERS)
    name = request.path_params["name"]
    path = export_folder() / name
    if not NAME.fullmatch(name) or not path.is_file():
        return JSONResponse({"error": "There is no such export."}, status_code=404, headers=HEADERS)
    return FileResponse(path, media_type="application/zip", filename=name, headers=HEADERS)
