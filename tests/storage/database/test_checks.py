"""A store is opened safely, or refused with a message that says what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, text

from core.errors import InvalidInput, StoreUnusable
from storage.database import backup_files, backups, locations, migrate
from storage.database import checks as store_checks
from storage.database.declarative import UtcDateTime
from storage.database.restore import restore
from storage.database.schema import METADATA
from storage.database.store import Store, make_engine
from storage.projects.projects import ProjectSettings, get_project
from tests.storage.pools import make_pool


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_sqlite_runs_with_the_settings_that_the_guarantees_need(sqlite_store: Store) -> None:
    with sqlite_store.write() as connection:
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "mmap_size")
        }
    assert found.pop("mmap_size") in (0, None), "None: SQLite was built without it"
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_migrations_make_exactly_the_tables_of_the_schema(store: Store) -> None:
    def same_type(context, inspected, declared, inspected_type, declared_type):  # type: ignore[no-untyped-def]
        return None if not isinstance(declared_type, UtcDateTime) else False

    with store.engine.connect() as connection:
        options = {"version_table": migrate.VERSION_TABLE, "compare_type": same_type}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, METADATA) == []


def test_a_read_cannot_write(store: Store) -> None:
    from sqlalchemy.exc import DBAPIError

    with pytest.raises(DBAPIError), store.read() as connection:
        connection.execute(text("DELETE FROM projects"))


def test_a_read_sees_one_moment(store: Store) -> None:
    made = make_pool(store)
    count = text("SELECT count(*) FROM label_events")
    with store.read() as connection:
        before = connection.execute(count).scalar()
        made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
        assert connection.execute(count).scalar() == before == 0
    with store.read() as connection:
        assert connection.execute(count).scalar() == 1


def test_a_write_that_raises_leaves_nothing_and_is_not_nested(store: Store) -> None:
    made = make_pool(store)
    with pytest.raises(ZeroDivisionError), store.write() as connection:
        connection.execute(text("UPDATE projects SET name = 'changed'"))
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="entered again"), store.write(), store.write():
        raise AssertionError
    assert made.pool.label(made.items[0], made.classes[0], annotator=made.ann).accepted
    assert get_project(store, made.project_id).name == "birds"


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"does not exist\. Create it, mount the disk, or set WINNOW_HOME"):
        Store.open(home=tmp_path / "not" / "there")
    with pytest.raises(StoreUnusable, match=r"The folder .* of the database does not exist\. Create it"):
        Store.open(f"sqlite:///{tmp_path}/nowhere/winnow.sqlite", tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnusable, match="cannot be created"):
        Store.open(home=tmp_path / "file" / "home")


READ_ONLY = """
import os, sys
from pathlib import Path
from core.errors import StoreUnusable
from storage.database.store import Store
if os.getuid() == 0:  # root may write everywhere: become an ordinary user, now that all modules are loaded
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    Store.open(home=Path(sys.argv[1]))
except StoreUnusable as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_database_is_refused(sqlite_home: Path, what: str) -> None:
    place = sqlite_home / "winnow.sqlite" if what == "file" else sqlite_home
    (sqlite_home / "winnow.sqlite").chmod(0o444 if what == "file" else 0o666)
    sqlite_home.chmod(0o777 if what == "file" else 0o555)
    for parent in sqlite_home.parents:
        if os.stat(parent).st_uid == os.getuid() and parent.name.startswith(("pytest", "popen-", "test_")):
            parent.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", READ_ONLY, str(sqlite_home)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.startswith(f"{place} is read-only for this user. Make it writable"), done.stderr


