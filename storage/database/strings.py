"""Validation of strings, so that every database stores them exactly as given or refuses them; numbers with nouns."""

from __future__ import annotations

import unicodedata

from core.errors import InvalidInput


def storable(text: str, what: str, limit: int | None = None) -> str:
    """`text` unchanged. NUL characters (not storable in PostgreSQL) and lone surrogates (not valid in UTF-8) are
    refused."""
    if "\x00" in text:
        raise InvalidInput(f"{what} contains a NUL character, which cannot be stored. Remove it and try again.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} contains half of a surrogate pair at position {error.start}, which is not valid text. "
            "Remove it and try again."
        ) from error
    if limit is not None and len(text) > limit:
        raise InvalidInput(f"{what} has {len(text):,} characters; at most {limit:,} can be stored. Shorten it.")
    return text


def named(text: str, what: str, limit: int) -> str:
    """A name: storable, and not only blanks."""
    if not text.strip():
        raise InvalidInput(f"{what} is empty. Type a name.")
    return storable(text, what, limit)


def composed(text: str) -> str:
    """The form in which names are compared: letters with accents as one character (NFC)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def count(number: int, one: str, many: str | None = None) -> str:
    """ "1 clip", "3,000 clips"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
