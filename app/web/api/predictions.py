"""Endpoints that export the model of a round and predict uploaded files or items, in background jobs."""

from __future__ import annotations

import hashlib
import json
import uuid
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import Field

from app.jobs import jobs
from app.jobs.jobs import Job
from app.jobs.requests import PredictionRequest
from app.views.text import count
from app.web import resources
from app.web.api import models
from app.web.api.jobs import JobId, find_job, shown_job
from app.web.api.models import BodyId, Cursor, Id, Limit, Received, Returned
from app.web.routes import exports, uploads
from core.config import require
from core.errors import Conflict, Forbidden, NotFound
from core.limits import limits_from
from storage.labeling.item_rows import item_ids_by_hash
from storage.labeling.labeled_items import items_to_hide
from storage.projects import roles
from storage.projects.projects import get_project
from storage.rounds.model_rounds import find_model_round

router = APIRouter(tags=["predictions"])
TITLE = "Predictions"  # the titles of these jobs begin with it
MOST_FILES = 1_000
MOST_ITEMS = 10_000
MOST_RUNNING = 2  # concurrent exports of models and predictions per project; each runs a process that loads the network
RoundName = Annotated[
    str, Field(min_length=1, max_length=200, description="Number or name of a round; default: the newest model.")
]


class NewModel(Received):
    """`round` is the number or name of a round. The default is the newest round with a model."""

    round: RoundName | None = None


class ItemsToPredict(Received):
    item_ids: Annotated[list[BodyId], Field(min_length=1, max_length=MOST_ITEMS)]
    round: RoundName | None = None
    all_probabilities: bool = False


class FilePrediction(Returned):
    file: str = Field(description="The name of the uploaded file or of the item.")
    item_id: int | None = Field(description="The id of the item; null for uploaded files.")
    class_name: str | None = Field(description="The most probable class, by its name in the round; null with an error.")
    confidence: float | None
    entropy: float | None
    nearest_item_id: int | None = Field(description="The nearest labeled item in the last layer of the network.")
    nearest_class: str | None
    nearest_distance: float | None
    probabilities: dict[str, float] | None = Field(description="Class name to probability, if requested.")
    round: int
    error: str | None = Field(description="Why the file could not be read.")


class FilePredictionPage(Returned):
    predictions: list[FilePrediction]
    next_cursor: int | None


@router.post("/projects/{project}/models", status_code=202, tags=["exports"])
def export_model(project: Id, new: NewModel) -> models.Job:
    """Export the model of a round in a background job: ONNX, safetensors, preprocessing, and a script that needs
    neither Winnow nor torch. After the job has finished, download its file: `exports/{job}/file`."""
    store = resources.store()
    row = get_project(store, project)
    roles.check(store, project, "edit")
    number = find_model_round(store, project, new.round).number
    _check_running(project)
    return shown_job(exports.start_model_export(row, number))


@router.post("/projects/{project}/predictions/files", status_code=202)
def predict_files(
    project: Id,
    files: list[UploadFile],
    request: Request,
    round: Annotated[str, Form(max_length=200)] = "",
    all_probabilities: Annotated[bool, Form()] = False,
) -> models.Job:
    """Predict up to 1,000 uploaded files with the model of a round, in a background job. They do not become items.

    If a file has the same bytes as an item whose prediction is hidden from the caller, the entire request is refused.
    """
    number = _check(project, round or None)
    require(
        len(files) <= MOST_FILES,
        f"{count(len(files), 'file was', 'files were')} sent; the limit is {MOST_FILES:,} for one request.",
    )
    _check_copies(project, files, request)
    upload, most = uuid.uuid4().hex, limits_from().max_file_bytes
    for file in files:
        name = file.filename or ""
        require((file.size or 0) <= most, f"{name[:80]} has {file.size or 0:,} bytes; the limit is {most:,}.")
        uploads.add_file(upload, file.file, name)
    source = uploads.finish_upload(upload)
    wanted = {"upload": str(source), "all_probabilities": all_probabilities}
    return shown_job(_start(project, number, f"of {count(len(files), 'file')}", wanted, uses=source))