def test_a_store_of_a_newer_version_is_refused_and_left_alone(sqlite_home: Path) -> None:
    path = sqlite_home / "winnow.sqlite"
    run_sql(path, "UPDATE winnow_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"written by a newer version of Winnow\. Install that version"):
        Store.open(home=sqlite_home)
    assert path.read_bytes() == before
    assert not (sqlite_home / "backups").exists()


@pytest.mark.parametrize(
    "damage",
    [
        ["DROP TABLE winnow_version"],
        ["DELETE FROM winnow_version"],
        ["DROP TABLE picks"],
        ["ALTER TABLE items DROP COLUMN condition_note"],
    ],
)
def test_a_half_applied_migration_is_refused_with_what_to_do(sqlite_home: Path, damage: list[str]) -> None:
    run_sql(sqlite_home / "winnow.sqlite", *damage)
    with pytest.raises(StoreUnusable, match=r"a migration did not finish\. Restore the newest backup"):
        Store.open(home=sqlite_home)


def test_a_migration_that_fails_leaves_the_old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed or failed in the middle, all steps are undone: the transaction is around all of them."""
    from storage.database.migrations.versions import v0001_first_tables as first

    def fail() -> None:
        raise RuntimeError("power cut")

    original = migrate.scripts

    def scripts_with_failure():  # type: ignore[no-untyped-def]
        directory = original()
        step = directory.get_revision("0001").module
        monkeypatch.setattr(step, "picks", fail)
        return directory

    monkeypatch.setattr(migrate, "scripts", scripts_with_failure)
    with pytest.raises(RuntimeError, match="power cut"):
        Store.open(home=tmp_path / "home")
    monkeypatch.undo()
    assert first.revision == "0001"
    with Store.open(home=tmp_path / "home") as store:
        assert make_pool(store).pool.counts().total == 10


def make_old(engine: Engine) -> None:
    """A store in the form of the first version, with a project in it."""
    migrate.upgrade(engine, None, target="0001")
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO projects (name, kind, guidelines, settings, revision, created_at) "
                "VALUES ('old', 'audio', '', '{}', 1, '2024-01-01 00:00:00')"
            )
        )


def test_an_older_store_is_backed_up_before_it_is_migrated(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    engine = make_engine(f"sqlite:///{home}/winnow.sqlite")
    make_old(engine)
    engine.dispose()
    with pytest.raises(StoreUnusable, match="written by an older version"):
        Store.open(home=home, migrate=False)
    assert backup_files.listed(home) == []
    with Store.open(home=home) as store:
        assert get_project(store, "old").settings == ProjectSettings()
        with store.engine.connect() as connection:
            assert migrate.version(connection) == migrate.head() != "0001"
    [copy] = backup_files.listed(home, "before-migration")
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT version_num FROM winnow_version").fetchone()[0] == "0001"
        assert connection.execute("SELECT name FROM projects").fetchone()[0] == "old"
    connection.close()
    with Store.open(home=home) as store:
        restore(store, copy)
        assert get_project(store, "old").kind == "audio", "an old backup is migrated when it is restored"


@pytest.mark.postgres
def test_an_older_server_is_dumped_before_it_is_migrated(postgres_url: str, tmp_path: Path) -> None:
    engine = make_engine(postgres_url)
    make_old(engine)
    engine.dispose()
    with Store.open(postgres_url, tmp_path / "home") as store:
        assert get_project(store, "old").kind == "audio"
    dumps = list((tmp_path / "home" / "backups").iterdir())
    assert [path.suffix for path in dumps] == ([".pgdump"] if shutil.which("pg_dump") else [])


def test_a_damaged_file_is_refused_and_a_huge_one_is_not_read_through(sqlite_store: Store) -> None:
    make_pool(sqlite_store, 300)
    sqlite_store.close()
    path = sqlite_store.home / "winnow.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8192] + b"\x5a" * 8192)  # pages of rows, not of the schema
    with pytest.raises(StoreUnusable, match=r"is damaged .* restore the newest backup"):
        Store.open(home=sqlite_store.home)
    store_checks.check_health(path, limit=1_000)
    path.write_bytes(b"not a database at all" * 1_000)
    with pytest.raises(StoreUnusable, match="is damaged"):
        Store.open(home=sqlite_store.home)


MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/export /mnt/team nfs4 rw 0 0
/dev/sdb1 /mnt/team/local ext4 rw 0 0
//nas/share /mnt/with\\040space cifs rw 0 0
"""


def test_network_filesystems_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real NFS mount is not possible in tests, so the kernel's list of mounts is replaced."""
    kinds = {
        folder: store_checks.filesystem_of(Path(folder), MOUNTS)
        for folder in ("/home", "/mnt/team/a", "/mnt/team/local")
    }
    assert kinds == {"/home": "ext4", "/mnt/team/a": "nfs4", "/mnt/team/local": "ext4"}
    assert store_checks.filesystem_of(Path("/mnt/with space/x"), MOUNTS) == "cifs"
    with pytest.raises(StoreUnusable, match=r"network filesystem \(nfs4\).* Set WINNOW_HOME to a local disk or use"):
        store_checks.network_warnings(Path("/mnt/team/a"), MOUNTS)
    monkeypatch.setenv(store_checks.ALLOW_NETWORK, "1")
    assert "network filesystem" in store_checks.network_warnings(Path("/mnt/team/a"), MOUNTS)[0]


def test_addresses_come_from_the_environment(tmp_path: Path) -> None:
    found = locations.from_environment({"WINNOW_HOME": str(tmp_path), "WINNOW_PORT": "9000"})
    assert found == locations.Locations(
        home=tmp_path,
        database_url=f"sqlite:///{tmp_path}/winnow.sqlite",
        artifacts=f"{tmp_path}/artifacts",
        host="127.0.0.1",
        port=9000,
    )
    url = locations.database_url("postgres://ann:secret@db/winnow", tmp_path)
    assert url == "postgresql+psycopg://ann:secret@db/winnow"
    assert "secret" not in locations.shown(url)


@pytest.mark.parametrize("bad", ["mysql://x/y", "sqlite://", "not an address", "sqlite:///:memory:"])
def test_other_databases_are_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidInput, match="WINNOW_DATABASE_URL"):
        locations.database_url(bad, tmp_path)


