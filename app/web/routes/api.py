"""Routes of the widgets: they receive labels and return cards and tiles, independently of Streamlit's reruns.

Every request carries the tab's ticket in the header `X-Winnow-Ticket`. It identifies the annotator. A foreign page can
neither read the ticket nor send the header, so forged requests are refused. When `labels` responds, the events are on
disk.
"""

from __future__ import annotations

import json
import logging
import re
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
from app.web.routes import cards, tiles
from core.errors import Forbidden, InvalidInput, NotFound, StoreUnusable, WinnowError
from storage.labeling.events import checked
from storage.labeling.pool import Applied, ItemFilter, LabelInput, Pool
from storage.projects.annotators import get_annotator
from storage.projects.projects import get_project
from storage.projects.roles import Actor, acting_as

MAX_BODY = 16 * 2**20
MAX_CARDS = 60
MAX_EVENTS = 20_000
MAX_INTEGER = 2**62
LOGGED_REFUSALS = 20  # in one line
LOG = logging.getLogger(__name__)
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
Body = Mapping[str, Any]
Answer = dict[str, Any]


def api_routes() -> list[Route]:
    project = "/api/projects/{project:int}"
    return [
        Route("/api/session", _route(None), methods=["POST"]),
        Route(f"{project}/labels", _route(take_labels), methods=["POST"]),
        Route(f"{project}/cards", _route(give_cards), methods=["POST"]),
        Route(f"{project}/state", _route(give_state), methods=["POST"]),
        Route(f"{project}/recent", _route(give_recent), methods=["POST"]),
        Route(f"{project}/release", _route(release), methods=["POST"]),
        Route(f"{project}/tiles", _route(give_tiles), methods=["POST"]),
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
            return _open_session(request)
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
        except StoreUnusable as error:  # such as a full disk or a restore: browsers keep their labels and send again
            return _error(503, str(error))
        except WinnowError as error:
            return _error(422, str(error))
        return JSONResponse(answer, headers={"Cache-Control": "no-store"})

    return endpoint


def _open_session(request: Request) -> Response:
    response = JSONResponse({}, headers={"Cache-Control": "no-store"})
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
    """Apply events; each gets a result. An event that cannot be stored is refused by itself, with a reason."""
    get_project(resources.store(), project)
    given = body.get("events")
    if not isinstance(given, list) or len(given) > MAX_EVENTS:
        raise InvalidInput(f"Send a list of at most {MAX_EVENTS:,} events.")
    results = apply_received(project, annotator, given, lambda one: _with_hidden_suggestion(project, one))
    state = cards.work_state(resources.store(), project, annotator)
    return {"applied": [{"uuid": v.uuid, "accepted": v.accepted, "reason": v.reason} for v in results], "state": state}


def _with_hidden_suggestion(project: int, given: Any) -> LabelInput:
    """The event; a card does not know the suggestion that it hid, so its class and confidence are looked up."""
    event = label_input(given)
    round_id = _integer(given, "suggestion_round")
    if event.suggestion != "hidden" or event.suggested_class_id is not None or round_id is None:
        return event
    best = cards.hidden_suggestion(resources.store(), project, event.item_id, round_id)
    if best is None:
        return event
    return replace(event, suggested_class_id=best.class_id, suggested_confidence=best.probability)


def apply_received(
    project: int, annotator: int, received: Sequence[Any], parse: Callable[[Any], LabelInput]
) -> list[Applied]:
    """Apply the events that can be stored; one result each, those of unusable events first."""
    events, results = [], []
    for one in received:
        try:
            events.append(checked(parse(one)))
        except InvalidInput as error:
            name = one.get("uuid") if isinstance(one, dict) else None
            results.append(Applied(_encodable(str(name)), False, str(error)))
    results.extend(Pool(resources.store(), project).apply(events, annotator=annotator))
    _log_refusals(project, annotator, results, {event.uuid: event for event in events})
    return results


def _log_refusals(project: int, annotator: int, results: list[Applied], events: Mapping[str, LabelInput]) -> None:
    """One line with the ids of the refused events and the reasons, without names and other quoted text."""
    refused = [one for one in results if not one.accepted]
    if not refused:
        return
    parts = []
    for one in refused[:LOGGED_REFUSALS]:
        event = events.get(one.uuid)
        ids = f" {event.kind} item {event.item_id} class {event.class_id}" if event is not None else ""
        parts.append(visible(f"{one.uuid[:36]}{ids}: {_QUOTED.sub('…', one.reason)}"))
    more = f"; {len(refused) - LOGGED_REFUSALS:,} more" if len(refused) > LOGGED_REFUSALS else ""
    told = (len(refused), len(results), project, annotator, "; ".join(parts) + more)
    LOG.warning("refused %d of %d events in project %d of annotator %d: %s", *told)


def _encodable(text: str) -> str:
    """The text with lone surrogates escaped, so that a response can contain it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def label_input(given: Any) -> LabelInput:
    """A received event, validated field by field."""
    if not isinstance(given, dict):
        raise InvalidInput("An event must be an object.")
    at = _text(given, "at") or None
    try:
        moment = datetime.fromisoformat(at) if at else None
    except ValueError as error:
        raise InvalidInput(f"{at!r} is not a time.") from error
    return LabelInput(
        uuid=_text(given, "uuid"),
        item_id=_integer(given, "item_id", required=True),  # type: ignore[arg-type]
        kind=_text(given, "kind"),  # type: ignore[arg-type]
        class_id=_integer(given, "class_id"),
        undoes=_text(given, "undoes") or None,
        suggestion=_text(given, "suggestion") or "none",
        suggested_class_id=_integer(given, "suggested_class_id"),
        suggested_confidence=_number(given, "suggested_confidence"),
        seconds=_number(given, "seconds"),
        note=_text(given, "note"),
        at=moment,
    )


def _text(given: Body, name: str) -> str:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} must be text.")
    if value and ("\x00" in value or _encodable(value) != value):
        raise InvalidInput(f"{name} contains a character that cannot be stored.")
    return value or ""


def _integer(given: Body, name: str, *, required: bool = False) -> int | None:
    value = given.get(name)
    if value is None and not required:
        return None
    if not _is_integer(value):
        raise InvalidInput(f"{name} must be a whole number.")
    return int(value)  # type: ignore[arg-type]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER


def _integers(given: Body, name: str) -> list[int]:
    values = given.get(name)
    if not isinstance(values, list) or not all(_is_integer(value) for value in values):
        raise InvalidInput(f"{name} must be a list of whole numbers.")
    return values


def _number(given: Body, name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if not (isinstance(value, float) or _is_integer(value)):
        raise InvalidInput(f"{name} must be a number.")
    return float(value)


def give_cards(project: int, annotator: int, body: Body) -> Answer:
    """The next cards for a tab, leased to it; with `items`, the cards of those items with the annotator's own state."""
    store = resources.store()
    row, pool = get_project(store, project), Pool(store, project)
    who = get_annotator(store, annotator)
    if who.removed_at is not None:
        raise InvalidInput(f"{who.name} was removed. Continue under another name.")
    if "items" in body:
        wanted = _integers(body, "items")[:MAX_CARDS]
        made = cards.cards(store, row, annotator, pool.items_by_id(wanted))
        return {"cards": [cards.with_own_state(pool, card, annotator) for card in made]}
    holder, limit = _text(body, "holder")[:64], max(1, min(_integer(body, "limit") or 1, MAX_CARDS))
    if body.get("previous"):
        pool.release(annotator=annotator, holder=_text(body, "previous")[:64])
    if body.get("release"):
        pool.release(annotator=annotator, holder=holder)
    items = pool.next_to_label(annotator=annotator, holder=holder, limit=fair_share(limit, waiting_items(pool)))
    return {"cards": cards.cards(store, row, annotator, items), "state": cards.work_state(store, project, annotator)}


def waiting_items(pool: Pool) -> int:
    return pool.count_items(ItemFilter(state="waiting"))


def fair_share(wanted: int, waiting: int) -> int:
    """How many cards one tab may hold; near the end of a pool, half of the waiting items, so that others get some."""
    return max(3, min(wanted, waiting // 2 + 1))


def give_state(project: int, annotator: int, body: Body) -> Answer:
    return cards.work_state(resources.store(), project, annotator)


def give_recent(project: int, annotator: int, body: Body) -> Answer:
    """The annotator's newest actions that can be undone, newest first."""
    get_project(resources.store(), project)
    limit = max(1, min(_integer(body, "limit") or 50, 500))
    events = Pool(resources.store(), project).undoable(annotator, limit)
    names = ("uuid", "item_id", "kind", "class_id")
    return {"actions": [{name: getattr(event, name) for name in names} for event in events]}


def release(project: int, annotator: int, body: Body) -> Answer:
    get_project(resources.store(), project)
    Pool(resources.store(), project).release(annotator=annotator, holder=_text(body, "holder")[:64])
    return {}


def give_tiles(project: int, annotator: int, body: Body) -> Answer:
    wanted = None if body.get("items") is None else tuple(_integers(body, "items"))
    query = tiles.TileQuery(
        class_id=_integer(body, "class_id"),
        order="unsure" if body.get("order") == "unsure" else "sure",
        offset=max(0, _integer(body, "offset") or 0),
        limit=max(1, min(_integer(body, "limit") or 60, 240)),
        items=wanted,
    )
    found = tiles.tiles(resources.store(), project, query)
    return found | {"state": cards.work_state(resources.store(), project, annotator)}
