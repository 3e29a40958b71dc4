"""The few errors Winnow raises on purpose. Each message says what happened, with the numbers, and what to do."""

from __future__ import annotations


class WinnowError(Exception):
    """Any problem a person can understand and act on; screens and the command line show its text as it is."""


class InvalidInput(WinnowError):
    """What was given cannot be used: a file, a setting, an argument."""


class NotFound(WinnowError):
    """The project, item, class, round or artifact asked for does not exist (any more)."""


class Conflict(WinnowError):
    """The request contradicts what the store holds now, such as a class name that is taken."""


class StoreUnusable(WinnowError):
    """The store cannot be opened safely: newer than the code, damaged, read-only, or unreachable."""


class TrainingFailed(WinnowError):
    """Training stopped with a cause (a loss that is not a number, nothing to learn from); the previous model stays."""


class Cancelled(WinnowError):
    """Someone asked the running work to stop; raised from `report`, caught where the work was started."""
