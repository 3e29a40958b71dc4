"""Small projects with items, for tests of the store."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, select

from storage.database.schema import Item, ItemState
from storage.database.store import Store, now
from storage.labeling import projections
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.media.checks import CONTENT, updating_condition
from storage.media.contents import content_of, read_content
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings, create_project, touch


@dataclass(frozen=True)
class Made:
    """A project: its pool, item ids, class ids, and two annotators."""

    store: Store
    pool: Pool
    project_id: int
    items: list[int]
    classes: list[int]
    ann: int
    bob: int


def read_item(store: Store, item_id: int) -> bytes:
    """The bytes of an item, read as the routes read them: a missing or changed file is recorded with the item."""
    with store.read() as connection:
        query = select(Item.id, Item.project_id, *CONTENT, Item.condition).where(Item.id == item_id)
        row = connection.execute(query).one()
    with updating_condition(store, row.project_id, row.id, row.condition):
        return read_content(store.media, content_of(row))


def waiting_ids(made: Made) -> list[int]:
    """The ids of the waiting items, in the order of the queue."""
    in_queue = (ItemState.queue_rank, ItemState.shuffle, ItemState.item_id)
    query = select(ItemState.item_id).where(ItemState.project_id == made.project_id, ItemState.waiting)
    with made.store.read() as connection:
        return list(connection.execute(query.order_by(*in_queue)).scalars())


def make_pool(store: Store, n_items: int = 10, name: str = "birds", **settings: Any) -> Made:
    project = create_project(store, name, "audio", ["robin", "wren", "owl"], settings=ProjectSettings(**settings))
    ids = add_items(store, project.id, [f"{name} {number}" for number in range(n_items)])
    return Made(
        store=store,
        pool=Pool(store, project.id),
        project_id=project.id,
        items=ids,
        classes=[row.id for row in list_classes(store, project.id)],
        ann=annotator_named(store, "Ann").id,
        bob=annotator_named(store, "Bob").id,
    )


def add_items(store: Store, project_id: int, contents: Sequence[str], **fields: Any) -> list[int]:
    rows = [
        {
            "project_id": project_id,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "name": f"{content}.wav",
            "media_type": "audio/wav",
            "n_bytes": len(content),
            "imported_at": now(),
            "held_out": False,
            "condition": "ok",
            "condition_note": "",
        }
        | fields
        for content in contents
    ]
    with store.write() as connection:
        touch(connection, project_id)
        statement = insert(Item).returning(Item.id, sort_by_parameter_order=True)
        ids = list(connection.execute(statement, rows).scalars()) if rows else []
        projections.start_states(connection, project_id, ids)
    return ids


def event(item_id: int, kind: str = "label", class_id: int | None = None, **fields: Any) -> LabelInput:
    fields.setdefault("uuid", str(uuid.uuid4()))
    return LabelInput(item_id=item_id, kind=kind, class_id=class_id, **fields)  # type: ignore[arg-type]
