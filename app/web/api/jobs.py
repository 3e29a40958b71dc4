"""Endpoints for the background jobs of a project: imports, exports, models and predictions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import FileResponse, Response

from app.jobs import jobs
from app.jobs.jobs import Job, JobView
from app.web import resources
from app.web.api import models
from app.web.api.models import Id
from app.web.routes.exports import HEADERS, start_export
from core.errors import Conflict, NotFound
from storage.exporting.rows import ExportOptions
from storage.projects import roles
from storage.projects.projects import get_project

router = APIRouter(tags=["jobs"])
JobId = Annotated[str, Path(pattern="^[0-9a-f]{12}$")]
ZIP: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get("/projects/{project}/jobs")
def list_jobs(project: Id) -> list[models.Job]:
    """The imports, exports and predictions of a project, newest first."""
    get_project(resources.store(), project)
    return [_shown(view) for view in jobs.list_jobs(resources.locations().home, project)]


@router.get("/projects/{project}/jobs/{job}")
def get_job(project: Id, job: JobId) -> models.Job:
    """Get a job with its progress or, after it has ended, its result."""
    return _shown(find_job(project, job))


@router.post("/projects/{project}/jobs/{job}/cancel")
def cancel_job(project: Id, job: JobId) -> models.Job:
    """Cancel a job. Finished work is kept."""
    find_job(project, job)
    roles.check(resources.store(), project, "edit")
    jobs.cancel(resources.locations().home, job)
    return _shown(find_job(project, job))


@router.post("/projects/{project}/exports", status_code=202, tags=["exports"])
def export(project: Id, new: models.NewExport) -> models.Job:
    """Start an export. When the job has finished, download its file."""
    row = get_project(resources.store(), project)
    return shown_job(start_export(row, ExportOptions(**new.model_dump())))


@router.get("/projects/{project}/exports/{job}/file", response_class=Response, responses=ZIP, tags=["exports"])
def export_file(project: Id, job: JobId, request: Request) -> Response:
    """The zip file of a finished export of labels or of a model."""
    view = find_job(project, job)
    if not view.job.makes.endswith(".zip"):
        raise NotFound(f"The job {job} does not produce a file.")
    if view.status != "finished":
        raise Conflict(f"The export is {view.status}; its file exists only after it has finished. {view.error}".strip())
    return FileResponse(view.job.makes, media_type="application/zip", filename=f"{job}.zip", headers=HEADERS)


def shown_job(job: Job) -> models.Job:
    view = jobs.find_job(resources.locations().home, job.id)
    assert view is not None
    return _shown(view)


def find_job(project: int, job: str) -> JobView:
    """The current state of a job of this project. Raises NotFound if there is none."""
    get_project(resources.store(), project)
    view = jobs.find_job(resources.locations().home, job)
    if view is None or view.job.project_id != project:
        raise NotFound(f"There is no job {job} in this project.")
    return view


def _shown(view: JobView) -> models.Job:
    return models.Job(
        id=view.job.id,
        title=view.job.title,
        status=view.status,
        done=view.done,
        total=view.total,
        note=view.note,
        error=view.error,
        result=view.result,
    )
