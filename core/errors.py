"""The errors that Winnow raises. Each message says what happened, with the numbers, and what to do."""

from __future__ import annotations


class WinnowError(Exception):
    """A problem that a person can act on. Screens and the command line show its text unchanged."""


class InvalidInput(WinnowError):
    """A file, a setting or an argument cannot be used."""


class NotFound(WinnowError):
    """The project, item, class, round or artifact does not exist or was removed."""


class Conflict(WinnowError):
    """The request contradicts the present content of the store, such as a class name that already exists."""


class Forbidden(WinnowError):
    """The person or the token may not do this in the project."""


class StoreUnusable(WinnowError):
    """The store cannot be opened safely: newer than the code, damaged, read-only, or unreachable."""


class StoreUnreachable(StoreUnusable):
    """The connection to the database was lost or refused; the same request may succeed later."""


class TrainingFailed(WinnowError):
    """Training stopped for a reason (a loss that is not a number, nothing to learn from); the previous model stays."""


class Cancelled(WinnowError):
    """The running work was cancelled; raised from `report`, caught where the work was started."""


def require(holds: bool, message: str) -> None:
    """Raise `InvalidInput(message)` unless the condition holds."""
    if not holds:
        raise InvalidInput(message)
