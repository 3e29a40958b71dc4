"""Access control: one gate in front of pages, WebSocket, media and API.

Host      Requests must name an allowed host, which prevents DNS rebinding.
Origin    Requests that change something, and every WebSocket, must come from a page of this server.
Token     If the server is not on loopback and has no `[auth]`, visitors must present the access token once. It is part
          of the printed address; a cookie then proves that it was presented.
Headers   Every response has a Content-Security-Policy and cannot be embedded in a frame of another page. Behind TLS
          every cookie is Secure.
Session   Streamlit's own route `/media/` requires the session cookie of an annotator, like our media routes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import importlib.util
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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
SIGN_OUT_PATH = "/auth/logout"  # Streamlit's route; the gate also ends the session for media and exports
API_PREFIX = "/api/v1/"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def _page_policy() -> str:
    """The Content-Security-Policy of pages. Nothing is loaded from or sent to another host.

    In addition to 'self' it allows Streamlit's inline styles and inline script (by its hash), functions that plotly
    compiles for WebGL, fonts in data URLs, and widget modules in blob URLs.
    """
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' 'unsafe-eval' blob: {' '.join(_inline_scripts())}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "media-src 'self' blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "frame-src 'none'",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def _inline_scripts() -> list[str]:
    """The hashes of the inline scripts in Streamlit's page, in the format of the policy."""
    spec = importlib.util.find_spec("streamlit")  # does not import it, because the command line imports this module
    page = Path(spec.origin).parent / "static" / "index.html" if spec is not None and spec.origin else None
    if page is None or not page.is_file():
        return ["'unsafe-inline'"]
    scripts = re.findall(r"<script>(.*?)</script>", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


PAGE_HEADERS = {
    "content-security-policy": _page_policy(),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached only from this machine."""
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
    """The rules of the gate. With `token` None no token is needed. With empty `hosts` every host name is allowed."""

    key: bytes
    token: str | None = None
    hosts: frozenset[str] = frozenset()

    def cookie_for_token(self) -> str:
        """The value of the access cookie. It depends on the token, which cannot be computed from it."""
        return hmac.new(self.key, f"access:{self.token}".encode(), hashlib.sha256).hexdigest()


def rules_for(host: str, key: bytes, *, token: str | None, environ: Mapping[str, str]) -> Rules:
    """The rules for a server on `host`. On loopback, only loopback names are accepted. Elsewhere a token is required,
    and WINNOW_ALLOWED_HOSTS limits the host names."""
    listed = environ.get("WINNOW_ALLOWED_HOSTS", "").split(",")
    extra = frozenset(name.strip().lower() for name in listed if name.strip())
    return Rules(key=key, token=token, hosts=(LOOPBACK_NAMES | extra) if is_loopback(host) else extra)


def host_name(host: str | None) -> str | None:
    """The host name in a Host header, without the port. None if the header is invalid."""
    try:
        parts = urlsplit(f"//{host or ''}")
        if parts.username is not None or parts.path or parts.query or parts.fragment or parts.port == 0:
            return None
        return parts.hostname.lower().rstrip(".") if parts.hostname else None
    except ValueError:
        return None


def same_origin(origin: str | None, host: str | None, allowed: frozenset[str]) -> bool:
    """Whether a request comes from a page of this server. Browsers send the origin of the page; a request without an
    origin comes from a program, which has no cookies."""
    if origin is None:
        return True
    netloc = urlsplit(origin).netloc.lower()
    return bool(netloc) and (netloc == (host or "").lower() or host_name(netloc) in allowed - LOOPBACK_NAMES)


class Gate:
    """ASGI middleware that checks every HTTP request and WebSocket before anything else."""

    def __init__(self, app: ASGIApp, rules: Callable[[], Rules]) -> None:
        self.app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if scope["type"] == "http":
            send = guarded(send, secure=is_https(HTTPConnection(scope)))
        if refusal is None:
            leaving = scope["type"] == "http" and scope["path"] == SIGN_OUT_PATH
            await self.app(scope, receive, without_session(send) if leaving else send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before accept, so the browser gets HTTP 403
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
        if scope["path"].startswith(API_PREFIX):  # the API has its own tokens (`app.web.api.gate`) and reads no cookies
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
        set_cookie(answer, ACCESS_COOKIE, rules.cookie_for_token(), secure=is_https(request))
        return answer


def is_https(request: HTTPConnection) -> bool:
    """Whether the browser uses TLS, either with this server or with a proxy in front of it.

    A forged header affects only the cookies of the client that sent it.
    """
    forwarded = request.headers.get("x-forwarded-proto", "").split(",")[0].strip().lower()
    origin = request.headers.get("origin", "").lower()
    return request.scope.get("scheme") in ("https", "wss") or forwarded == "https" or origin.startswith("https://")


def guarded(send: Send, *, secure: bool) -> Send:
    """A `send` that adds the headers of `PAGE_HEADERS` that a route has not set. If `secure`, it makes all cookies
    Secure."""

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            known = {name.decode("latin-1") for name, _ in headers}
            if secure:
                headers = [(name, _secured(value) if name == b"set-cookie" else value) for name, value in headers]
            added = [(name.encode(), value.encode()) for name, value in PAGE_HEADERS.items() if name not in known]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return send_guarded


def _secured(cookie: bytes) -> bytes:
    parts = {part.strip().lower() for part in cookie.split(b";")}
    return cookie if b"secure" in parts else cookie + b"; Secure"


def bearer(headers: Headers) -> str | None:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() or None if kind.lower() in ("bearer", "token") else None


def set_cookie(response: Response, name: str, value: str, *, secure: bool, seconds: int = YEAR) -> None:
    """Set an HttpOnly, SameSite cookie. Scripts cannot read it, and other sites cannot make the browser send it."""
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="strict", secure=secure, path="/")


def without_session(send: Send) -> Send:
    """A `send` that deletes the session cookie in the response."""
    gone = Response()
    gone.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")

    async def send_without(message: Message) -> None:
        if message["type"] == "http.response.start":
            taken = [(name, value) for name, value in gone.raw_headers if name == b"set-cookie"]
            message = {**message, "headers": [*message.get("headers", ()), *taken]}
        await send(message)

    return send_without


def refused(scope: Scope, status: int, sentence: str) -> Response:
    """The response to a refused request: a page for browsers, JSON for programs."""
    if "text/html" in Headers(scope=scope).get("accept", "") and status == 401:
        return HTMLResponse(TOKEN_PAGE.replace("{sentence}", html.escape(sentence)), status_code=status)
    return JSONResponse({"error": sentence, "code": "refused", "fields": []}, status_code=status)


TOKEN_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Winnow</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body{font:15px/1.5 Inter,system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:16px}
main{max-width:26rem}input,button{font:inherit;padding:.5rem .75rem;border-radius:9px;border:1px solid #8888}</style>
<main><h1>Winnow</h1><p>{sentence}</p><form method="get"><label>Access token
<input name="token" type="password" required autocomplete="off"></label> <button>Open</button></form></main></html>"""
