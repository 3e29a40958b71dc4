"""Responses with bytes from memory: the entire content, or one requested range (RFC 9110, section 14) for seeking."""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.responses import Response

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})\Z")  # longer numbers exceed the size of any content


def ranged(data: bytes, requested: Mapping[str, str], media_type: str, headers: Mapping[str, str]) -> Response:
    """The response with `data` or the requested range of it.

    `requested` are the headers of the request, `headers` those of the response, including its ETag. A request with
    several ranges, another unit, or an outdated copy (If-Range) gets the entire content.
    """
    headers = {**headers, "Accept-Ranges": "bytes"}
    span = _span(requested.get("range", ""), len(data))
    if span is None or requested.get("if-range", headers["ETag"]) != headers["ETag"]:
        return Response(data, media_type=media_type, headers=headers)
    first, last = span
    if first > last:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    return Response(data[first : last + 1], status_code=206, media_type=media_type, headers=headers)


def _span(requested: str, n_bytes: int) -> tuple[int, int] | None:
    """(first, last) byte of the requested range; first > last if it is unsatisfiable. None without a single range."""
    found = _RANGE.match(requested.strip())
    if found is None or found.group(1) == found.group(2) == "":
        return None
    first, last = found.groups()
    if not first:
        return max(0, n_bytes - int(last)), n_bytes - 1 if int(last) else -1
    if last and int(last) < int(first):
        return None
    start, end = int(first), min(int(last), n_bytes - 1) if last else n_bytes - 1
    return start, end if start < n_bytes else -1
