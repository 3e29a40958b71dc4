"""The store and the project that a command works on. The database layer is loaded when a command runs, so that `--help`
is quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.output import print_note
from core.errors import NotFound

if TYPE_CHECKING:
    from storage.database.store import Store
    from storage.projects.projects import ProjectRow


def open_store() -> Store:
    """The store that the environment names; its warnings go to stderr."""
    from storage.database.store import Store

    store = Store.open()
    for warning in store.warnings:
        print_note(warning)
    return store


def find_project(store: Store, name: str) -> ProjectRow:
    """The project of this name, else the one of this number."""
    from storage.projects.projects import get_project, list_projects

    try:
        return get_project(store, name)
    except NotFound:
        if name.isdigit():
            return get_project(store, int(name))
        known = ", ".join(repr(project.name) for project in list_projects(store)) or "none yet"
        raise NotFound(f"There is no project {name!r}. There are: {known}.") from None
