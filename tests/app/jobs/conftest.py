"""A store of its own for the commands and jobs of a test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(sqlite_home, monkeypatch) -> Path:
    """The home folder, with an empty store, that commands without an address use."""
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(sqlite_home))
    return sqlite_home
