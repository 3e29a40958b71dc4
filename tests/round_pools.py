"""A small image project with real files, for tests of rounds: bars, blobs and checks, drawn with noise."""

from __future__ import annotations

import io
import uuid
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image
from sqlalchemy import insert

from storage.database.schema import Item
from storage.database.store import Store, now
from storage.labeling import projections
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings, create_project, touch

SIDE = 16
NAMES = ("bars", "blobs", "checks")


@dataclass(frozen=True)
class Drawn:
    """The project, and the true class of each item."""

    store: Store
    project_id: int
    annotator: int
    pool: Pool
    item_ids: list[int]
    hashes: list[str]
    truth: dict[int, int]  # item_id -> class position
    classes: list[int]
    settings: ProjectSettings = field(default_factory=ProjectSettings)

    def in_store(self, store: Store) -> Drawn:
        """The same project in a copy of the store."""
        return replace(self, store=store, pool=Pool(store, self.project_id))

    def label(self, item_ids: list[int]) -> None:
        events = [
            LabelInput(uuid=str(uuid.uuid4()), item_id=i, kind="label", class_id=self.classes[self.truth[i]])
            for i in item_ids
        ]
        assert all(answer.accepted for answer in self.pool.apply(events, annotator=self.annotator))

    def of_class(self, position: int, held_out: int = 0) -> list[int]:
        return [i for i in self.item_ids[held_out:] if self.truth[i] == position]


def picture(kind: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE]
    shift = rng.uniform(0, 6)
    shapes = (
        np.sin(x * 1.2 + shift),
        2 * np.exp(-((x - 4 - shift) ** 2 + (y - 4 - shift) ** 2) / 12) - 1,
        np.sin(x * 0.9 + shift) * np.sin(y * 0.9 + shift),
    )
    gray = np.clip(127 + 80 * shapes[kind] + rng.normal(size=(SIDE, SIDE)) * 25, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(gray).save(buffer, "PNG")
    return buffer.getvalue()


def draw_project(store: Store, n_items: int = 60, n_held_out: int = 0, name: str = "shapes", **settings) -> Drawn:
    """Every third item shows the same kind; the first `n_held_out` items are test items with their labels."""
    given = ProjectSettings(**({"preset": "smoke", "batch_size": 4, "automatic_rounds": False} | settings))
    project = create_project(store, name, "image", NAMES, settings=given)
    class_ids = [row.id for row in list_classes(store, project.id)]
    rows = []
    for number in range(n_items):
        data = picture(number % 3, number)
        rows.append(
            {
                "project_id": project.id,
                "sha256": store.media.put(data),
                "name": f"{number}.png",
                "media_type": "image/png",
                "n_bytes": len(data),
                "width": SIDE,
                "height": SIDE,
                "imported_at": now(),
                "held_out": number < n_held_out,
                "truth_class_id": class_ids[number % 3] if number < n_held_out else None,
                "condition": "ok",
                "condition_note": "",
            }
        )
    with store.write() as connection:
        touch(connection, project.id)
        statement = insert(Item).returning(Item.id, sort_by_parameter_order=True)
        ids = list(connection.execute(statement, rows).scalars())
        projections.start_states(connection, project.id, ids)
    return Drawn(
        store=store,
        project_id=project.id,
        annotator=annotator_named(store, "Ann").id,
        pool=Pool(store, project.id),
        item_ids=ids,
        hashes=[row["sha256"] for row in rows],
        truth={item_id: number % 3 for number, item_id in enumerate(ids)},
        classes=class_ids,
        settings=given,
    )
