"""Errors of background work become messages that say what to do."""

from __future__ import annotations

import pytest
from safetensors import SafetensorError

from app.worker.error_messages import sentence
from core.errors import InvalidInput


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_named_for_every_form_of_the_error(error):
    assert sentence(error) == (
        "The disk of the worker is full, so the round could not be stored. Free some space and run it again."
    )


def test_other_errors_keep_their_text():
    assert sentence(InvalidInput("Lower the batch size.")) == "Lower the batch size."
    assert sentence(OSError(13, "Permission denied")) == "PermissionError: [Errno 13] Permission denied"
    assert sentence(ValueError("first\nsecond")) == "ValueError: first"
    assert sentence(KeyError()) == "KeyError"
    assert sentence(MemoryError()).startswith("Not enough memory: an allocation failed.")
