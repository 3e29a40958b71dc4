"""Routes of the widgets. They receive labels and return cards and tiles, independently of Streamlit's reruns.

Every request has the tab's ticket in the header `X-Winnow-Ticket`, which identifies the annotator. Another site can
neither read the ticket nor send the header, so forged requests are refused. When `labels` responds, the events are on
disk.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.views.text import visible
from app.web import resources, tickets
from app.web.access import SESSION_COOKIE, is_https, set_cookie
from app.web.routes import cards, fields, items
from app.web.routes.fields import MAX_INTEGER, Body, encodable
from core.errors import Forbidden, InvalidInput, NotFound, StoreUnusable, WinnowError
from storage.labeling.events import checked
from storage.labeling.pool import Applied, ItemFilter, LabelInput, Pool
from storage.projects.annotators import get_annotator
from storage.projects.projects import get_project
from storage.projects.roles import Actor, acting_as

MAX_BODY = 16 * 2**20
MAX_CARDS = 60
MAX_EVENTS = 20_000
LOGGED_REFUSALS = 20  # refused events that one log line lists
LOG = logging.getLogger(__name__)
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
Answer = dict[str, Any]


def api_routes() -> list[Route]:
    """The routes of the widgets."""
    project = "/api/projects/{project:int}"
    return [
        Route("/api/session", _route(None), methods=["POST"]),
        Route(f"{project}/labels", _route(take_labels), methods=["POST"]),
        Route(f"{project}/cards", _route(give_cards), methods=["POST"]),
        Route(f"{project}/state", _route(give_state), methods=["POST"]),
        Route(f"{project}/recent", _route(give_recent), methods=["POST"]),
        Route(f"{project}/release", _route(release), methods=["POST"]),
        Route(f"{project}/tiles", _route(items.give_tiles), methods=["POST"]),
        Route(f"{project}/items/choices", _route(items.give_choices), methods=["POST"]),
        Route(f"{project}/items/act", _route(items.act), methods=["POST"]),
    ]


def _route(handle: Callable[[int, int, Body], Answer] | None) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that checks the ticket, parses the body and runs `handle(project, annotator, body)` in a thread.

    A WinnowError becomes a response with its message.
    """

    async def endpoint(request: Request) -> Response:
        ticket = tickets.redeem(resources.key(), request.headers.get("x-winnow-ticket"))
        if ticket is None:
            return _error(401, "You are signed out. Open Winnow again. Labels that were not sent yet are kept.")
        if handle is None:
            return _open_session(request, ticket)
        project = request.path_params["project"]
        try:
            body = await _body(request)
            if project >= MAX_INTEGER:
                raise NotFound("There is no such project.")
            with acting_as(Actor(ticket.annotator_id)):
                answer = await run_in_threadpool(handle, project, ticket.annotator_id, body)
        except Forbidden as error:
            return _error(403, str(error))
        except NotFound as error:
            return _error(404, str(error))
        except StoreUnusable as error:  # such as a full disk or a restore; browsers keep their labels and retry
            return _error(503, str(error))
        except WinnowError as error:
            return _error(422, str(error))
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    return endpoint


def _open_session(request: Request, ticket: tickets.Ticket) -> Response:
    """Set the session cookie. A cookie of the same annotator is kept for half of its lifetime, because browsers cache
    media per cookie and would load everything again after a change."""
    response = JSONResponse({}, headers={"Cache-Control": "no-store"})
    known = tickets.redeem(resources.key(), request.cookies.get(SESSION_COOKIE))
    half = (time.time() + ticket.expires) / 2
    if known is not None and known.annotator_id == ticket.annotator_id and half < known.expires <= ticket.expires:
        return response
    secure, seconds = is_https(request), int(resources.LOCAL_LIFETIME)
    set_cookie(response, SESSION_COOKIE, request.headers["x-winnow-ticket"], secure=secure, seconds=seconds)
    return response


async def _body(request: Request) -> Body:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise InvalidInput(f"The request has more than {MAX_BODY:,} bytes.")
    try:
        body = json.loads(bytes(data) or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInput("The request is not JSON.") from error
    if not isinstance(body, dict):
        raise InvalidInput("The request must be a JSON object.")
    return body


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status, headers={"Cache-Control": "no-store"})


def take_labels(project: int, annotator: int, body: Body) -> Answer:
    """Store events. Each has its own result; an event that cannot be stored is refused with a reason."""
    get_project(resources.store(), project)
    given = body.get("events")
    if not isinstance(given, list) or len(given) > MAX_EVENTS:
        raise InvalidInput(f"Send a list of at most {MAX_EVENTS:,} events.")
    results = apply_received(project, annotator, given, lambda one: _with_hidden_suggestion(project, one))
    state = cards.work_state(resources.store(), project, annotator)
    return {"applied": [{"uuid": v.uuid, "accepted": v.accepted, "reason": v.reason} for v in results], "state": state}


