"""Many writers at once: no request fails because the database is locked, and none waits for long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from benchmarks.contention import bound
from core.errors import StoreUnusable
from storage.database.store import Store
from storage.projects.annotators import annotator_named, list_annotators
from storage.system import file_lock
from tests.storage.pools import make_pool


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_eight_writers_an_import_and_a_trainer_share_one_file(sqlite_store: Store) -> None:
    """No "database is locked", and no long waits. The test takes six seconds and uses ten times the bound, because the
    machine may have other load; `make bench NAME=contention` runs the same processes for one minute with the strict
    bound."""
    made = make_pool(sqlite_store, 3_000)
    sqlite_store.close()
    command = [sys.executable, "-m", "tests.storage.crowd", str(sqlite_store.home), "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    result = json.loads(done.stdout)
    assert result["errors"] == []
    assert min(result["labels"]) >= 1, f"every writer succeeds: {result['labels']}"
    assert result["p99_seconds"] < 10 * bound(result["alone_seconds"])
    with Store.open(home=sqlite_store.home):
        n_labels = sum(result["labels"]) + result["alone_labels"]
        assert made.pool.counts().labeled == n_labels, "every label is stored, none twice"
        assert made.pool.rebuild() == 0


def test_concurrent_requests_for_the_same_name_create_one_annotator(store: Store) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(annotator_named(store, "Ann").id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert [row.name for row in list_annotators(store)] == ["Ann"]


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_deadlock_is_resolved_by_beginning_again(store: Store) -> None:
    """Two transactions that lock two rows in opposite order: the server ends one, and it runs again."""
    rows = [annotator_named(store, name).id for name in ("Ann", "Bob")]
    barrier, attempts = threading.Barrier(2), []

    def swap(first: int, second: int) -> None:
        def work(connection) -> None:  # type: ignore[no-untyped-def]
            attempts.append(first)
            statement = text("UPDATE annotators SET name = name || 'x' WHERE id = :id")
            connection.execute(statement, {"id": first})
            if len(attempts) <= 2:
                barrier.wait(180)
            connection.execute(statement, {"id": second})

        store.run(work)

    threads = [threading.Thread(target=swap, args=pair) for pair in (rows, rows[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attempts) > 2
    assert [row.name for row in list_annotators(store)] == ["Annxx", "Bobxx"]


def test_a_full_disk_gives_a_message_and_nothing_is_stored(sqlite_store: Store) -> None:
    """SQLite's limit on pages has the same effect as a full disk."""
    made = make_pool(sqlite_store)
    with sqlite_store.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreUnusable, match=r"The disk of the database is full, so nothing was saved\. Free"):
        made.pool.label(made.items[0], made.classes[0], annotator=made.ann, note="x" * 100_000)
    with sqlite_store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    assert made.pool.history(made.items[0]) == []
    assert made.pool.label(made.items[0], made.classes[0], annotator=made.ann).accepted


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_full_disk_of_postgresql_gives_the_same_sentence(store: Store) -> None:
    """A file that cannot be extended has the code of a full disk, and a sentence without these words."""
    full = "DO $$ BEGIN RAISE 'could not extend file: wrote only 4096 of 8192 bytes' USING ERRCODE = '53100'; END $$"
    for opened in (store.write, store.read):
        with pytest.raises(StoreUnusable, match=r"The disk of the database is full"), opened() as connection:
            connection.exec_driver_sql(full)


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
        pytest.raises(StoreUnusable, match="was not free for 0 s: another process holds it"),
        file_lock.file_lock(path, "The lock", seconds=0.05),
    ):
        raise AssertionError
    with file_lock.file_lock(path, "The lock", seconds=0.05):
        pass


def test_a_process_that_released_the_lock_does_not_overtake_one_that_waits_for_it(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A process that writes in a loop alternates with the others: once another process waits in the queue, it is served
    after that process."""
    path, turns, started, served = tmp_path / "lock", [0], threading.Event(), threading.Event()
    wait_for_lock, at_the_door = file_lock.wait_for_lock, list[int]()  # turns taken when this thread entered the queue

    def noting(descriptor: int, what: str, deadline: float, pause: float) -> None:
        wait_for_lock(descriptor, what, deadline, pause)
        if pause == file_lock.QUEUE_PAUSE and threading.current_thread() is not thread:
            at_the_door.append(turns[0])

    def greedy() -> None:
        while not served.is_set():
            with file_lock.file_lock(path, "The lock"):
                turns[0] += 1
                started.set()
                time.sleep(0.02)

    thread = threading.Thread(target=greedy)
    monkeypatch.setattr(file_lock, "wait_for_lock", noting)
    thread.start()
    try:
        for number in range(10):
            assert started.wait(180)  # the process in the loop holds the lock
            with file_lock.file_lock(path, "The lock"):
                assert len(at_the_door) == number + 1
                overtaken = turns[0] - at_the_door[-1]
                assert overtaken <= 1, f"overtaken {overtaken} times"  # by the one that was first in the queue
                started.clear()
    finally:
        served.set()
        thread.join()
