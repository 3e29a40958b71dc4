"""The errors of the client."""

from __future__ import annotations


class ApiError(Exception):
    """The server refused a request. `code` is stable: not_found, forbidden, conflict, invalid, …"""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class NotFinished(Exception):
    """A round or a job ended without a result, or did not end in time."""
