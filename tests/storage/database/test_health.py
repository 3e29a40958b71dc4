"""Large stores are checked in the background, and a failed backup is remembered until one succeeds."""

from __future__ import annotations

from pathlib import Path

from storage.database import health
from storage.database.health import BackgroundCheck
from storage.database.store import Store
from tests.storage.pools import make_pool


def test_a_damaged_large_store_is_found_in_the_background(sqlite_home: Path) -> None:
    with Store.open(home=sqlite_home) as store:
        make_pool(store, 2_000)
    path = sqlite_home / "winnow.sqlite"
    with Store.open(home=sqlite_home) as store:
        sound = BackgroundCheck(store)
        sound.start(limit=1)
        sound.wait(60)
        assert not sound.running and sound.problem == ""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8_192] = b"\xff" * 8_192
    path.write_bytes(data)
    store = Store.unopened(home=sqlite_home)
    check = BackgroundCheck(store)
    check.start(limit=1)
    check.wait(60)
    store.close()
    assert "is damaged" in check.problem and "python -m app restore" in check.problem


def test_a_small_store_is_not_checked_twice(sqlite_store: Store) -> None:
    check = BackgroundCheck(sqlite_store)
    check.start()
    assert not check.running and check.problem == ""


def test_a_failed_backup_is_remembered_until_one_succeeds(tmp_path: Path) -> None:
    assert health.backup_problem(tmp_path) == ""
    health.note_backup(tmp_path, "the disk is full")
    assert health.backup_problem(tmp_path) == "the disk is full"
    health.note_backup(tmp_path, "")
    assert health.backup_problem(tmp_path) == ""
