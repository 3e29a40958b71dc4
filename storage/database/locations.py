"""The locations of all data and the address of the app, read once from the environment.

WINNOW_HOME           folder of everything Winnow writes           ./winnow-data
WINNOW_DATABASE_URL   sqlite:///… or postgresql://…                SQLite in that folder
WINNOW_ARTIFACTS      folder or fsspec address of large arrays     WINNOW_HOME/artifacts
WINNOW_HOST, _PORT    where the app listens                        127.0.0.1, 8501
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from core.errors import InvalidInput

DEFAULT_HOME = "winnow-data"
DEFAULT_PORT = 8501


@dataclass(frozen=True, slots=True, kw_only=True)
class Locations:
    home: Path
    database_url: str
    artifacts: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65_535:
            raise InvalidInput(f"WINNOW_PORT is {self.port}; use a number from 1 to 65535.")


def from_environment(environment: Mapping[str, str] = os.environ) -> Locations:
    """The locations that the environment names; raises InvalidInput for unusable values."""
    home = Path(environment.get("WINNOW_HOME") or DEFAULT_HOME).expanduser().absolute()
    port = environment.get("WINNOW_PORT") or str(DEFAULT_PORT)
    if not port.isascii() or not port.isdigit():
        raise InvalidInput(f"WINNOW_PORT is {port!r}; use a number from 1 to 65535.")
    return Locations(
        home=home,
        database_url=database_url(environment.get("WINNOW_DATABASE_URL"), home),
        artifacts=environment.get("WINNOW_ARTIFACTS") or str(home / "artifacts"),
        host=environment.get("WINNOW_HOST") or "127.0.0.1",
        port=int(port),
    )


def database_url(given: str | None, home: Path) -> str:
    """`given` with the drivers Winnow uses, or the SQLite file of `home`."""
    if not given:
        return URL.create("sqlite", database=str(home / "winnow.sqlite")).render_as_string(hide_password=False)
    try:
        url = make_url(given)
    except ArgumentError as error:
        raise InvalidInput(
            "WINNOW_DATABASE_URL is not a database address. Write sqlite:////folder/winnow.sqlite or "
            "postgresql://user:password@host/database."
        ) from error
    backend = url.get_backend_name()
    if backend in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    if backend == "sqlite" and url.database and url.database != ":memory:":
        return given
    raise InvalidInput(
        f"WINNOW_DATABASE_URL names {backend}{' in memory' if backend == 'sqlite' else ''}; "
        "Winnow keeps its store in a SQLite file or in PostgreSQL."
    )


def engine_url(store_url: str, home: Path) -> str:
    """The database of the workflow engine: a SQLite file beside a SQLite store, or the store's PostgreSQL database."""
    url = make_url(store_url)
    if url.get_backend_name() == "sqlite":
        url = URL.create("sqlite", database=str(home / "engine.sqlite"))
    else:
        url = url.set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def shown(url: str) -> str:
    """The database address without its password, for messages and logs."""
    return make_url(url).render_as_string(hide_password=True)
