"""Signed tickets that identify an annotator, and the signing key.

A ticket is `payload.signature`: JSON in URL-safe base64 and its HMAC-SHA-256. Each tab receives a ticket from the page
and sends it with every label, so two tabs of one browser can work under two names. Tickets remain valid after a restart
of the server, because the key is a file in WINNOW_HOME.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY_FILE = "signing.key"
TOKEN_FILE = "access.token"


@dataclass(frozen=True, slots=True)
class Ticket:
    """The content of a valid ticket."""

    annotator_id: int
    expires: float  # seconds since the epoch


def signing_key(home: Path) -> bytes:
    """The signing key of this installation. It is created at first use, in a file that only its owner can read."""
    return bytes.fromhex(_once(home / KEY_FILE, 32))


def stored_token(home: Path) -> str:
    """The access token of this installation, created at first use. It survives restarts, so open tabs stay valid."""
    return _once(home / TOKEN_FILE, 24)


def issue(key: bytes, annotator_id: int, lifetime_seconds: float) -> str:
    return sign(key, {"annotator": annotator_id, "expires": round(time.time() + lifetime_seconds, 3)})


def redeem(key: bytes, text: str | None) -> Ticket | None:
    """The content of a valid ticket. None if it is missing, forged or expired."""
    payload = verify(key, text)
    if payload is None:
        return None
    try:
        ticket = Ticket(int(payload["annotator"]), float(payload["expires"]))
    except (KeyError, TypeError, ValueError):
        return None
    return ticket if ticket.expires > time.time() else None


def sign(key: bytes, payload: dict[str, Any]) -> str:
    body = base64.urlsafe_b64encode(json.dumps(payload, sort_keys=True).encode()).rstrip(b"=").decode()
    return f"{body}.{_signature(key, body)}"


def verify(key: bytes, text: str | None) -> dict[str, Any] | None:
    """The payload of a signed text, or None if the signature is invalid."""
    body, _, signature = (text or "").partition(".")
    if not body or not hmac.compare_digest(_signature(key, body).encode(), signature.encode("utf-8", "replace")):
        return None
    try:
        payload = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, binascii.Error):
        return None
    return payload if isinstance(payload, dict) else None


def _signature(key: bytes, body: str) -> str:
    return hmac.new(key, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _once(path: Path, n_bytes: int) -> str:
    """The text of the file, which is created with random content if it does not exist. Concurrent processes all get the
    text of the first one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_hex(n_bytes))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(draft, path)  # fails if another process was first; then its text is used
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()
