"""Fixtures for all packages: a fresh store on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine

from storage.database import migrate
from storage.database import store as store_module
from storage.database.store import Store
from tests.postgres_server import Server, empty_tables, find_binaries, running_server

gc.disable()  # until all tests are collected: garbage collection takes a fifth of the time of the imports

# One thread for arithmetic in each test process, unless set otherwise. Test processes share the cores with each other
# and with the servers they start, and OpenMP threads that wait for a busy core spin: on two busy cores, one file of
# core tests took 5.6 s of CPU time instead of 31 s. Tests that set two threads let them sleep. Set before torch is
# imported; child processes inherit it.
for variable, value in (("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "PASSIVE")):
    os.environ.setdefault(variable, value)

# Temporary files are in memory if there is room, unless TMPDIR is set: stores sync every write to the disk, and tests
# make thousands of writes. Tests of system calls and of killed processes check that writes are synced.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 6 * 2**30
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

ROOT = Path(__file__).parents[1]

# Approximate seconds of a test with this mark; `slow(60)` states another number. Other tests: 0.1.
SECONDS = {"browser": 5.0, "slow": 5.0, "postgres": 1.0}

# Examples of Hypothesis have no deadline, because test machines are busy. The tests reset their fixtures themselves.
UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("unhurried", deadline=None, suppress_health_check=UNHURRIED)
settings.load_profile("unhurried")


def share_compiled_statements() -> None:
    """Let the SQLite engines of a test process share one dialect with its compiled statements. SQLAlchemy keeps these
    per engine, every test has its own engines, and compiling takes a third of the time of a small test."""
    create, first_engine = store_module.create_engine, dict[str, Engine]()

    def create_sharing(url: str, **options: Any) -> Engine:
        engine = create(url, **options)
        if engine.dialect.name == "sqlite":
            first = first_engine.setdefault("sqlite", engine)
            engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    store_module.create_engine = create_sharing


share_compiled_statements()


class CopiedMigrations:
    """Migrates one empty SQLite store per test process and copies it for other empty stores: the migrations take a
    third of the time of a test that opens its own store. Tests of the database migrate each store."""

    copies = True  # set before each test

    def __init__(self) -> None:
        self._migrated: sqlite3.Connection | None = None
        self._upgrade, migrate.upgrade = migrate.upgrade, self

    def __call__(self, engine: Engine, backup: migrate.Backup | None, target: str = "head") -> None:
        if backup is not None or target != "head" or engine.dialect.name != "sqlite" or not self.copies:
            self._upgrade(engine, backup, target)
            return
        path = engine.url.database
        assert path is not None
        if self._migrated is None:
            self._upgrade(engine, backup, target)
            self._migrated = sqlite3.connect(":memory:", check_same_thread=False)
            with closing(sqlite3.connect(path)) as made:
                made.backup(self._migrated)
            return
        with closing(sqlite3.connect(path)) as empty:
            self._migrated.backup(empty)


copied_migrations = CopiedMigrations()


def pytest_runtest_setup(item: pytest.Item) -> None:
    copied_migrations.copies = "database" not in item.path.parts


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a fresh clone pytest rewrites and compiles every test file. Each process of a parallel run begins with other
    files and finds the bytecode of the rest, which the other processes have written meanwhile."""
    config = session.config
    worker = getattr(config, "workerinput", None)  # of pytest-xdist
    if worker is None or sys.flags.dont_write_bytecode:
        return
    here = config.invocation_params.dir
    left_out = [here / name for name in config.getoption("ignore") or ()]
    places = [here / name.partition("::")[0] for name in config.args]
    found = {file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place])}
    files = sorted(file for file in found if not any(file.is_relative_to(folder) for folder in left_out))
    first = int(worker["workerid"].removeprefix("gw")) * len(files) // worker["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):  # collection reports it
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(trylast=True)  # when all marks are set
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, so that the processes of a parallel run, which get one file at a time, end together."""
    seconds: Counter[Path] = Counter()
    for item in items:
        marks = [(*mark.args, SECONDS[mark.name])[0] for mark in item.iter_markers() if mark.name in SECONDS]
        seconds[item.path] += max(marks, default=0.1)
    items.sort(key=lambda item: -seconds[item.path])  # stable: the tests of a file stay together, in their order


def pytest_collection_finish() -> None:
    """Freeze modules and collected tests, which live until the end, so that garbage collection does not visit them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def missing(what: str) -> None:
    """Skip the test with a reason, or fail if the run must be complete (CI=true)."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine, threads wait for each other much longer than these small computations take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        missing("There is no PostgreSQL server; install Debian's postgresql package to run this test.")
    assert binaries is not None
    with running_server(binaries) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """The address of an empty database."""
    address = postgres_server.new_database()
    yield address
    postgres_server.drop(address)


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite store, made once and copied for each test."""
    home = tmp_path_factory.mktemp("template")
    Store.open(home=home).close()
    return home / "winnow.sqlite"


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_server: Server) -> str:
    """A migrated database, made once and emptied for each test."""
    return postgres_server.new_database()


@pytest.fixture
def sqlite_home(empty_sqlite: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(empty_sqlite, home / "winnow.sqlite")
    return home


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store, on each database in turn."""
    if request.param == "sqlite":
        with Store.open(home=request.getfixturevalue("sqlite_home")) as opened:
            yield opened
        return
    with Store.open(request.getfixturevalue("shared_postgres_url"), tmp_path / "home") as opened:
        empty_tables(opened)
        yield opened


@pytest.fixture
def sqlite_store(sqlite_home: Path) -> Iterator[Store]:
    with Store.open(home=sqlite_home) as opened:
        yield opened
