"""Downloads of finished exports, for requests with a session."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from app.jobs import jobs
from app.jobs.jobs import Job
from app.jobs.requests import ExportRequest, ModelRequest
from app.web import resources, tickets
from app.web.access import SESSION_COOKIE
from core.errors import WinnowError
from storage.exporting.rows import ExportOptions
from storage.projects import roles
from storage.projects.projects import ProjectRow
from storage.projects.roles import Actor, acting_as

MODEL_TITLE = "Model"  # the titles of jobs that export models begin with it
NAME = re.compile(r"[a-z0-9-]{1,80}\.zip\Z")
HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "Cache-Control": "no-store"}


def export_routes() -> list[Route]:
    return [Route("/api/exports/{name}", download, methods=["GET", "HEAD"])]


def export_folder() -> Path:
    return resources.locations().home / "exports"


def slug(name: str) -> str:
    """The project name in a form that is valid in file names. The manifest contains the exact name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "project"


def start_export(project: ProjectRow, options: ExportOptions) -> Job:
    """Start an export as a background job. Its file can be downloaded after the job has finished."""
    roles.check(resources.store(), project.id, "edit")
    target = export_folder() / f"{slug(project.name)}-{options.format}-{secrets.token_hex(4)}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    request = ExportRequest(project_id=project.id, target=str(target), options=options)
    return jobs.start(resources.locations().home, f"Export as {options.format}", request, project.id, makes=target)


def start_model_export(project: ProjectRow, number: int) -> Job:
    """Start the export of the model of a round as a background job."""
    roles.check(resources.store(), project.id, "edit")
    target = export_folder() / f"{slug(project.name)}-round-{number}-{secrets.token_hex(4)}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    request = ModelRequest(project_id=project.id, target=str(target), round=str(number))
    title = f"{MODEL_TITLE} of round {number}"
    return jobs.start(resources.locations().home, title, request, project.id, makes=target)


def may_read(path: Path, actor: Actor) -> bool:
    """Whether the actor can see the exported project. If the job of the export no longer exists, everyone can."""
    made_by = [view.job for view in jobs.list_jobs(resources.locations().home) if view.job.makes == str(path)]
    try:
        with acting_as(actor):
            for job in made_by:
                if job.project_id is not None:
                    roles.check(resources.store(), job.project_id, "read")
    except WinnowError:
        return False
    return True


def download(request: Request) -> Response:
    """Send the file of a finished export. Requires a session of a person who can see its project."""
    ticket = tickets.redeem(resources.key(), request.cookies.get(SESSION_COOKIE))
    if ticket is None:
        return JSONResponse({"error": "Open Winnow in this browser first."}, status_code=401, headers=HEADERS)
    name = request.path_params["name"]
    path = export_folder() / name
    if not NAME.fullmatch(name) or not path.is_file() or not may_read(path, Actor(ticket.annotator_id)):
        return JSONResponse({"error": "There is no such export."}, status_code=404, headers=HEADERS)
    return FileResponse(path, media_type="application/zip", filename=name, headers=HEADERS)
