"""Endpoints for rounds: request, follow, cancel, picks with reasons, and predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray

from app.rounds import requests as round_requests
from app.views.cards.pick_table import TELLING
from app.views.predictions import RoundPredictions, predictions_of
from app.web import resources
from app.web.api import models
from app.web.api.models import Cursor, Id, Limit
from core.errors import NotFound
from storage.exporting.reasons import picks_of_round
from storage.labeling.labeled_items import items_to_hide
from storage.projects.classes import list_classes
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog, RoundRow

router = APIRouter(tags=["rounds"])
PICKED = ("item_id", "name", "label", "pick_order", "pick_score")


@router.get("/projects/{project}/rounds")
def list_rounds(project: Id) -> list[models.Round]:
    """List the rounds of a project, newest first."""
    return [_round(row) for row in _log(project).list()]


@router.post("/projects/{project}/rounds", status_code=202)
def request_round(project: Id, request: Request) -> models.RoundDetail:
    """Request the next round, which a worker starts. If a round waits or runs already, it is returned instead."""
    store = resources.store()
    get_project(store, project)
    row = round_requests.request_round(store, project, by=request.state.token.annotator_id)
    return _detail(project, row.id)


@router.get("/projects/{project}/rounds/{round_id}")
def get_round(project: Id, round_id: Id) -> models.RoundDetail:
    """Get a round with its progress."""
    _log(project).get(round_id)
    return _detail(project, round_id)


@router.post("/projects/{project}/rounds/{round_id}/cancel")
def cancel_round(project: Id, round_id: Id) -> models.RoundDetail:
    """Cancel a round. The previous model and picks are kept."""
    get_project(resources.store(), project)
    round_requests.cancel_round(resources.store(), project, round_id)
    return _detail(project, round_id)


@router.get("/projects/{project}/rounds/{round_id}/picks")
def picks(project: Id, round_id: Id, request: Request) -> list[models.Pick]:
    """The items that the round picked, in order, each with its reason.

    In a blind project, picks that the caller may still label have no label and no prediction.
    """
    _log(project).get(round_id)
    found = picks_of_round(resources.store(), project, round_id)
    hidden = set(_hidden(project, request).tolist())
    for pick in found:
        pick.update(dict.fromkeys(TELLING) if pick["item_id"] in hidden else {})
    return [
        models.Pick(
            item_id=pick["item_id"],
            name=pick["name"],
            label=pick["label"],
            order=pick["pick_order"],
            score=pick["pick_score"],
            reason={name: value for name, value in pick.items() if name not in PICKED and value is not None},
        )
        for pick in found
    ]


@router.get("/projects/{project}/rounds/{round_id}/predictions", tags=["predictions"])
def predictions(
    project: Id, round_id: Id, request: Request, cursor: Cursor = 0, limit: Limit = 100
) -> models.PredictionPage:
    """The class probabilities of a finished round, in the order of item ids, one page at a time.

    Items whose label the model was trained with have no prediction. In a blind project, items that the caller may still
    label are omitted as well.
    """
    row = _log(project).get(round_id)
    found = predictions_of(resources.store(), row) if row.status == "finished" else None
    if found is None:
        raise NotFound(f"Round {row.number} is {row.status} and has stored no predictions.")
    hidden = np.isin(found.item_ids, _hidden(project, request))
    return _page(project, found, found.order[~(found.seen | hidden)[found.order]], cursor, limit)


@router.get("/projects/{project}/predictions", tags=["predictions"])
def newest_predictions(project: Id, request: Request, cursor: Cursor = 0, limit: Limit = 100) -> models.PredictionPage:
    """The class probabilities of the newest finished round."""
    latest = _log(project).latest("finished")
    if latest is None:
        raise NotFound("No round of this project has finished yet. Request one: POST rounds.")
    return predictions(project, latest.id, request, cursor, limit)


def _hidden(project: int, request: Request) -> NDArray[np.int64]:
    return items_to_hide(resources.store(), project, request.state.token.annotator_id)


def _page(
    project: int, found: RoundPredictions, order: NDArray[np.int64], cursor: int, limit: int
) -> models.PredictionPage:
    """The page after the item `cursor`. `order` contains the rows to show, sorted by item id."""
    known = list_classes(resources.store(), project, include_inactive=True)
    active = [row for row in known if row.active]
    start = int(np.searchsorted(found.item_ids[order], cursor, side="right"))
    rows = order[start : start + limit]
    part = replace(found, item_ids=found.item_ids[rows], probabilities=found.probabilities[rows], embeddings=None)
    shares = np.nan_to_num(part.class_probabilities(known).astype(np.float64))
    made = [
        models.Prediction(
            item_id=int(item_id),
            class_id=active[int(share.argmax())].id,
            confidence=float(share.max()),
            probabilities=[round(float(one), 6) for one in share],
        )
        for item_id, share in zip(part.item_ids, shares, strict=True)
        if len(active)
    ]
    more = start + limit < len(order)
    return models.PredictionPage(
        round_id=found.round.id,
        round_number=found.round.number,
        classes=[models.Class.model_validate(row) for row in active],
        predictions=made,
        next_cursor=int(part.item_ids[-1]) if more else None,
    )


def _log(project: int) -> RoundLog:
    get_project(resources.store(), project)
    return RoundLog(resources.store(), project)


def _round(row: RoundRow) -> models.Round:
    return models.Round.model_validate(row)


def _detail(project: int, round_id: int) -> models.RoundDetail:
    seen = round_requests.view(resources.store(), project, round_id)
    assert seen is not None
    progress = models.RoundProgress.model_validate(seen)
    return models.RoundDetail(**_round(seen.round).model_dump(), progress=progress)
