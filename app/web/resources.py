"""What all sessions of the page process share: the open store, the signing key, the gate's rules.

Nothing in here belongs to a person or a tab; what does lives in `app.web.state`.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from app.web import tickets
from app.web.access import Rules, rules_for
from app.web.server_command import access_token, sign_in_configured
from storage.database.locations import Locations, from_environment
from storage.database.store import Store

LOCAL_LIFETIME = 30 * 24 * 3600.0  # seconds a name is remembered
SIGNED_IN_LIFETIME = 8 * 3600.0  # with `[auth]`: then the identity provider is asked again


@lru_cache(maxsize=1)
def locations() -> Locations:
    return from_environment()


@lru_cache(maxsize=1)
def store() -> Store:
    return Store.open()


@lru_cache(maxsize=1)
def key() -> bytes:
    return tickets.signing_key(locations().home)


@lru_cache(maxsize=1)
def rules() -> Rules:
    place = locations()
    return rules_for(place.host, key(), token=access_token(place.host, place.home, os.environ), environ=os.environ)


@lru_cache(maxsize=1)
def sign_in() -> bool:
    """Whether people sign in with an identity provider (`[auth]` in Streamlit's secrets)."""
    return sign_in_configured()


def picture_folder() -> Path:
    """Where drawn spectrograms and thumbnails are kept; deleting it loses nothing."""
    return locations().home / "cache" / "pictures"


def ticket_lifetime() -> float:
    return SIGNED_IN_LIFETIME if sign_in() else LOCAL_LIFETIME
