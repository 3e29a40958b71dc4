"""Predictions that are requested through the API, for uploaded files or for items of the project.

Uploaded files are in one archive that the server wrote (`app.web.routes.uploads`); their names are never used as paths.
This module loads torch. It runs in the process of a job.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from app.jobs.predicting import Entry, predict_entries, prediction_table
from app.jobs.requests import PredictionRequest
from app.rounds.model import open_round_model
from core.errors import InvalidInput, NotFound
from core.types import Report
from storage.database.store import Store
from storage.exporting.models.predictions import check_predictions_target
from storage.labeling.pool import Pool
from storage.media import shared as shared_media
from storage.projects import roles


def run_prediction(store: Store, request: PredictionRequest, report: Report) -> dict[str, Any]:
    """Write the table of predictions. Returns counts and the first unreadable files."""
    roles.check(store, request.project_id, "label")
    target = check_predictions_target(Path(request.target), overwrite=False)
    found = open_round_model(store, request.project_id, request.round)
    of_items = request.upload is None
    table = prediction_table(
        found, target, {"job": target.name}, all_probabilities=request.all_probabilities, of_items=of_items
    )
    table.begin(fresh=True)
    if request.upload is None:
        entries, total = item_entries(store, request)
        trained = np.isin(request.item_ids, found.snapshot.item_ids[found.snapshot.labeled])
        return predict_entries(found, table, entries, total, report) | {"trained_on": int(trained.sum())}
    with zipfile.ZipFile(request.upload) as archive:
        entries, total = uploaded_entries(archive), len(archive.infolist())
        return predict_entries(found, table, entries, total, report)


def uploaded_entries(archive: zipfile.ZipFile) -> Iterator[Entry]:
    """Yield the files of an upload under their original names. Threads can call `read`; the reads are serialized."""
    turn = Lock()

    def read(info: zipfile.ZipInfo) -> bytes:
        with turn:
            return archive.read(info)

    for info in archive.infolist():
        yield Entry(info.filename, partial(read, info))


def item_entries(store: Store, request: PredictionRequest) -> tuple[Iterator[Entry], int]:
    """Return the items in the order of the request, and their number."""
    wanted = list(dict.fromkeys(request.item_ids))
    rows = {row.id: row for row in Pool(store, request.project_id).items_by_id(wanted)}
    if len(rows) < len(wanted):
        raise NotFound(f"{len(wanted) - len(rows)} of {len(wanted)} items are not in this project.")
    if not wanted:
        raise InvalidInput("Name at least one item.")
    read = shared_media.reader(store, request.project_id)
    entries = (Entry(rows[one].name, partial(read, rows[one].sha256), item_id=one) for one in wanted)
    return entries, len(wanted)
