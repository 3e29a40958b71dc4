"""Fields of received JSON objects: each function returns a value of its type or raises InvalidInput."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from core.errors import InvalidInput

MAX_INTEGER = 2**62
Body = Mapping[str, Any]


def encodable(given: str) -> str:
    """The text with lone surrogates escaped, so that it can be part of a response."""
    return given.encode("utf-8", "backslashreplace").decode("utf-8")


def text(given: Body, name: str) -> str:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} must be text.")
    if value and ("\x00" in value or encodable(value) != value):
        raise InvalidInput(f"{name} contains a character that cannot be stored.")
    return value or ""


def integer(given: Body, name: str, *, required: bool = False) -> int | None:
    value = given.get(name)
    if value is None and not required:
        return None
    if not is_integer(value):
        raise InvalidInput(f"{name} must be a whole number.")
    return int(value)  # type: ignore[arg-type]


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER


def integers(given: Body, name: str) -> list[int]:
    values = given.get(name)
    if not isinstance(values, list) or not all(is_integer(value) for value in values):
        raise InvalidInput(f"{name} must be a list of whole numbers.")
    return values


def pairs(given: Body, name: str) -> dict[int, int]:
    """A list of [key, value], both whole numbers, without repeated keys."""
    values = given.get(name)
    if not isinstance(values, list) or not all(isinstance(one, list) and len(one) == 2 for one in values):
        raise InvalidInput(f"{name} must be a list of pairs.")
    if not all(is_integer(value) for one in values for value in one):
        raise InvalidInput(f"{name} must be pairs of whole numbers.")
    return dict(values)


def number(given: Body, name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    if not (isinstance(value, float) or is_integer(value)):
        raise InvalidInput(f"{name} must be a number.")
    return float(value)


def share(given: Body, name: str) -> float | None:
    """A number between 0 and 1."""
    value = number(given, name)
    if value is not None and not 0 <= value <= 1:
        raise InvalidInput(f"{name} must be a number from 0 to 1.")
    return value


def moment(given: Body, name: str) -> datetime | None:
    """A time with a time zone, in ISO format."""
    value = text(given, name)
    try:
        found = datetime.fromisoformat(value) if value else None
    except ValueError as error:
        raise InvalidInput(f"{value!r} is not a time.") from error
    if found is not None and found.tzinfo is None:
        raise InvalidInput(f"The time {value} has no time zone.")
    return found


def choice(given: Body, name: str, allowed: tuple[str, ...], default: str) -> str:
    value = text(given, name) or default
    if value not in allowed:
        raise InvalidInput(f"{name} is {value!r}; use {', '.join(allowed)}.")
    return value


def choices(given: Body, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    values = given.get(name) or []
    if not isinstance(values, list) or not all(value in allowed for value in values):
        raise InvalidInput(f"{name} must be a list of {', '.join(allowed)}.")
    return tuple(values)
