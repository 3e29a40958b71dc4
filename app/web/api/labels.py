"""Endpoints that store labels and lease the next items to label, with the same functions as the Label screen."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.live.current import current_predictions
from app.web import resources
from app.web.api import models
from app.web.api.items import shown_items
from app.web.api.models import Id
from app.web.routes.api import apply_received, fair_share, waiting_items
from app.web.routes.cards import suggestion
from storage.labeling.labeled_items import items_to_hide
from storage.labeling.pool import LabelInput, Pool
from storage.projects.classes import list_classes
from storage.projects.projects import get_project

router = APIRouter(tags=["labels"])


@router.post("/projects/{project}/labels")
def add_labels(project: Id, new: models.NewEvents, request: Request) -> models.AppliedEvents:
    """Store events of the token's annotator. Each event has its own result: an event that cannot be stored is refused
    with a reason, and the others are stored. An event whose `uuid` is already stored is accepted but not stored
    again."""
    get_project(resources.store(), project)
    received = [one.model_dump() for one in new.events]
    annotator = request.state.token.annotator_id
    applied = apply_received(project, annotator, received, lambda fields: LabelInput(**fields))
    return models.AppliedEvents(applied=[models.Applied.model_validate(one) for one in applied])


@router.post("/projects/{project}/next")
def next_to_label(project: Id, ask: models.Ask, request: Request) -> models.Leased:
    """Lease the next items to label: first the picks of the newest round, then the rest in a stable random order."""
    store, annotator = resources.store(), request.state.token.annotator_id
    row, pool = get_project(store, project), Pool(store, project)
    limit = min(ask.limit, fair_share(ask.limit, waiting_items(pool)))
    rows = pool.next_to_label(annotator=annotator, holder=ask.holder, limit=limit)
    found, known = current_predictions(store, project), list_classes(store, project, include_inactive=True)
    leased = []
    hidden = set(items_to_hide(store, project, annotator).tolist())
    for item, shown in zip(rows, shown_items(project, rows, request), strict=True):
        blind = item.id in hidden
        visible = suggestion(item.id, annotator, row.settings, found, known, blind=blind)["state"] == "shown"
        best = found.most_probable(item.id, known) if found is not None and visible else []
        predictions = [models.Probability.model_validate(one) for one in best]
        leased.append(models.LeasedItem(item=shown, predictions=predictions))
    return models.Leased(items=leased, lease_seconds=row.settings.lease_seconds)


@router.post("/projects/{project}/release", status_code=204)
def release(project: Id, holder: models.Holder, request: Request) -> None:
    """Release leased items."""
    get_project(resources.store(), project)
    pool = Pool(resources.store(), project)
    pool.release(annotator=request.state.token.annotator_id, holder=holder.holder)