def _with_hidden_suggestion(project: int, given: Any) -> LabelInput:
    """Parse an event. If its suggestion was hidden, its class and confidence are read from the round, because the card
    does not contain them."""
    event = label_input(given)
    round_id = fields.integer(given, "suggestion_round")
    if event.suggestion != "hidden" or event.suggested_class_id is not None or round_id is None:
        return event
    best = cards.hidden_suggestion(resources.store(), project, event.item_id, round_id)
    if best is None:
        return event
    return replace(event, suggested_class_id=best.class_id, suggested_confidence=best.probability)


def apply_received(
    project: int, annotator: int, received: Sequence[Any], parse: Callable[[Any], LabelInput]
) -> list[Applied]:
    """Store the events that can be stored. Returns one result per event, those of invalid events first."""
    events, results = [], []
    for one in received:
        try:
            events.append(checked(parse(one)))
        except InvalidInput as error:
            name = one.get("uuid") if isinstance(one, dict) else None
            results.append(Applied(encodable(str(name)), False, str(error)))
    results.extend(Pool(resources.store(), project).apply(events, annotator=annotator))
    _log_refusals(project, annotator, results, {event.uuid: event for event in events})
    return results


def _log_refusals(project: int, annotator: int, results: list[Applied], events: Mapping[str, LabelInput]) -> None:
    """Log the ids of refused events and the reasons in one line, without names and other quoted text."""
    refused = [one for one in results if not one.accepted]
    if not refused:
        return
    parts = []
    for one in refused[:LOGGED_REFUSALS]:
        event = events.get(one.uuid)
        ids = f" {event.kind} item {event.item_id} class {event.class_id}" if event is not None else ""
        parts.append(visible(f"{one.uuid[:36]}{ids}: {_QUOTED.sub('…', one.reason)}"))
    more = f"; {len(refused) - LOGGED_REFUSALS:,} more" if len(refused) > LOGGED_REFUSALS else ""
    values = (len(refused), len(results), project, annotator, "; ".join(parts) + more)
    LOG.warning("refused %d of %d events in project %d of annotator %d: %s", *values)


def label_input(given: Any) -> LabelInput:
    """Validate a received event, field by field."""
    if not isinstance(given, dict):
        raise InvalidInput("An event must be an object.")
    at = fields.text(given, "at") or None
    try:
        moment = datetime.fromisoformat(at) if at else None
    except ValueError as error:
        raise InvalidInput(f"{at!r} is not a time.") from error
    return LabelInput(
        uuid=fields.text(given, "uuid"),
        item_id=fields.integer(given, "item_id", required=True),  # type: ignore[arg-type]
        kind=fields.text(given, "kind"),  # type: ignore[arg-type]
        class_id=fields.integer(given, "class_id"),
        undoes=fields.text(given, "undoes") or None,
        suggestion=fields.text(given, "suggestion") or "none",
        suggested_class_id=fields.integer(given, "suggested_class_id"),
        suggested_confidence=fields.number(given, "suggested_confidence"),
        seconds=fields.number(given, "seconds"),
        note=fields.text(given, "note"),
        at=moment,
    )


def give_cards(project: int, annotator: int, body: Body) -> Answer:
    """Lease the next cards to a tab. With `items`, return the cards of those items with the annotator's own labels."""
    store = resources.store()
    row, pool = get_project(store, project), Pool(store, project)
    who = get_annotator(store, annotator)
    if who.removed_at is not None:
        raise InvalidInput(f"{who.name} was removed. Continue under another name.")
    if "items" in body:
        wanted = fields.integers(body, "items")[:MAX_CARDS]
        made = cards.cards(store, row, annotator, pool.items_by_id(wanted))
        return {"cards": [cards.with_own_state(pool, card, annotator) for card in made]}
    holder, limit = fields.text(body, "holder")[:64], max(1, min(fields.integer(body, "limit") or 1, MAX_CARDS))
    if body.get("previous"):
        pool.release(annotator=annotator, holder=fields.text(body, "previous")[:64])
    if body.get("release"):
        pool.release(annotator=annotator, holder=holder)
    served = pool.next_to_label(annotator=annotator, holder=holder, limit=fair_share(limit, waiting_items(pool)))
    return {"cards": cards.cards(store, row, annotator, served), "state": cards.work_state(store, project, annotator)}


def waiting_items(pool: Pool) -> int:
    return pool.count_items(ItemFilter(state="waiting"))


def fair_share(wanted: int, waiting: int) -> int:
    """The number of cards that one tab may lease. Near the end of a pool it is half of the waiting items, so that other
    tabs get some, too."""
    return max(3, min(wanted, waiting // 2 + 1))


def give_state(project: int, annotator: int, body: Body) -> Answer:
    return cards.work_state(resources.store(), project, annotator)


def give_recent(project: int, annotator: int, body: Body) -> Answer:
    """The annotator's newest actions that can be undone, newest first."""
    get_project(resources.store(), project)
    limit = max(1, min(fields.integer(body, "limit") or 50, 500))
    events = Pool(resources.store(), project).undoable(annotator, limit)
    names = ("uuid", "item_id", "kind", "class_id")
    return {"actions": [{name: getattr(event, name) for name in names} for event in events]}


def release(project: int, annotator: int, body: Body) -> Answer:
    get_project(resources.store(), project)
    Pool(resources.store(), project).release(annotator=annotator, holder=fields.text(body, "holder")[:64])
    return {}
