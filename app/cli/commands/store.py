"""`python -m app backup`, `restore` and `move`: commands for the entire store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Json
from app.cli.output import progress_bar, show
from app.cli.projects import open_store


def backup(
    target: Annotated[
        Path | None, typer.Argument(help="File to write; default: a new file in WINNOW_HOME/backups.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the existing backups.")] = False,
    keep: Annotated[int | None, typer.Option(help="Automatic backups to keep, from now on.")] = None,
    as_json: Json = False,
) -> None:
    """Back up the database while it is in use."""
    from storage.database import backup_files, backups
    from storage.database.locations import from_environment

    if list_:  # does not open the store, which may be damaged
        paths = [str(path) for path in backup_files.listed(from_environment().home)]
        show(paths, as_json, "\n".join(paths) or "There are no backups yet.")
        return
    with open_store() as store:
        if keep is not None:
            backups.set_kept(store, keep)
        path = backups.backup(store, target=target.absolute() if target is not None else None)
    show({"backup": str(path), "n_bytes": path.stat().st_size}, as_json, f"The backup is {path}.")


def restore(source: Annotated[Path, typer.Argument(help="A backup file.")], as_json: Json = False) -> None:
    """Restore the store from a backup, even if the store is damaged. The current state is saved first."""
    from storage.database.restore import restore as restore_store
    from storage.database.store import Store

    with Store.unopened() as store:
        before = restore_store(store, source.absolute())
    kept = f"The previous state is in {before}." if before is not None else "There was no store before."
    show({"restored": str(source), "before": str(before or "")}, as_json, f"Restored. {kept}")


def move(
    target: Annotated[str, typer.Argument(help="The database to move to: postgresql://user:password@host/name")],
    home: Annotated[
        Path | None, typer.Option(help="Another folder for media and arrays; default: the current one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy this store to PostgreSQL and compare both. Run an interrupted move again to resume it."""
    from dataclasses import asdict

    from storage.database.locations import database_url, shown
    from storage.database.move import move as move_store
    from storage.database.store import Store

    with open_store() as store, progress_bar("Moving") as report:
        folder = home.absolute() if home is not None else store.home
        with Store.open(database_url(target, folder), folder) as other:
            done = move_store(store, other, report)
    sentence = f"Everything was copied to {shown(target)} and compared row by row. Set WINNOW_DATABASE_URL to use it."
    show(asdict(done), as_json, sentence)
