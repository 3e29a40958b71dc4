"""Many at once: nobody is told that the database is locked, nobody waits for long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core.errors import StoreUnusable
from storage import file_lock
from storage.annotators import annotator_named, list_annotators
from storage.database import Store
from tests.storage.pools import make_pool

P99_SECONDS = 5.0


@pytest.mark.timeout(120)
def test_eight_writers_an_import_and_a_trainer_share_one_file(sqlite_store: Store) -> None:
    """D1, for 6 s instead of 60 to keep the suite short: no "database is locked", every write within the bound."""
    made = make_pool(sqlite_store, 3_000)
    sqlite_store.close()
    command = [sys.executable, "-m", "tests.storage.crowd", str(sqlite_store.home), "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    result = json.loads(done.stdout)
    assert result["errors"] == []
    assert min(result["labels"]) >= 1, f"everyone gets a turn: {result['labels']}"
    assert result["p99_seconds"] < P99_SECONDS
    with Store.open(home=sqlite_store.home):
        assert made.pool.counts().labeled == sum(result["labels"]), "every label is stored, none twice"
        assert made.pool.rebuild() == 0


def test_the_same_name_asked_for_at_once_makes_one_annotator(store: Store) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(annotator_named(store, "Ann").id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [row.name for row in list_annotators(store)] == ["Ann"]


def test_stores_opened_at_once_on_an_empty_folder_migrate_once(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def open_store() -> None:
        try:
            Store.open(home=tmp_path / "home").close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_store) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_writer_that_never_ends_is_reported_not_waited_for_forever(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        file_lock.file_lock(path, "The lock"),
        pytest.raises(StoreUnusable, match="held by another process for 0 s"),
        file_lock.file_lock(path, "The lock", seconds=0.05),
    ):
        raise AssertionError
    with file_lock.file_lock(path, "The lock", seconds=0.05):
        pass
