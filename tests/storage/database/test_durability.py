"""Acknowledged labels are on disk: after kill -9, after a damaged WAL tail, after a power failure."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select, text

from storage.database.schema import LabelEvent
from storage.database.store import Store
from storage.labeling.pool import Pool
from tests.conftest import missing
from tests.storage.pools import event, make_pool

pytestmark = pytest.mark.slow

WRITER = """
import sys, uuid
from pathlib import Path
from storage.labeling.events import LabelInput
from storage.database.store import Store
from storage.labeling.pool import Pool
store = Store.open(home=Path(sys.argv[1]))
pool = Pool(store, 1)
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    one = LabelInput(uuid=str(uuid.uuid4()), item_id=1 + number % 50, kind="label", class_id=1 + number % 3)
    assert pool.apply([one], annotator=1)[0].accepted
    print(one.uuid, flush=True)
print("done", flush=True)
"""


def writer(home: Path, n_labels: int, *prefix: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [*prefix, sys.executable, "-c", WRITER, str(home), str(n_labels)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def stored_uuids(store: Store) -> set[str]:
    with store.read() as connection:
        return set(connection.execute(select(LabelEvent.uuid)).scalars())


def integrity(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_at_200_random_points_of_label_bursts_loses_none_acknowledged(sqlite_store: Store) -> None:
    """Writers of 1,000 labels, killed at random points; the file is intact after every tenth kill and opens at the
    end."""
    made = make_pool(sqlite_store, 50)
    sqlite_store.close()
    acknowledged: set[str] = set()
    for seed in range(2):
        command = [sys.executable, "-m", "tests.storage.bursts", str(sqlite_store.home), "100", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
        lines = done.stdout.split("\n")
        assert lines.count("integrity ok") == 10
        acknowledged |= {line for line in lines if len(line) == 36}
        assert integrity(sqlite_store.home / "winnow.sqlite") == "ok"
    with Store.open(home=sqlite_store.home) as store:
        assert len(acknowledged) >= 200
        assert acknowledged <= stored_uuids(store)
        assert Pool(store, made.project_id).rebuild() == 0


@pytest.mark.timeout(900)
def test_1000_rapid_label_writes_killed_in_the_middle_are_kept_as_far_as_acknowledged(sqlite_store: Store) -> None:
    """With a process that opens the store like the app."""
    make_pool(sqlite_store, 50)
    sqlite_store.close()
    with writer(sqlite_store.home, 1_000) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        lines = [process.stdout.readline() for _ in range(60)]
        process.send_signal(signal.SIGKILL)
        lines += [line for line in process.stdout if line.endswith("\n")]
    with Store.open(home=sqlite_store.home) as store:
        assert {line.strip() for line in lines} <= stored_uuids(store)
    assert integrity(sqlite_store.home / "winnow.sqlite") == "ok"


def crash_image(home: Path, target: Path) -> Path:
    """The files that a killed process leaves: the database and its WAL, without the shared index."""
    target.mkdir()
    for name in ("winnow.sqlite", "winnow.sqlite-wal"):
        shutil.copy(home / name, target / name)
    return target


@pytest.mark.parametrize("damage", ["cut", "garbled", "extended"])
def test_a_damaged_wal_tail_loses_at_most_what_was_not_acknowledged(
    sqlite_store: Store, tmp_path: Path, damage: str
) -> None:
    """The tail behind the last acknowledged commit is cut off, overwritten or followed by noise."""
    made = make_pool(sqlite_store, 20)
    sqlite_store.close()
    with Store.open(home=sqlite_store.home) as store:
        pool = Pool(store, made.project_id)
        sure = [event(item, class_id=made.classes[0]) for item in made.items[:10]]
        for one in sure:
            pool.apply([one], annotator=made.ann)
        wal = store.home / "winnow.sqlite-wal"
        safe_length = wal.stat().st_size
        pool.apply([event(made.items[15], class_id=made.classes[1])], annotator=made.ann)
        assert wal.stat().st_size > safe_length, "the next commit went behind the acknowledged ones"
        image = crash_image(store.home, tmp_path / "image")
    data = bytearray((image / "winnow.sqlite-wal").read_bytes())
    chance = random.Random(9)
    if damage == "cut":
        data = data[: chance.randrange(safe_length + 1, len(data))]
    elif damage == "garbled":
        for place in range(safe_length, len(data), 7):
            data[place] ^= 0x5A
    else:
        data += chance.randbytes(50_000)
    (image / "winnow.sqlite-wal").write_bytes(bytes(data))
    with Store.open(home=image) as store:
        assert {one.uuid for one in sure} <= stored_uuids(store)
        assert Pool(store, made.project_id).rebuild() == 0
        assert Pool(store, made.project_id).label(made.items[16], made.classes[0], annotator=made.ann).accepted
    assert integrity(image / "winnow.sqlite") == "ok"


def synced_before_each_answer(trace: str) -> list[bool]:
    """For each acknowledged uuid: whether the WAL was synced after its last write and before the uuid was printed."""
    clean, answers = True, []
    for line in trace.splitlines():
        if re.search(r"\bpwrite64\(\d+<[^>]*-wal>", line):
            clean = False
        elif re.search(r"\bf(data)?sync\(\d+<[^>]*-wal>", line) and line.rstrip().endswith("= 0"):
            clean = True
        elif re.search(r'\bwrite\(1<[^>]*>, "[0-9a-f]{8}-', line):
            answers.append(clean)
    return answers


def traced(home: Path, trace: Path) -> list[bool]:
    calls = "trace=pwrite64,write,fsync,fdatasync"
    with writer(home, 25, "strace", "-f", "-y", "-s", "12", "-e", calls, "-o", str(trace)) as process:
        process.communicate(timeout=400)
    return synced_before_each_answer(trace.read_text(errors="replace"))


def need_strace() -> None:
    if shutil.which("strace") is None:
        missing("There is no strace; install Debian's strace package to see that labels are synced.")


@pytest.mark.timeout(900)
def test_every_acknowledged_label_was_synced_to_the_disk_before_the_answer(sqlite_store: Store, tmp_path: Path) -> None:
    """A power failure loses the writes that were not synced. A block device that drops unsynced writes needs a kernel
    module that containers lack, so the test traces system calls: every acknowledgment must come after an fsync of the
    WAL that came after its last write. With synchronous=NORMAL the same check fails (negative control)."""
    need_strace()
    make_pool(sqlite_store, 50)
    sqlite_store.close()
    answers = traced(sqlite_store.home, tmp_path / "trace")
    if not answers:
        missing("strace may not trace processes here.")
    assert answers == [True] * 25


def test_without_full_synchronisation_the_check_above_would_fail(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the same writer with synchronous=NORMAL acknowledges labels before the WAL is synced."""
    need_strace()
    make_pool(sqlite_store, 50)
    sqlite_store.close()
    relaxed = WRITER.replace(
        "pool = Pool",
        "from sqlalchemy import event as e\n"
        "e.listen(store.engine, 'connect', lambda raw, _: raw.execute('PRAGMA synchronous=NORMAL') and None)\n"
        "store.engine.dispose()\n"
        "pool = Pool",
    )
    monkeypatch.setitem(globals(), "WRITER", relaxed)
    answers = traced(sqlite_store.home, tmp_path / "trace")
    if not answers:
        missing("strace may not trace processes here.")
    assert False in answers


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_connection_lost_between_commit_and_answer_makes_the_retry_harmless(store: Store) -> None:
    """The server ends the session right after the commit, before the caller gets the response."""
    from sqlalchemy import event as listen

    from core.errors import StoreUnusable

    made = make_pool(store)
    given = event(made.items[0], class_id=made.classes[0])
    lost = []

    def commit_then_lose(connection) -> None:  # type: ignore[no-untyped-def]
        if not lost:
            lost.append(True)
            connection.connection.dbapi_connection.commit()
            process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with store._reader.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": process})

    listen.listen(store.engine, "commit", commit_then_lose)
    with pytest.raises(StoreUnusable, match="closed the connection before it answered"):
        made.pool.apply([given], annotator=made.ann)
    listen.remove(store.engine, "commit", commit_then_lose)
    assert made.pool.apply([given], annotator=made.ann)[0].accepted
    assert [row.uuid for row in made.pool.history(made.items[0])] == [given.uuid]
    assert made.pool.counts().labeled == 1


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_read_whose_connection_is_lost_says_to_try_again_and_the_next_one_works(store: Store) -> None:
    """When a drill killed the database, pages that only read returned internal errors."""
    from core.errors import StoreUnusable

    made = make_pool(store)
    message = "closed the connection before it answered: "
    with pytest.raises(StoreUnusable, match=message), store.read() as connection:
        process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with store.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": process})
        connection.exec_driver_sql("SELECT 1")
    assert made.pool.counts().total == len(made.items)
