"""Endpoints for items: list, upload, media and history."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request, UploadFile
from starlette.responses import Response

from app.jobs import jobs
from app.jobs.requests import ImportRequest
from app.views.item_names import ItemNames
from app.views.text import count
from app.web import resources
from app.web.api import models
from app.web.api.jobs import shown_job
from app.web.api.models import Id
from app.web.routes import media, uploads
from core.config import require
from core.limits import limits_from
from storage.database.strings import storable
from storage.importing.run import ImportOptions
from storage.labeling.item_rows import ItemRow
from storage.labeling.labeled_items import items_to_hide
from storage.labeling.pool import ItemFilter, Pool
from storage.media.types import EXTENSIONS
from storage.media.windows import LONGEST, LONGEST_HOP, SHORTEST, SHORTEST_HOP, WindowOptions
from storage.projects import class_rows, roles
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, get_project

router = APIRouter(tags=["items"])
_CONTENT = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in sorted(EXTENSIONS)}
MEDIA: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file", "content": _CONTENT},
    206: {"description": "The requested range", "content": _CONTENT},
    416: {"description": "The range is outside of the file"},
}


@router.get("/projects/{project}/items")
def list_items(project: Id, wanted: Annotated[models.ItemQuery, Query()], request: Request) -> models.ItemPage:
    """List items in the order of their ids, one page at a time.

    In a blind project, items that the caller may still label have no label and are not found by class.
    """
    pool = _pool(project)
    which = ItemFilter(
        state=wanted.state,
        class_id=wanted.class_id,
        annotator=wanted.annotator_id,
        search=storable(wanted.search, "The search"),
        round_id=wanted.round_id,
        after=wanted.cursor,
    )
    rows = pool.items(which, limit=wanted.limit + 1)
    last = rows[wanted.limit - 1].id if len(rows) > wanted.limit else None
    shown = shown_items(project, rows[: wanted.limit], request)
    if wanted.class_id is not None:
        shown = [item for item in shown if item.class_id is not None]
    return models.ItemPage(items=shown, next_cursor=last)


@router.get("/projects/{project}/items/{item}")
def get_item(project: Id, item: Id, request: Request) -> models.Item:
    """One item."""
    return shown_items(project, [_pool(project).item(item)], request)[0]


@router.get("/projects/{project}/items/{item}/history")
def item_history(project: Id, item: Id, request: Request) -> list[models.Event]:
    """All events of an item, oldest first. In a blind project, only the caller's own until they have labeled it."""
    pool = _pool(project)
    pool.item(item)
    me = request.state.token.annotator_id
    blind = item in items_to_hide(resources.store(), project, me)
    events = [event for event in pool.history(item) if not blind or event.annotator_id == me]
    return [models.Event.model_validate(event) for event in events]


@router.get("/projects/{project}/items/{item}/media", response_class=Response, responses=MEDIA)
def item_media(project: Id, item: Id, request: Request) -> Response:
    """The bytes of an item as imported. Range requests are supported."""
    return media.file_response(_pool(project).item(item), request)


@router.post("/projects/{project}/items", status_code=202)
def add_items(
    project: Id,
    files: list[UploadFile],
    labels: Annotated[Literal["ignore", "given", "hidden"], Form()] = "ignore",
    window_seconds: Annotated[float | None, Form(ge=SHORTEST, le=LONGEST, allow_inf_nan=False)] = None,
    hop_seconds: Annotated[float | None, Form(ge=SHORTEST_HOP, le=LONGEST_HOP, allow_inf_nan=False)] = None,
) -> models.Job:
    """Upload up to 1,000 files and import them in a background job. Files that are in the project are not added again.

    With `labels` given or hidden, the folder in a file's name is its class (`dog/bark.wav`). With `window_seconds`,
    longer recordings are cut into items of this length, one every `hop_seconds` (default: the same length).
    """
    store = resources.store()
    row = get_project(store, project)
    roles.check(store, project, "edit")
    windows = _windows(row, window_seconds, hop_seconds)
    names = [file.filename or "" for file in files]
    require(
        len(set(names)) == len(names),
        f"{count(len(names) - len(set(names)), 'file has', 'files have')} the same name as another file.",
    )
    upload, limits = uuid.uuid4().hex, limits_from()
    most = limits.max_file_bytes if windows is None else limits.max_recording_bytes
    for file, name in zip(files, names, strict=True):
        require((file.size or 0) <= most, f"{name[:80]} has {file.size or 0:,} bytes; the limit is {most:,}.")
        uploads.add_file(upload, file.file, name)
    source = uploads.finish_upload(upload)
    options = ImportOptions(labels=labels, classes="add", skip_problems=True, limits=limits, windows=windows)
    request = ImportRequest(source=str(source), project=row.name, options=options)
    home = resources.locations().home
    return shown_job(jobs.start(home, f"Import into {row.name}", request, row.id, uses=source))


def shown_items(project: int, rows: list[ItemRow], request: Request) -> list[models.Item]:
    """The items with the names of their labels. Labels that the caller may not see yet are omitted."""
    store = resources.store()
    known = list_classes(store, project, include_inactive=True)
    names, called = class_rows.effective_names(known), ItemNames(row.name for row in known)
    hidden = set(items_to_hide(store, project, request.state.token.annotator_id).tolist())
    shown = []
    for row in rows:
        class_id = None if row.id in hidden else row.class_id
        label = None if class_id is None else names.get(class_id)
        update = {"class_id": class_id, "label": label, "shown_name": called.shown_name(row.id, row.name)}
        shown.append(models.Item.model_validate(row).model_copy(update=update))
    return shown


def _windows(project: ProjectRow, seconds: float | None, hop: float | None) -> WindowOptions | None:
    require(seconds is not None or hop is None, "hop_seconds needs window_seconds, the length of a window.")
    require(seconds is None or project.kind == "audio", "Only recordings have windows; this project has pictures.")
    return None if seconds is None else WindowOptions(seconds=seconds, hop=hop or 0.0)


def _pool(project: int) -> Pool:
    get_project(resources.store(), project)
    return Pool(resources.store(), project)
