"""Names that people give to rounds, and finding a round by its number or name.

All names of a project are one row of the settings table: names are few, and a round without a name costs nothing.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from core.errors import Conflict, InvalidInput, NotFound
from storage.database.schema import Setting
from storage.database.store import Store, insert_for
from storage.database.strings import storable
from storage.projects import projects, roles
from storage.rounds.log import RoundLog, RoundRow

MOST_CHARACTERS = 60


def round_names(store: Store, project_id: int) -> dict[int, str]:
    """round id -> name, of the rounds that have one."""
    roles.check(store, project_id, "read")
    with store.read() as connection:
        return _names(connection, project_id)


def set_round_name(store: Store, project_id: int, round_id: int, name: str) -> str:
    """Name a round, or remove its name with an empty one; returns the stored name. Names are unique in a project."""
    row = RoundLog(store, project_id).get(round_id)
    clean = storable(" ".join(name.split()), "The name of the round", MOST_CHARACTERS)
    if clean.isdigit():
        raise InvalidInput(f"The name {clean!r} is a number, which stands for a round; add a letter.")
    with store.write() as connection:
        projects.touch(connection, project_id)
        names = _names(connection, project_id)
        taken = next((one for one, given in names.items() if given == clean and one != row.id), None)
        if clean and taken is not None:
            raise Conflict(f"Another round of this project is called {clean!r}. Choose another name.")
        names.pop(row.id, None)
        if clean:
            names[row.id] = clean
        value = {str(one): given for one, given in names.items()}
        statement = insert_for(connection, Setting).values(key=settings_key(project_id), value=value)
        connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": value}))
    return clean


def find_round(store: Store, project_id: int, wanted: str) -> RoundRow:
    """The round of this number or name."""
    rows, names = RoundLog(store, project_id).list(), round_names(store, project_id)
    wanted = wanted.strip()
    for row in rows:
        if wanted in (str(row.number), names.get(row.id)):
            return row
    shown = ", ".join(title_of(row, names) for row in rows[:8]) or "none yet"
    raise NotFound(f"There is no round {wanted!r} in this project. There are: {shown}.")


def title_of(row: RoundRow, names: dict[int, str]) -> str:
    """The number of a round with its name, for display."""
    name = names.get(row.id)
    return f"{row.number} ({name})" if name else str(row.number)


def _names(connection: Connection, project_id: int) -> dict[int, str]:
    value = connection.execute(
        select(Setting.value).where(Setting.key == settings_key(project_id))
    ).scalar_one_or_none()
    return {int(round_id): str(name) for round_id, name in (value or {}).items()}


def settings_key(project_id: int) -> str:
    """The row of the settings table that holds the names of a project's rounds."""
    return f"round-names/{project_id}"
