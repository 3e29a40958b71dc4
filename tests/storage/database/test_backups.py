"""Backups are complete, are rotated by a setting, and restore a store."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from core.errors import InvalidInput, StoreUnusable
from storage.database import backup_files, backups
from storage.database.restore import restore
from storage.database.store import Store
from tests.storage.pools import make_pool


def test_a_restored_store_equals_the_backup_and_the_replaced_store_is_kept(store: Store) -> None:
    made = make_pool(store)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    path = backups.backup(store)
    made.pool.label(made.items[1], made.classes[0], annotator=made.ann)

    before = restore(store, path)
    assert made.pool.counts().labeled == 1
    assert made.pool.label(made.items[2], made.classes[1], annotator=made.ann).accepted
    restore(store, before)
    assert made.pool.counts().labeled == 2
    assert [one.name for one in (store.home / "backups").iterdir() if not one.name.endswith(".sqlite")] == []


def test_a_backup_taken_while_people_label_is_consistent(sqlite_store: Store) -> None:
    made = make_pool(sqlite_store, 200)
    stop = threading.Event()

    def label() -> None:
        for item in made.items:
            if stop.is_set():
                return
            made.pool.label(item, made.classes[0], annotator=made.ann)

    thread = threading.Thread(target=label)
    thread.start()
    try:
        paths = [backups.backup(sqlite_store) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    for path in paths:
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            events, current = (
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("label_events", "current_labels")
            )
        connection.close()
        assert events == current


def test_automatic_backups_rotate_and_requested_ones_stay(sqlite_store: Store) -> None:
    backups.set_kept(sqlite_store, 2)
    asked = [backups.backup(sqlite_store) for _ in range(3)]
    daily = [backups.backup(sqlite_store, "daily") for _ in range(4)]
    assert backup_files.listed(sqlite_store.home, "manual") == asked
    assert backup_files.listed(sqlite_store.home, "daily") == daily[-2:]


def test_one_automatic_backup_a_day(sqlite_store: Store) -> None:
    assert backups.daily(sqlite_store) is not None
    assert backups.daily(sqlite_store) is None


def test_a_damaged_or_foreign_backup_is_refused_and_nothing_changes(sqlite_store: Store, tmp_path: Path) -> None:
    made = make_pool(sqlite_store)
    whole = backups.backup(sqlite_store)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(whole.read_bytes()[:20_000] + b"\xff" * 40_000)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE songs (id)")
    connection.close()
    with pytest.raises(StoreUnusable, match="is damaged"):
        restore(sqlite_store, damaged)
    with pytest.raises(StoreUnusable, match="is not a backup of a Winnow store"):
        restore(sqlite_store, foreign)
    with pytest.raises(InvalidInput, match="There is no backup"):
        restore(sqlite_store, tmp_path / "nothing.sqlite")
    assert made.pool.counts().total == 10


def test_backups_dated_ahead_by_a_wrong_clock_neither_stop_new_ones_nor_push_them_out(sqlite_store: Store) -> None:
    backups.set_kept(sqlite_store, 2)
    folder = sqlite_store.home / "backups"
    folder.mkdir(exist_ok=True)
    for day in (1, 2):
        (folder / f"winnow-2999010{day}T000000000000Z-daily.sqlite").write_bytes(b"")
    first = backups.daily(sqlite_store)
    assert first is not None and first.exists()
    assert backups.daily(sqlite_store) is None
    backups.backup(sqlite_store, "daily")
    assert first.exists() and len(backup_files.listed(sqlite_store.home, "daily")) == 2


def test_a_failed_backup_states_the_reason_and_leaves_nothing_behind(sqlite_store: Store, monkeypatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(backups, "copy_sqlite", full)
    with pytest.raises(StoreUnusable, match=r"was not made: the disk is full .* Free some space"):
        backups.backup(sqlite_store)
    assert list((sqlite_store.home / "backups").iterdir()) == []