@router.post("/projects/{project}/predictions/items", status_code=202)
def predict_items(project: Id, wanted: ItemsToPredict, request: Request) -> models.Job:
    """Predict items of the project from their files with the model of a round, including items imported after it.

    The model may have been trained on some of these items; the result of the job counts them as `trained_on`. The
    request is refused if the prediction of an item is hidden from the caller.
    """
    number = _check(project, wanted.round)
    hidden = _hidden(project, request).intersection(wanted.item_ids)
    if hidden:
        raise Forbidden(
            f"{len(hidden):,} of {len(wanted.item_ids):,} items have no visible predictions until you have labeled "
            f"them, such as item {min(hidden)}. Leave them out."
        )
    asked = {"item_ids": tuple(wanted.item_ids), "all_probabilities": wanted.all_probabilities}
    return shown_job(_start(project, number, f"of {count(len(wanted.item_ids), 'item')}", asked))


@router.get("/projects/{project}/jobs/{job}/predictions")
def predicted_rows(
    project: Id, job: JobId, request: Request, cursor: Cursor = 0, limit: Limit = 100
) -> FilePredictionPage:
    """The predictions of a finished job, in the order of the request, one page at a time."""
    view = find_job(project, job)
    if not view.job.title.startswith(TITLE):
        raise NotFound(f"The job {job} does not produce predictions.")
    if view.status != "finished":
        raise Conflict(f"The job is {view.status}; its predictions exist after it has finished. {view.error}".strip())
    hidden = _hidden(project, request)
    with open(view.job.makes, encoding="utf-8") as lines:
        page = list(islice(lines, cursor, cursor + limit + 1))
    rows = [_shown(json.loads(line), hidden) for line in page[:limit]]
    shown = [row for row in rows if row.item_id is None or row.item_id not in hidden]
    return FilePredictionPage(predictions=shown, next_cursor=cursor + limit if len(page) > limit else None)


def _check(project: int, wanted: str | None) -> int:
    """The number of the round to predict with. Raises an error if the caller may not predict."""
    store = resources.store()
    get_project(store, project)
    roles.check(store, project, "label")
    number = find_model_round(store, project, wanted).number
    _check_running(project)
    return number


def _check_running(project: int) -> None:
    views = jobs.list_jobs(resources.locations().home, project)
    titles = (TITLE, exports.MODEL_TITLE)
    running = [view for view in views if view.status == "running" and view.job.title.startswith(titles)]
    if len(running) >= MOST_RUNNING:
        raise Conflict(
            f"{len(running)} jobs of this project are exporting models or predicting, which is the limit. Wait "
            f"for one of them, such as {running[-1].job.id}, or cancel it."
        )


def _start(project: int, number: int, what: str, wanted: dict[str, Any], uses: Path | None = None) -> Job:
    target = exports.export_folder() / f"predictions-{uuid.uuid4().hex}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    request = PredictionRequest(project_id=project, target=str(target), round=str(number), **wanted)
    return jobs.start(resources.locations().home, f"{TITLE} {what}", request, project, uses=uses, makes=target)


def _hidden(project: int, request: Request) -> set[int]:
    found: list[int] = items_to_hide(resources.store(), project, request.state.token.annotator_id).tolist()
    return set(found)


def _check_copies(project: int, files: list[UploadFile], request: Request) -> None:
    """Refuse files that are copies of items which the caller must label without seeing their predictions."""
    hidden = _hidden(project, request)
    if not hidden:
        return
    names = {_digest(file.file): file.filename or "" for file in files}
    copies = item_ids_by_hash(resources.store(), project, list(names))
    refused = sorted(names[sha256] for sha256, item_id in copies.items() if item_id in hidden)
    if refused:
        raise Forbidden(
            f"{len(refused):,} of {len(files):,} files are copies of items that have no visible predictions until you "
            f"have labeled them, such as {refused[0][:80]}. Leave them out."
        )


def _digest(stream: BinaryIO) -> str:
    """The SHA-256 of a stream. The stream is rewound afterwards."""
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    stream.seek(0)
    return digest.hexdigest()


def _shown(row: dict[str, Any], hidden: set[int]) -> FilePrediction:
    prefix = "p_"
    shares = {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
    near: dict[str, Any] = {} if row["nearest_item_id"] in hidden else row
    return FilePrediction(
        file=row["file"],
        item_id=row.get("item_id"),
        class_name=row["class"],
        confidence=row["confidence"],
        entropy=row["entropy"],
        nearest_item_id=near.get("nearest_item_id"),
        nearest_class=near.get("nearest_class"),
        nearest_distance=near.get("nearest_distance"),
        probabilities=shares if shares and row["class"] is not None else None,
        round=row["round"],
        error=row["error"],
    )