@pytest.mark.parametrize("port", ["0", "70000", "abc", "-1", "²"])
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(InvalidInput, match="WINNOW_PORT"):
        locations.from_environment({"WINNOW_PORT": port})


def test_a_server_that_cannot_be_reached_gives_a_message(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"cannot be reached.*Start the server or correct WINNOW_DATABASE_URL"):
        Store.open(f"postgresql://nobody@/none?host={tmp_path}", tmp_path / "home")


@pytest.mark.postgres
def test_a_newer_or_half_migrated_server_is_refused(postgres_url: str, tmp_path: Path) -> None:
    Store.open(postgres_url, tmp_path / "home").close()
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE winnow_version SET version_num = '9999'"))
    with pytest.raises(StoreUnusable, match="newer version"):
        Store.open(postgres_url, tmp_path / "home")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM winnow_version"))
    with pytest.raises(StoreUnusable, match="a migration did not finish"):
        Store.open(postgres_url, tmp_path / "home")
    engine.dispose()


def test_the_store_its_journal_and_its_backups_are_readable_by_the_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store.open(home=home) as store:
        copy = backups.backup(store)
        with store.write() as connection:
            connection.exec_driver_sql("CREATE TABLE later (id)")
        paths = [home / "winnow.sqlite", home / "winnow.sqlite-wal", copy]
        assert [oct(path.stat().st_mode & 0o777) for path in paths] == ["0o600"] * 3
    for path in (home / "winnow.sqlite", copy):
        path.chmod(0o644)  # as earlier versions made them
    with Store.open(home=home):
        assert [oct(path.stat().st_mode & 0o777) for path in (home / "winnow.sqlite", copy)] == ["0o600"] * 2
    (home / "winnow.sqlite").chmod(0o660)
    with Store.open(home=home):
        assert oct((home / "winnow.sqlite").stat().st_mode & 0o777) == "0o660", "what an operator has set stays"
