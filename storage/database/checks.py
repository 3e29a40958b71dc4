"""Checks before a store is used; each refusal says what to do.

Order: the folder exists and is writable; it is not on a network filesystem; the file is an intact database
(`PRAGMA quick_check` up to CHECK_LIMIT_BYTES; larger files would delay every start, and `python -m app backup` checks
them instead); its version is known; all tables exist.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError, OperationalError

from core.errors import StoreUnusable
from storage.database import backup_files, locations, migrate
from storage.system.file_lock import file_lock

CHECK_LIMIT_BYTES = 256 * 2**20
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "fuse.sshfs", "fuse.s3fs"})
ALLOW_NETWORK = "WINNOW_ALLOW_NETWORK_STORE"
PRIVATE = 0o600  # permissions of the database and its backups: the owner reads and writes, nobody else
log = logging.getLogger("winnow.store")


def prepare(url: str, home: Path, engine: Engine, may_migrate: bool) -> tuple[str, ...]:
    """Check the store and migrate it to this version; returns warnings to show."""
    make_home(home)
    if make_url(url).get_backend_name() != "sqlite":
        return _prepare_server(url, home, engine, may_migrate)
    path = sqlite_path(url)
    if not path.parent.is_dir():
        raise StoreUnusable(f"The folder {path.parent} of the database does not exist. Create it, then start again.")
    warnings = network_warnings(path.parent)
    _check_writable(path)
    with file_lock(Path(f"{path}.opening"), "The store's start-up lock", 300.0):
        keep_private(path, home)
        if path.exists():
            check_health(path)
        _set_wal(path)
        with file_lock(lock_path(url), "The store's write lock"):
            _migrate(engine, may_migrate, lambda: backup_files.before_migration(path, home))
    return warnings


def require_usable_server(url: str, home: Path, engine: Engine) -> None:
    """Prepare a restore into PostgreSQL: migrate an older or empty database to this version, refuse a broken one."""
    try:
        _prepare_server(url, home, engine, may_migrate=True)
    except StoreUnusable as problem:
        if "did not finish" not in str(problem):
            raise
        raise StoreUnusable(
            f"The tables in {locations.shown(url)} are incomplete, so a backup cannot be restored into them. Save them "
            "with pg_dump if they matter, create an empty database, set WINNOW_DATABASE_URL to it, and restore again."
        ) from problem


def _prepare_server(url: str, home: Path, engine: Engine, may_migrate: bool) -> tuple[str, ...]:
    try:
        with engine.connect() as connection:
            version = connection.dialect.server_version_info or (0,)
    except OperationalError as error:
        raise StoreUnusable(
            f"PostgreSQL at {locations.shown(url)} cannot be reached: {' '.join(str(error.orig).split())} "
            "Start the server or correct WINNOW_DATABASE_URL."
        ) from error
    if version < (15,):
        raise StoreUnusable(f"PostgreSQL {version[0]} is too old; Winnow needs version 15 or newer.")
    _migrate(engine, may_migrate, lambda: backup_files.before_server_migration(url, home))
    return ()


def _migrate(engine: Engine, may_migrate: bool, backup: migrate.Backup) -> None:
    state = migrate.state(engine)
    if state == "newer":
        raise StoreUnusable(
            "This store was written by a newer version of Winnow. Install that version (or a newer one); "
            "an older version does not change it."
        )
    if state == "broken":
        raise StoreUnusable(
            "This store has Winnow's tables but a migration did not finish. Restore the newest backup with "
            "`python -m app restore`, or move the database away to start with an empty store."
        )
    if state == "old" and not may_migrate:
        raise StoreUnusable("This store was written by an older version of Winnow. Run `python -m app run` once.")
    if state in ("old", "empty"):
        migrate.upgrade(engine, backup if state == "old" else None)
    missing = migrate.missing_parts(engine)
    if missing:
        raise StoreUnusable(
            f"This store lacks {', '.join(missing[:5])}: a migration did not finish. Restore the newest backup with "
            "`python -m app restore`."
        )


def make_home(home: Path) -> None:
    """Create the folder. A missing parent is refused: it is more likely a typing error or an unmounted disk."""
    if home.is_dir():
        return
    if not home.parent.is_dir():
        raise StoreUnusable(
            f"The folder {home} cannot be created because {home.parent} does not exist. "
            "Create it, mount the disk, or set WINNOW_HOME to another folder."
        )
    try:
        home.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreUnusable(f"The folder {home} cannot be created: {error.strerror}. Set WINNOW_HOME.") from error


def keep_private(path: Path, home: Path) -> None:
    """Create the database with permissions for its owner only (SQLite gives its journal the same ones), and remove the
    permissions that earlier versions gave everyone on it and on the backups. Others set by an operator stay."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
    journal = (path, Path(f"{path}-wal"), Path(f"{path}-shm"))
    for one in (*journal, *backup_files.listed(home)):
        with contextlib.suppress(OSError):
            if stat.S_IMODE(one.stat().st_mode) == 0o644:
                one.chmod(PRIVATE)


