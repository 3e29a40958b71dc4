"""Fixtures for tests of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.database.store import Store
from storage.media.probe import Measures
from storage.media.probe_pool import Examined, ProbePool
from storage.media.probe_process import Examiner
from tests.storage.export_shop import Shop, opened_shop


@pytest.fixture
def examined_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine files in this process, which is faster: for tests whose files are small and not hostile."""

    def examine(self: ProbePool, jobs: list[tuple[str, str]]) -> list[Examined]:
        examiner = Examiner(
            Path(self._settings["media_root"]),
            Path(self._settings["incoming"]),
            self.limits,
            window_seconds=self._settings["window_seconds"],
        )
        replies = [examiner.reply(*job) for job in jobs]
        return [Examined(Measures(*reply[:-3]), *reply[-3:]) for reply in replies]

    monkeypatch.setattr(ProbePool, "_examine", examine)


@pytest.fixture
def shop(sqlite_store: Store, tmp_path: Path) -> Shop:
    return opened_shop(sqlite_store, tmp_path)
