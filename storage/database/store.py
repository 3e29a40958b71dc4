"""The store: one database (SQLite or PostgreSQL) and the folders beside it.

SQLite     WAL, synchronous=FULL (a committed label has reached the disk), foreign keys, no mmap. A write begins with
           BEGIN IMMEDIATE and holds a lock file until the automatic checkpoint after its commit has ended. One
           process at a time writes or checkpoints, writers are served in order, and the race between a checkpoint
           and a writer in SQLite before 3.51.3 cannot occur.
PostgreSQL writes are READ COMMITTED and lock the rows they depend on; reads are REPEATABLE READ, READ ONLY.

`Store.open` refuses a store it cannot use safely (`storage.database.checks`) and migrates an older one after a backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import QueuePool

from core.errors import StoreUnreachable, StoreUnusable
from storage.database import checks as store_checks
from storage.database import locations
from storage.media.folder import MediaFolder
from storage.rounds.artifacts import ArtifactFolder
from storage.system.file_lock import file_lock

WAIT_SECONDS = 60.0  # for another writer
TRIES = 5
DEADLOCKS = ("40P01", "40001")  # PostgreSQL: deadlock detected, serialization failure
DISK_FULL = "53100"  # PostgreSQL: disk full, whatever the language of its message
LOCK_TIMEOUT = "55P03"  # PostgreSQL: a lock was not free in time
Result = TypeVar("Result")


def now() -> datetime:
    """The store's clock: UTC, aware."""
    return datetime.now(UTC)


