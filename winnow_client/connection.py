"""HTTP for the client: sends the token, raises errors as exceptions, and retries requests that are safe to repeat."""

from __future__ import annotations

import time
from typing import Any

import httpx2

from winnow_client.errors import ApiError

TRIES = 4
REPEATABLE = frozenset({429, 502, 503, 504})


class Connection:
    """Sends requests with one token. After a lost connection, it repeats requests that are safe to repeat."""

    def __init__(self, address: str, token: str, timeout_seconds: float) -> None:
        self._http = httpx2.Client(
            base_url=f"{address.rstrip('/')}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_seconds,
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, True, params={k: v for k, v in query.items() if v is not None}).json()

    def get_bytes(self, path: str) -> bytes:
        return self._send("GET", path, True).content

    def post(self, path: str, body: Any = None, *, repeatable: bool = False, **more: Any) -> Any:
        """Send a POST request. `repeatable` states that sending it twice has the same effect as sending it once."""
        answer = self._send("POST", path, repeatable, **({"json": body} if body is not None else {}), **more)
        return answer.json() if answer.content else None

    def patch(self, path: str, body: Any) -> Any:
        return self._send("PATCH", path, True, json=body).json()

    def put(self, path: str, body: Any) -> Any:
        return self._send("PUT", path, True, json=body).json()

    def delete(self, path: str) -> None:
        self._send("DELETE", path, True)

    def _send(self, method: str, path: str, repeatable: bool, **more: Any) -> httpx2.Response:
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            try:
                answer = self._http.request(method, path, **more)
            except httpx2.TransportError:
                if last or not repeatable:
                    raise
            else:
                waits = answer.status_code == 429 or (answer.status_code in REPEATABLE and repeatable)
                if last or not waits:
                    return _checked(answer)
                time.sleep(min(float(answer.headers.get("Retry-After", 0)), 30.0))
            time.sleep(0.25 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._http.close()


def _checked(answer: httpx2.Response) -> httpx2.Response:
    if answer.is_success:
        return answer
    try:
        body = answer.json()
        code, sentence = str(body["code"]), str(body["error"])
    except (ValueError, KeyError, TypeError):
        code, sentence = "failed", f"The server returned {answer.status_code}: {answer.text[:200]}"
    raise ApiError(answer.status_code, code, sentence)
