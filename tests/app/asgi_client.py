"""Requests to an ASGI app in this process: one request, one response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

Result = TypeVar("Result")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(app: Any, method: str, address: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """`body` is sent as JSON unless it is bytes."""
    parts = urlsplit(address)
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    given = {"host": parts.netloc or "127.0.0.1"} | {k.lower(): v for k, v in (headers or {}).items()}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in given.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
    }
    return _alone(_run(app, scope, data))


def _alone(work: Coroutine[Any, Any, Result]) -> Result:
    """Run it in a separate thread, because the event loop of the browser tests may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _run(app: Any, scope: dict[str, Any], data: bytes) -> Answer:
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Answer(start["status"], {k.decode().lower(): v.decode("latin-1") for k, v in start["headers"]}, content)


def connect(app: Any, path: str, headers: dict[str, str]) -> list[str]:
    """Open a WebSocket; return the kinds of messages that the app sent until it waited for a message or ended."""
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "scheme": "ws",
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        "subprotocols": [],
    }
    kinds: list[str] = []

    async def talk() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            kinds.append(message["type"])

        await app(scope, receive, send)

    _alone(talk())
    return kinds
