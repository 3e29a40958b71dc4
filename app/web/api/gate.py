"""The gate of the API: authentication, limits on size and rate, and a common format for errors.

Token    `Authorization: Bearer winnow_…` (`python -m app token new`). Cookies are not read, which prevents cross-site
         request forgery. Only the documentation of the API is available without a token.
Actor    A request acts as the token's annotator, with at most the token's role (`storage.projects.roles`).
Rate     `WINNOW_API_RATE` requests per minute and token (default 1,200); the same limit applies to each address without
         a valid token.
Size     16 MiB for JSON; for uploads, the limit of an imported archive.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web import resources
from app.web.access import bearer
from core.limits import limits_from
from storage.projects import tokens
from storage.projects.roles import Actor, acting_as

PREFIX = "/api/v1"
OPEN_PATHS = frozenset({f"{PREFIX}/openapi.json", f"{PREFIX}/docs"})
MAX_JSON = 16 * 2**20
KNOWN_CALLERS = 10_000
NO_TOKEN = "Send a token: `Authorization: Bearer …`. `python -m app token new --name NAME --role ROLE` creates one."


class RateLimit:
    """A token bucket for each caller. It holds the requests of one minute and is refilled continuously."""

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._lock = threading.Lock()
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> (left, time)

    def seconds_to_wait(self, caller: str, now: float) -> float:
        """Count a request and return 0 if the limit allows it; otherwise return the seconds until the next one."""
        with self._lock:
            left, at = self._callers.pop(caller, (self.per_minute, now))
            left = min(self.per_minute, left + (now - at) * self.per_minute / 60)
            passes = left >= 1
            self._callers[caller] = (left - 1 if passes else left, now)
            while len(self._callers) > KNOWN_CALLERS:
                self._callers.popitem(last=False)
        return 0.0 if passes else (1 - left) * 60 / self.per_minute


class ApiGate:
    """ASGI middleware that applies the token, rate and size checks to the API."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.rate = RateLimit(float(os.environ.get("WINNOW_API_RATE", "1200")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        text = bearer(Headers(scope=scope))
        token = await run_in_threadpool(tokens.redeem, resources.store(), text) if text else None
        caller = f"token {token.id}" if token is not None else f"address {(scope.get('client') or ('',))[0]}"
        if wait := self.rate.seconds_to_wait(caller, time.monotonic()):
            sentence = f"More than {self.rate.per_minute:,.0f} requests per minute. Wait {wait:.1f} s."
            answer: Response = error(429, "too_many_requests", sentence)
            answer.headers["Retry-After"] = str(int(wait) + 1)
            await answer(scope, receive, send)
        elif token is not None:
            scope.setdefault("state", {})["token"] = token
            with acting_as(Actor(token.annotator_id, token.role, owns_new=resources.sign_in())):
                await self.app(scope, limited(scope, receive), send)
        elif scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
        else:
            answer = error(401, "unauthorized", "The token is unknown or revoked." if text else NO_TOKEN)
            answer.headers["WWW-Authenticate"] = "Bearer"
            await answer(scope, receive, send)


def limited(scope: Scope, receive: Receive) -> Receive:
    """A `receive` that ends the request with 413 if the body exceeds the limit, whatever its declared length."""
    is_form = Headers(scope=scope).get("content-type", "").startswith("multipart/form-data")
    most = limits_from().max_zip_bytes if is_form else MAX_JSON
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"The request has more than {most:,} bytes, which is the limit.")
        return message

    return receive_limited


def error(status: int, code: str, sentence: str, fields: list[dict[str, Any]] | None = None) -> JSONResponse:
    """An error response of the API: a sentence, a stable code and, for invalid input, the fields."""
    body = {"error": sentence, "code": code, "fields": fields or []}
    return JSONResponse(body, status_code=status, headers={"Cache-Control": "no-store"})
