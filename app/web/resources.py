"""Resources that all sessions of the page process share: the open store, the signing key and the gate's rules.

State of a person or a tab is in `app.web.state`.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from app.views.previews.pool import PreviewPool
from app.web import tickets
from app.web.access import Rules, rules_for
from app.web.server_command import access_token, sign_in_configured
from app.web.server_folders import allowed_roots
from core.limits import limits_from
from storage.database.health import BackgroundCheck, backup_problem
from storage.database.locations import Locations, from_environment
from storage.database.store import Store

LOCAL_LIFETIME = 30 * 24 * 3600.0  # seconds for which a browser remembers the annotator's name
SIGNED_IN_LIFETIME = 8 * 3600.0  # seconds, with `[auth]`; after that the identity provider checks again


@lru_cache(maxsize=1)
def locations() -> Locations:
    return from_environment()


@lru_cache(maxsize=1)
def store() -> Store:
    return Store.open()


@lru_cache(maxsize=1)
def store_check() -> BackgroundCheck:
    """The check of a large store, which runs in the background."""
    return BackgroundCheck(store())


def store_warnings() -> list[str]:
    """Warnings about the store for all users: damage, a failed backup, an unsafe location."""
    failed = backup_problem(locations().home)
    found = [*store().warnings, store_check().problem, f"The daily backup failed. {failed}" if failed else ""]
    return [sentence for sentence in found if sentence]


@lru_cache(maxsize=1)
def key() -> bytes:
    return tickets.signing_key(locations().home)


@lru_cache(maxsize=1)
def rules() -> Rules:
    place = locations()
    return rules_for(place.host, key(), token=access_token(place.host, place.home, os.environ), environ=os.environ)


@lru_cache(maxsize=1)
def sign_in() -> bool:
    """Whether users sign in with an identity provider (`[auth]` in Streamlit's secrets)."""
    return sign_in_configured()


@lru_cache(maxsize=1)
def import_roots() -> tuple[Path, ...]:
    """The server's folders that users may import from."""
    place = locations()
    token = access_token(place.host, place.home, os.environ)
    return allowed_roots(place.host, os.environ, token=token, sign_in=sign_in())


@lru_cache(maxsize=1)
def preview_pool() -> PreviewPool:
    """The child processes that draw previews."""
    return PreviewPool(limits_from())


def picture_folder() -> Path:
    """The cache folder of spectrograms and thumbnails. It can be deleted at any time."""
    return locations().home / "cache" / "pictures"


def ticket_lifetime() -> float:
    return SIGNED_IN_LIFETIME if sign_in() else LOCAL_LIFETIME
