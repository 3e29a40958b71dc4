"""The endpoint that adds embeddings which a program computed, as an encoder."""

from __future__ import annotations

import shutil
import uuid
from typing import Annotated

from fastapi import APIRouter, Form, UploadFile

from app.jobs import jobs
from app.jobs.requests import EmbeddingsRequest
from app.web import resources
from app.web.api import models
from app.web.api.jobs import shown_job
from app.web.api.models import Id
from app.web.routes import uploads
from core.config import require
from core.limits import limits_from
from storage.projects import roles
from storage.projects.projects import get_project

router = APIRouter(tags=["items"])
EncoderName = Annotated[str, Form(min_length=1, max_length=64, description="A name that no encoder has yet.")]


@router.post("/projects/{project}/embeddings", status_code=202)
def add_embeddings(project: Id, file: UploadFile, name: EncoderName) -> models.Job:
    """Add the vectors of a Parquet file as an encoder, in a background job. The file has one row per item, a column
    `sha256` or `file_name`, and a column `embedding`. The result of the job contains the number of items with a
    vector."""
    store = resources.store()
    get_project(store, project)
    roles.check(store, project, "edit")
    most = limits_from().max_manifest_bytes
    require((file.size or 0) <= most, f"The file has {file.size or 0:,} bytes; the limit is {most:,}.")
    target = uploads.upload_folder() / f"{uuid.uuid4().hex}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as stream:
        shutil.copyfileobj(file.file, stream, 1 << 20)
    request = EmbeddingsRequest(project_id=project, source=str(target), name=name)
    home = resources.locations().home
    return shown_job(jobs.start(home, f"Embeddings {name}", request, project, uses=target))
