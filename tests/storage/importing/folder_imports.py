"""Imports a folder of classes, and reads the resulting items."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from storage.database.schema import Item
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.reading import ReadingOptions
from storage.importing.run import ImportOptions, run_import


def items(store: Store, project_id: int) -> list[Item]:
    with store.read() as connection:
        query = select(Item.__table__).where(Item.project_id == project_id).order_by(Item.id)
        return list(connection.execute(query))


def take(store: Store, project_id: int, path: Path, **options):
    reading = ReadingOptions(folders="classes")  # also where there is one class folder only
    return run_import(store, project_id, open_source(path, reading=reading), ImportOptions(**options))
