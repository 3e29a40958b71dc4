"""A new project with the setup of another one: kind, guidelines, settings and active classes, without items."""

from __future__ import annotations

from sqlalchemy import update

from storage.database.schema import LabelClass
from storage.database.store import Store
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, create_project, get_project


def duplicate_setup(store: Store, project_id: int, name: str) -> ProjectRow:
    """Create the project `name`; keys and colors of the classes are kept. Items, labels, rounds and members are not
    copied: the new project has the members of any new project (`roles.own_new_project`)."""
    source = get_project(store, project_id)
    classes = list_classes(store, project_id)
    made = create_project(
        store,
        name,
        source.kind,
        [row.name for row in classes],
        settings=source.settings,
        guidelines=source.guidelines,
    )
    with store.write() as connection:
        for row in classes:
            which = (LabelClass.project_id == made.id, LabelClass.name == row.name)
            connection.execute(update(LabelClass).where(*which).values(key=row.key, color=row.color))
    return made
