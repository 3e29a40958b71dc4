"""Who may talk to this server: one gate in front of pages, WebSocket, media and API.

Host      Requests must name a host we answer to, so that a foreign page cannot reach us through its own name (DNS
          rebinding).
Origin    What changes something, and every WebSocket, must come from our own page.
Token     Beyond loopback and without `[auth]`, everyone shows the access token once: it is part of the printed
          address, and a cookie remembers it.
Session   Media of Streamlit's own `/media/` route need the session cookie of someone who has a name here, as ours do.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web import tickets

ACCESS_COOKIE = "winnow_access"
SESSION_COOKIE = "winnow_session"
YEAR = 365 * 24 * 3600
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN_PATHS = frozenset({"/_stcore/health"})
SIGN_OUT_PATH = "/auth/logout"  # Streamlit's; who passes it is signed out of our media and exports too
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def needs_token(host: str, sign_in: bool) -> bool:
    return not sign_in and not is_loopback(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the gate checks. `token` None: nobody is asked for one. `hosts` empty: any host name is answered."""

    key: bytes
    token: str | None = None
    hosts: frozenset[str] = frozenset()

    def cookie_for_token(self) -> str:
        """What the access cookie holds: not the token itself, and another value when the token changes."""
        return tickets.sign(self.key, {"token": self.token})


def rules_for(host: str, key: bytes, *, token: str | None, environ: Mapping[str, str]) -> Rules:
    """On loopback only loopback names are answered; elsewhere the token guards, and WINNOW_ALLOWED_HOSTS may narrow."""
    listed = environ.get("WINNOW_ALLOWED_HOSTS", "").split(",")
    extra = frozenset(name.strip().lower() for name in listed if name.strip())
    return Rules(key=key, token=token, hosts=(LOOPBACK_NAMES | extra) if is_loopback(host) else extra)


def host_name(host: str | None) -> str | None:
    """The name in a Host header, without its port; None for something that is no host."""
    try:
        parts = urlsplit(f"//{host or ''}")
        if parts.username is not None or parts.path or parts.query or parts.fragment or parts.port == 0:
            return None
        return parts.hostname.lower().rstrip(".") if parts.hostname else None
    except ValueError:
        return None


def same_origin(origin: str | None, host: str | None, allowed: frozenset[str]) -> bool:
    """A browser names the page that asks. No name at all is a program on the command line, which holds no cookies."""
    if origin is None:
        return True
    netloc = urlsplit(origin).netloc.lower()
    return bool(netloc) and (netloc == (host or "").lower() or host_name(netloc) in allowed - LOOPBACK_NAMES)


class Gate:
    """ASGI middleware; runs before everything else, for HTTP and WebSocket alike."""

    def __init__(self, app: ASGIApp, rules: Callable[[], Rules]) -> None:
        self.app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            leaving = scope["type"] == "http" and scope["path"] == SIGN_OUT_PATH
            await self.app(scope, receive, without_session(send) if leaving else send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before accept: the browser sees HTTP 403
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        rules, request = self._rules(), HTTPConnection(scope)
        host = request.headers.get("host")
        if rules.hosts and host_name(host) not in rules.hosts:
            return refused(scope, 421, f"This server does not accept the host name {host or ''!r}.")
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if changes and not same_origin(request.headers.get("origin"), host, rules.hosts):
            return refused(scope, 403, "This request comes from another page.")
        if scope["path"] in OPEN_PATHS:
            return None
        if rules.token is not None and (answer := self._ask_token(scope, request, rules)) is not None:
            return answer
        known = tickets.redeem(rules.key, request.cookies.get(SESSION_COOKIE)) is not None
        if scope["path"].startswith("/media/") and not known:
            return refused(scope, 401, "Open Winnow in this browser first.")
        return None

    def _ask_token(self, scope: Scope, request: HTTPConnection, rules: Rules) -> Response | None:
        assert rules.token is not None
        if hmac.compare_digest(request.cookies.get(ACCESS_COOKIE, "").encode(), rules.cookie_for_token().encode()):
            return None
        given = request.query_params.get("token") or bearer(request.headers)
        if given is None or not hmac.compare_digest(given.encode(), rules.token.encode()):
            return refused(
                scope,
                401,
                "An access token is required. Open the address that was printed at startup, or enter the token.",
            )
        if scope["type"] == "websocket" or "token" not in request.query_params:
            return None
        rest = urlencode([(k, v) for k, v in parse_qsl(scope["query_string"].decode("latin-1")) if k != "token"])
        answer = RedirectResponse("/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else ""), status_code=303)
        set_cookie(answer, ACCESS_COOKIE, rules.cookie_for_token(), secure=scope.get("scheme") == "https")
        return answer


def bearer(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() or None if kind.lower() in ("bearer", "token") else None


def set_cookie(response: Response, name: str, value: str, *, secure: bool, seconds: int = YEAR) -> None:
    """Cookies no script can read and no other site can make the browser send."""
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="strict", secure=secure, path="/")


def without_session(send: Send) -> Send:
    """Answers that also take the session cookie away."""
    gone = Response()
    gone.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")

    async def send_without(message: Message) -> None:
        if message["type"] == "http.response.start":
            taken = [(name, value) for name, value in gone.raw_headers if name == b"set-cookie"]
            message = {**message, "headers": [*message.get("headers", ()), *taken]}
        await send(message)

    return send_without


def refused(scope: Scope, status: int, sentence: str) -> Response:
    """A page for people, JSON for programs."""
    if "text/html" in Headers(scope=scope).get("accept", "") and status == 401:
        return HTMLResponse(TOKEN_PAGE.replace("{sentence}", html.escape(sentence)), status_code=status)
    return JSONResponse({"error": sentence}, status_code=status)


TOKEN_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Winnow</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body{font:15px/1.5 Inter,system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:16px}
main{max-width:26rem}input,button{font:inherit;padding:.5rem .75rem;border-radius:9px;border:1px solid #8888}</style>
<main><h1>Winnow</h1><p>{sentence}</p><form method="get"><label>Access token
<input name="token" type="password" required autocomplete="off"></label> <button>Open</button></form></main></html>"""