class Store:
    """An open store. It may be shared between threads, but not between processes: open one per process."""

    def __init__(self, url: str, home: Path, artifacts_address: str | None = None) -> None:
        self.url = url
        self.home = home
        self.artifacts_address = artifacts_address or str(home / "artifacts")
        self.warnings: tuple[str, ...] = ()
        self.engine = make_engine(url)
        self._reader = make_engine(url, read_only=True) if self.is_sqlite else self.engine
        self._writing = threading.local()
        self._path = store_checks.sqlite_path(url) if self.is_sqlite else None
        self._file: tuple[int, int] | None = None  # device and inode of the SQLite file that connections have open

    @classmethod
    def unopened(cls, url: str | None = None, home: Path | None = None) -> Store:
        """The store at these addresses, neither checked nor migrated, for a restore. Defaults: the environment's."""
        environment = locations.from_environment()
        artifacts = environment.artifacts if home is None else None
        home = Path(home).absolute() if home is not None else environment.home
        if url is None:
            url = environment.database_url if home == environment.home else locations.database_url(None, home)
        return cls(locations.database_url(url, home), home, artifacts)

    @classmethod
    def open(cls, url: str | None = None, home: Path | None = None, migrate: bool = True) -> Store:
        """Open the store. An older one is migrated if `migrate`, else refused. Defaults: the environment's."""
        store = cls.unopened(url, home)
        try:
            store.warnings = store_checks.prepare(store.url, store.home, store.engine, may_migrate=migrate)
        except BaseException:
            store.close()
            raise
        return store

    @cached_property
    def is_sqlite(self) -> bool:
        return make_url(self.url).get_backend_name() == "sqlite"

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only connection with one consistent snapshot for the length of the block."""
        self._follow_file()
        try:
            with self._reader.connect() as connection:
                if not self.is_sqlite:
                    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with connection.begin():
                    yield connection
        except OperationalError as error:
            if (problem := _disk_full(error) or _lost_connection(error, self.url)) is None:
                raise
            raise problem from error

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction: on disk when the block ends, rolled back if it raises."""
        if getattr(self._writing, "busy", False):
            raise RuntimeError("store.write() was entered again inside its own block; pass the connection instead.")
        self._writing.busy = True
        try:
            with self._write_lock(), self.engine.connect() as connection, connection.begin():
                yield connection
        except OperationalError as error:
            if (problem := explained(error, self.url)) is None:
                raise
            raise problem from error
        finally:
            self._writing.busy = False

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` in one write transaction; repeat it if PostgreSQL aborts it to resolve a deadlock."""
        tries_left = TRIES
        while True:
            tries_left -= 1
            try:
                with self.write() as connection:
                    return work(connection)
            except OperationalError as error:
                if not tries_left or getattr(error.orig, "sqlstate", None) not in DEADLOCKS:
                    raise
            time.sleep(random.uniform(0.0, 0.1))  # so that the transactions do not collide again

    @contextlib.contextmanager
    def _write_lock(self) -> Iterator[None]:
        """The lock that lets one process at a time write to a SQLite file; PostgreSQL locks rows itself."""
        if not self.is_sqlite:
            yield
            return
        with file_lock(store_checks.lock_path(self.url), "The store's write lock", WAIT_SECONDS):
            self._follow_file()
            yield

    def _follow_file(self) -> None:
        """Drop connections to a SQLite file that a restore has replaced: their writes would go to the old file."""
        if not self.is_sqlite:
            return
        try:
            status = os.stat(self._path or "")
        except FileNotFoundError:
            return
        found = (status.st_dev, status.st_ino)
        if self._file not in (None, found):
            self.close()
        self._file = found

    @cached_property
    def artifacts(self) -> ArtifactFolder:
        return ArtifactFolder(self.artifacts_address, self.home / "cache" / "artifacts")

    @cached_property
    def media(self) -> MediaFolder:
        return MediaFolder(self.home / "media")

    def close(self) -> None:
        self.engine.dispose()
        self._reader.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def explained(error: OperationalError, url: str) -> StoreUnusable | None:
    """The error to show for a full disk, a read-only file or a lost connection; None for other errors."""
    text = str(error.orig).lower()
    if (problem := _disk_full(error)) is not None:
        return problem
    if "readonly" in text or "read-only" in text:
        return StoreUnusable(f"{locations.shown(url)} is read-only, so nothing was saved. Make it writable.")
    if getattr(error.orig, "sqlstate", None) == LOCK_TIMEOUT:
        return StoreUnusable(
            f"Another writer kept the database busy for {WAIT_SECONDS:.0f} s, so nothing was saved. Try again."
        )
    return _lost_connection(error, url)


def _disk_full(error: OperationalError) -> StoreUnusable | None:
    text = str(error.orig).lower()
    if getattr(error.orig, "sqlstate", None) == DISK_FULL or "disk is full" in text or "no space left" in text:
        return StoreUnusable("The disk of the database is full, so nothing was saved. Free some space and try again.")
    return None


def is_outage(error: BaseException) -> bool:
    """Whether the connection to the database was lost or refused."""
    if isinstance(error, OperationalError):
        return error.connection_invalidated or "connection" in str(error.orig).lower()
    return isinstance(error, StoreUnreachable)


def _lost_connection(error: OperationalError, url: str) -> StoreUnreachable | None:
    if is_outage(error):
        return StoreUnreachable(
            f"The database at {locations.shown(url)} closed the connection before it answered: {error.orig} Try again."
        )
    return None


def insert_for(connection: Connection, table: Any) -> Any:
    """An INSERT in the connection's dialect, with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def strict_json(value: Any) -> str:
    """JSON that every database accepts: no NaN, no Infinity."""
    return json.dumps(value, allow_nan=False, sort_keys=True)


def make_engine(url: str, read_only: bool = False) -> Engine:
    """An engine with the settings described above; on SQLite, `read_only` engines cannot write."""
    if make_url(url).get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=4,
            max_overflow=28,
            json_serializer=strict_json,
            connect_args={"timeout": WAIT_SECONDS, "check_same_thread": False},
        )
        _listen_sqlite(engine, read_only)
        return engine
    return create_engine(
        url,
        pool_size=4,
        max_overflow=28,
        pool_pre_ping=True,
        json_serializer=strict_json,
        connect_args={
            "connect_timeout": 10,
            "options": f"-c timezone=UTC -c lock_timeout={WAIT_SECONDS:.0f}s",
            "application_name": "winnow",
        },
    )


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _listen_sqlite(engine: Engine, read_only: bool) -> None:
    """Begin transactions explicitly: the driver's implicit ones begin too late and in the wrong mode."""

    def on_connect(raw: sqlite3.Connection, record: object) -> None:
        raw.isolation_level = None
        for pragma in ("foreign_keys=ON", "synchronous=FULL", "mmap_size=0", "temp_store=MEMORY"):
            raw.execute(f"PRAGMA {pragma}")
        raw.create_function("lower", 1, _lower, deterministic=True)  # SQLite's own handles ASCII only
        if read_only:
            raw.execute("PRAGMA query_only=ON")

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
