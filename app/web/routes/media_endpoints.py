"""Endpoints that send the media of an item: they check the session, run in threads, and set headers and errors.

status  401   no session in this browser
        404   there is no such item in this project, or its file is missing or changed
        422   the file cannot be drawn
        503   too many drawings are requested at once
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.views.previews.pool import PreviewBusy, PreviewFailed
from app.web import resources, tickets
from app.web.access import SESSION_COOKIE
from core.errors import NotFound, WinnowError
from storage.labeling.item_rows import ItemRow
from storage.labeling.pool import Pool
from storage.projects.roles import Actor, acting_as

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, max-age=604800, immutable",
    "Content-Disposition": "inline",
    "Vary": "Cookie",
}
THREADS = anyio.CapacityLimiter(16)  # separate, so that requests that wait for a drawing do not delay labels
Answer = Callable[[Request, ItemRow, int], Response]


def media_endpoint(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint for paths with `{project:int}` and `{item:int}`. It calls `answer(request, item, annotator)` in a
    thread, with the rights of the annotator of the browser's session."""

    async def endpoint(request: Request) -> Response:
        return await anyio.to_thread.run_sync(_answered, answer, request, limiter=THREADS)

    return endpoint


def _answered(answer: Answer, request: Request) -> Response:
    ticket = tickets.redeem(resources.key(), request.cookies.get(SESSION_COOKIE))
    if ticket is None:
        return _error("Open Winnow in this browser first.", 401)
    with acting_as(Actor(ticket.annotator_id)):
        try:
            item = Pool(resources.store(), request.path_params["project"]).item(request.path_params["item"])
        except (NotFound, OverflowError):
            return not_found()
        try:
            return answer(request, item, ticket.annotator_id)
        except PreviewFailed as error:
            return _error(f"The file cannot be drawn. {error}", 422)
        except PreviewBusy as error:
            return _error(str(error), 503, {"Retry-After": "2"})
        except (WinnowError, OSError) as error:
            return _error(str(error), 404)


def not_found() -> Response:
    return _error("There is no such item here.", 404)


def _error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers=headers)
