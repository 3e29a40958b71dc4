"""Opens the store and finds the project of a command. The database layer is imported when a command runs, so that
`--help` is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.output import print_note
from core.errors import NotFound

if TYPE_CHECKING:
    from storage.database.store import Store
    from storage.projects.projects import ProjectRow


def open_store() -> Store:
    """Open the store that the environment specifies. Its warnings are printed on stderr."""
    from storage.database.store import Store

    store = Store.open()
    for warning in store.warnings:
        print_note(warning)
    return store


def find_project(store: Store, name: str) -> ProjectRow:
    """The project with this name or, if there is none, with this id."""
    from storage.projects.projects import get_project, list_projects

    try:
        return get_project(store, name)
    except NotFound:
        if name.isdigit():
            return get_project(store, int(name))
        known = ", ".join(repr(project.name) for project in list_projects(store)) or "none yet"
        raise NotFound(f"There is no project {name!r}. There are: {known}.") from None
