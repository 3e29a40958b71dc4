"""A restore works on a damaged store and loses no label that people give while it runs."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import uuid
from pathlib import Path

import pytest
from sqlalchemy import select, text

from core.errors import StoreUnusable
from storage.database import backups
from storage.database import store as store_module
from storage.database.restore import locked_tables, restore
from storage.database.schema import LabelEvent
from storage.database.store import Store
from tests.storage.pools import Made, make_pool


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "header":
        data[:16] = b"no database here"
    elif how == "page":
        data[4096 : 4096 + 3000] = b"\xff" * 3000
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["header", "page", "truncated"])
def test_a_damaged_store_is_set_aside_and_the_backup_takes_its_place(sqlite_home: Path, how: str) -> None:
    with Store.open(home=sqlite_home) as store:
        made = make_pool(store)
        made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
        path = backups.backup(store)
    live = sqlite_home / "winnow.sqlite"
    damage(live, how)
    bytes_before = live.read_bytes()
    with pytest.raises(StoreUnusable, match="is damaged"):
        Store.open(home=sqlite_home)
    with Store.unopened(home=sqlite_home) as closed:
        aside = restore(closed, path)
    assert aside is not None and aside.name.startswith("winnow.sqlite.damaged-") and aside.read_bytes() == bytes_before
    with Store.open(home=sqlite_home) as store:
        assert make_count(store) == 1


def test_a_store_with_an_unfinished_migration_is_restored(sqlite_home: Path) -> None:
    with Store.open(home=sqlite_home) as store:
        make_pool(store)
        path = backups.backup(store)
    with contextlib.closing(sqlite3.connect(sqlite_home / "winnow.sqlite")) as connection:
        connection.execute("DROP TABLE winnow_version")
    with pytest.raises(StoreUnusable, match="app restore"):
        Store.open(home=sqlite_home)
    with Store.unopened(home=sqlite_home) as closed:
        assert restore(closed, path) is not None
    Store.open(home=sqlite_home).close()


def test_a_missing_store_is_restored(sqlite_home: Path, tmp_path: Path) -> None:
    with Store.open(home=sqlite_home) as store:
        path = backups.backup(store, target=tmp_path / "copy.sqlite")
    for name in sqlite_home.glob("winnow.sqlite*"):
        name.unlink()
    with Store.unopened(home=sqlite_home) as closed:
        assert restore(closed, path) is None
    Store.open(home=sqlite_home).close()


def test_a_process_that_had_the_damaged_store_open_writes_to_the_restored_one(sqlite_home: Path) -> None:
    running = Store.open(home=sqlite_home)
    made = make_pool(running)
    path = backups.backup(running)
    damage(sqlite_home / "winnow.sqlite", "header")
    with Store.unopened(home=sqlite_home) as closed:
        restore(closed, path)
    assert made.pool.label(made.items[0], made.classes[0], annotator=made.ann).accepted
    running.close()
    with Store.open(home=sqlite_home) as store:
        assert make_count(store) == 1


def test_no_acknowledged_label_is_lost_while_a_restore_runs(store: Store) -> None:
    """A label is in the store after the restore, or in the safety backup of the replaced store."""
    made = make_pool(store, 400)
    path = backups.backup(store)
    acknowledged: set[str] = set()
    stop = threading.Event()
    people = [threading.Thread(target=label_all, args=(made, part, acknowledged, stop)) for part in range(4)]
    for person in people:
        person.start()
    kept: list[Path] = []
    try:
        while len(kept) < 3 or (len(acknowledged) <= 20 and len(kept) < 30):
            before = restore(store, path)
            assert before is not None
            kept.append(before)
    finally:
        stop.set()
        for person in people:
            person.join(120)
    assert len(acknowledged) > 20
    found = event_ids(store)
    for before in kept:
        with contextlib.closing(sqlite3.connect(before)) as connection:
            found |= {row[0] for row in connection.execute("SELECT uuid FROM label_events")}
    assert sorted(acknowledged - found) == []


@pytest.mark.postgres
def test_a_writer_that_waits_too_long_for_a_restore_gets_the_message_to_try_again(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "WAIT_SECONDS", 1.0)
    with Store.open(postgres_url, tmp_path / "home") as store, store.engine.connect() as connection:
        made = make_pool(store)
        with locked_tables(connection), pytest.raises(StoreUnusable, match="Try again"):
            made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
        assert made.pool.label(made.items[0], made.classes[0], annotator=made.ann).accepted


@pytest.mark.postgres
def test_a_restore_into_an_incomplete_server_says_what_to_do(postgres_url: str, tmp_path: Path) -> None:
    with Store.open(postgres_url, tmp_path / "home") as store:
        path = backups.backup(store)
        with store.write() as connection:
            connection.execute(text("DROP TABLE winnow_version"))
        with pytest.raises(StoreUnusable, match="create an empty database"):
            restore(store, path)


def label_all(made: Made, part: int, acknowledged: set[str], stop: threading.Event) -> None:
    position = part
    while not stop.is_set():
        item, position = made.items[position % len(made.items)], position + 4
        name = str(uuid.uuid4())
        if made.pool.label(item, made.classes[position % 2], annotator=made.ann, uuid=name).accepted:
            acknowledged.add(name)


def event_ids(store: Store) -> set[str]:
    with store.read() as connection:
        return set(connection.execute(select(LabelEvent.uuid)).scalars())


def make_count(store: Store) -> int:
    return len(event_ids(store))
