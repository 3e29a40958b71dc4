"""The API, `/api/v1`, for programs with a token. The routes for the browser are in `app.web.routes`.

FastAPI validates requests against the models and generates the OpenAPI description. Every endpoint calls the same
functions as the screens, which check roles. Endpoints are synchronous functions, so each call runs in a thread.
"""

from __future__ import annotations

import logging
import secrets

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount

from app.web.api import (
    embeddings,
    items,
    jobs,
    labels,
    lifecycle,
    measuring,
    members,
    models,
    predictions,
    projects,
    rounds,
)
from app.web.api.docs_page import docs_page
from app.web.api.gate import PREFIX, ApiGate, error
from core.errors import Cancelled, Conflict, Forbidden, InvalidInput, NotFound, StoreUnusable, WinnowError
from core.version import VERSION

log = logging.getLogger("winnow.api")
DESCRIPTION = (
    "Label, follow rounds and export from programs. Every request needs a token in `Authorization: Bearer …`; create "
    "one with `python -m app token new`. Lists are paginated: pass `next_cursor` as `cursor`."
)
STATUS: tuple[tuple[type[WinnowError], int, str], ...] = (
    (NotFound, 404, "not_found"),
    (Forbidden, 403, "forbidden"),
    (Conflict, 409, "conflict"),
    (Cancelled, 409, "cancelled"),
    (StoreUnusable, 503, "store_unusable"),
    (InvalidInput, 422, "invalid"),
    (WinnowError, 422, "invalid"),
)
HTTP_CODES = {400: "invalid", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "invalid"}
ERRORS = {status: {"model": models.Error} for status in (400, 401, 403, 404, 405, 409, 413, 422, 429, 503)}
PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


def api_mount() -> Mount:
    return Mount(PREFIX, app=ApiGate(make_api()))


def make_api() -> FastAPI:
    """The ASGI app of the API with all endpoints, error handlers and limits."""
    api = FastAPI(
        title="Winnow",
        version=VERSION,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,  # type: ignore[arg-type]
        dependencies=[Depends(HTTPBearer(auto_error=False, description="A token of `python -m app token new`."))],
        generate_unique_id_function=lambda route: route.name,
    )
    for module in (projects, members, lifecycle, items, labels, rounds, predictions, embeddings, measuring, jobs):
        api.include_router(module.router)

    @api.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(api.openapi(), PREFIX), headers=PAGE_HEADERS)

    api.add_exception_handler(WinnowError, _winnow_error)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(Exception, _failure)
    return api


async def _winnow_error(request: Request, problem: Exception) -> Response:
    status, code = next((status, code) for kind, status, code in STATUS if isinstance(problem, kind))
    return error(status, code, str(problem))


async def _invalid(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    fields = [
        {"field": ".".join(str(part) for part in one["loc"]), "problem": str(one["msg"])} for one in problem.errors()
    ]
    first = f"{fields[0]['field']}: {fields[0]['problem']}." if fields else ""
    return error(422, "invalid", f"The request has {len(fields)} invalid values. {first}".strip(), fields)


async def _http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    answer = error(problem.status_code, HTTP_CODES.get(problem.status_code, "refused"), str(problem.detail))
    answer.headers.update(problem.headers or {})
    return answer


async def _failure(request: Request, problem: Exception) -> Response:
    number = secrets.token_hex(4)
    log.error("error %s in %s %s", number, request.method, request.url.path, exc_info=problem)
    return error(500, "failed", f"The request failed (error {number}; the server log has the details).")