def sqlite_path(url: str) -> Path:
    database = make_url(url).database or ""
    return Path(database.removeprefix("file:").partition("?")[0]).absolute()


def lock_path(url: str) -> Path:
    return Path(f"{sqlite_path(url)}.lock")


def _check_writable(path: Path) -> None:
    for place in (path, path.parent):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreUnusable(
                f"{place} is read-only for this user. Make it writable (chmod u+w) or "
                "set WINNOW_HOME to another folder."
            )


def filesystem_of(folder: Path, mounts: str | None = None) -> str:
    """The type of the filesystem of `folder`; "" if the system does not report it."""
    if mounts is None:
        source = Path("/proc/self/mounts")
        mounts = source.read_text(encoding="utf-8", errors="replace") if source.exists() else ""
    resolved, best, kind = folder.resolve(), -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if (resolved == point or point in resolved.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def network_warnings(folder: Path, mounts: str | None = None) -> tuple[str, ...]:
    """Refuse a network filesystem; with WINNOW_ALLOW_NETWORK_STORE=1, return a warning instead."""
    kind = filesystem_of(folder, mounts)
    if kind not in NETWORK_FILESYSTEMS:
        return ()
    sentence = f"{folder} is on a network filesystem ({kind}), where SQLite's locks and WAL are not reliable."
    if os.environ.get(ALLOW_NETWORK) != "1":
        raise StoreUnusable(
            f"{sentence} Set WINNOW_HOME to a local disk or use PostgreSQL. If only this one machine ever "
            f"opens it, set {ALLOW_NETWORK}=1."
        )
    log.warning(sentence)
    return (f"{sentence} Use a local disk or PostgreSQL.",)


def check_health(path: Path, limit: int = CHECK_LIMIT_BYTES) -> None:
    """Run `PRAGMA quick_check` on files up to `limit` bytes; raise StoreUnusable for a damaged file."""
    try:
        with sqlite3.connect(path, timeout=60) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            found = "ok"
            if path.stat().st_size <= limit:
                found = connection.execute("PRAGMA quick_check(3)").fetchone()[0]
        connection.close()
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(_damaged(path, str(error))) from error
    if found != "ok":
        raise StoreUnusable(_damaged(path, " ".join(found.split())))


def _damaged(path: Path, finding: str) -> str:
    return (
        f"The database {path} is damaged ({finding}). Keep a copy of it, then restore the newest backup with "
        "`python -m app restore`."
    )


def _set_wal(path: Path) -> None:
    try:
        connection = sqlite3.connect(path, timeout=60)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except (sqlite3.OperationalError, DatabaseError) as error:
        raise StoreUnusable(
            f"{path} cannot be written: {error}. Make it and its folder writable or set WINNOW_HOME to another folder."
        ) from error
