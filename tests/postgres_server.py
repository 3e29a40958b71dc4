"""A PostgreSQL server for the test run: new, in a temporary folder, reached over a Unix socket in that folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import text

from storage.database.schema import METADATA
from storage.database.store import Store


def find_binaries() -> Path | None:
    """The newest installed server, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def as_ordinary_user(folder: Path) -> list[str]:
    """The server refuses to run as root. In that case it runs as `postgres` (or `nobody`), who gets the folder."""
    if os.getuid() != 0:
        return []
    name = next(user for user in ("postgres", "nobody") if _exists(user))
    user = pwd.getpwnam(name)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def dying_with_us(prefix: list[str]) -> list[str]:
    """Let the kernel end the server when this process ends, also if this process is killed and cannot clean up."""
    if shutil.which("setpriv") is None:
        return prefix
    return [*(prefix or ["setpriv"]), "--pdeathsig=QUIT"]


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


class Server:
    """A running server; `new_database()` gives the address of an empty database."""

    def __init__(self, socket_folder: Path) -> None:
        self.socket_folder = socket_folder

    def address(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.socket_folder}"

    def new_database(self) -> str:
        name = f"winnow_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}")
        return self.address(name)

    def drop(self, address: str) -> None:
        name = address.partition("@/")[2].partition("?")[0]
        self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def run(self, statement: str) -> None:
        with psycopg.connect(f"host={self.socket_folder} user=postgres dbname=postgres", autocommit=True) as connection:
            connection.execute(statement)


def empty_tables(store: Store) -> None:
    """Remove all rows of a store on PostgreSQL; ids start at 1 again."""
    names = ", ".join(table.name for table in METADATA.sorted_tables)
    with store.write() as connection:
        connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))


@contextmanager
def running_server(binaries: Path) -> Iterator[Server]:
    """initdb, start, and stop when the block ends. It listens on no network address."""
    folder = Path(tempfile.mkdtemp(prefix="winnow-pg-"))
    prefix = as_ordinary_user(folder)
    data = folder / "data"
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "max_connections": 60,
        "shared_buffers": "64MB",
        "fsync": "off",  # the server itself is not what is tested
        "full_page_writes": "off",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    try:
        _run([*prefix, str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8",
              "--locale=C.UTF-8", "--no-sync"], folder)  # fmt: skip
        command = [*dying_with_us(prefix), str(binaries / "postgres"), "-D", str(data), *options]
        with (
            open(folder / "log", "wb") as log,
            subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
        ):
            try:
                server = Server(folder)
                _wait_until_ready(server, process, folder / "log")
                yield server
            finally:
                process.send_signal(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return server.run("SELECT 1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2_000:]}") from None
            time.sleep(0.05)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=280
    )
    if done.returncode:
        raise RuntimeError(f"{command[-1]} of PostgreSQL failed: {done.stderr}")
