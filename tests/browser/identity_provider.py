"""A small OpenID Connect provider on loopback: discovery, authorization with PKCE, signed ID tokens, keys, logout.

It has no passwords: a visitor of the authorization page picks one of `PEOPLE`. Everything else is checked as by a real
provider, so that a sign-in that works here also works with a real provider.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "winnow", "only-for-tests-0123456789"
PEOPLE = {
    "ana": {"sub": "user-1", "name": "Ana <b>Koller</b>", "email": "ana@lab.example"},
    "eve": {"sub": "user-2", "name": "Eve", "email": "eve@elsewhere.example"},
}


class Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        self.grants: dict[str, dict[str, str]] = {}  # code -> what was asked for, by whom
        self.redirect_uris: set[str] = set()
        self.problems: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "end_session_endpoint": f"{self.url}/leave",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        }

    def id_token(self, grant: dict[str, str]) -> str:
        claims = {"iss": self.url, "aud": CLIENT_ID, "iat": int(time.time()), "exp": int(time.time()) + 600}
        claims |= PEOPLE[grant["person"]] | {"nonce": grant["nonce"]}
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)


class Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(place.query).items()}
        if place.path == "/.well-known/openid-configuration":
            self._json(self.server.metadata())
        elif place.path == "/keys":
            self._json({"keys": [self.server.key.as_dict(private=False)]})
        elif place.path == "/authorize":
            self._authorize(asked)
        elif place.path == "/leave":
            self._redirect(asked["post_logout_redirect_uri"])
        else:
            self._json({"error": "not here"}, 404)

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        asked = {name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()}
        grant = self.server.grants.pop(asked.get("code", ""), None)
        problem = self._problem(asked, grant)
        if problem or grant is None:
            self.server.problems.append(problem)
            self._json({"error": "invalid_grant", "error_description": problem}, 400)
            return
        token = self.server.id_token(grant)
        self._json({"access_token": secrets.token_hex(), "token_type": "Bearer", "expires_in": 600, "id_token": token})

    def _problem(self, asked: dict[str, str], grant: dict[str, str] | None) -> str:
        """The reason why no token is given; empty if one is given."""
        basic = self.headers.get("authorization", "").removeprefix("Basic ")
        credentials = (
            base64.b64decode(basic).decode() if basic else f"{asked.get('client_id')}:{asked.get('client_secret')}"
        )
        if credentials != f"{CLIENT_ID}:{CLIENT_SECRET}":
            return "another client"
        if grant is None or asked.get("redirect_uri") != grant["redirect_uri"]:
            return "an unknown code"
        digest = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return "" if challenge == grant["code_challenge"] else "a wrong verifier"

    def _authorize(self, asked: dict[str, str]) -> None:
        if asked.get("client_id") != CLIENT_ID or asked.get("redirect_uri") not in self.server.redirect_uris:
            self._json({"error": "unknown client or address"}, 400)
        elif (person := asked.pop("person", None)) is None:
            links = [f'<p><a href="/authorize?{urlencode(asked | {"person": one})}">{one}</a></p>' for one in PEOPLE]
            self._send("<!doctype html><title>Provider</title>" + "".join(links), "text/html")
        else:
            code = secrets.token_urlsafe()
            self.server.grants[code] = asked | {"person": person}
            self._redirect(asked["redirect_uri"] + "?" + urlencode({"code": code, "state": asked["state"]}))

    def _redirect(self, address: str) -> None:
        self.send_response(302)
        self.send_header("Location", address)
        self.end_headers()

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value), "application/json", status)

    def _send(self, text: str, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def running_provider() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.shutdown()
        provider.server_close()
        thread.join(10)
