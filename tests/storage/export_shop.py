"""A project with labels of every kind, to export and to compare with the imported result."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from sqlalchemy import select

from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.database.schema import Annotator, Item, ItemName, LabelEvent
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings, create_project
from storage.rounds.log import RoundLog
from tests.storage.made_media import picture

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2024, 3, 1, 12, 30, 15, 123456, UTC)


class Shop:
    """A project of pictures with people who label it."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        names: list[str],
        classes: list[str],
        wanted: int = 2,
        other_names: Sequence[str] = (),
    ) -> None:
        self.store = store
        name = f"shop {uuid.uuid4()}"
        self.project = create_project(
            store, name, "image", classes, settings=ProjectSettings(labels_per_item=wanted)
        ).id
        rows = []
        for number, name in enumerate(names):
            (folder / f"{number}.png").write_bytes(picture(seed=number))
            rows.append(json.dumps({"path": f"{number}.png", "name": name}))
        for number, name in enumerate(other_names):  # the same bytes once more
            (folder / f"again-{number}.png").write_bytes(picture(seed=0))
            rows.append(json.dumps({"path": f"again-{number}.png", "name": name}))
        (folder / "manifest.jsonl").write_text("\n".join(rows))
        run_import(store, self.project, open_source(folder), ImportOptions(labels="ignore"))
        self.pool = Pool(store, self.project)
        self.items = [item.id for item in self.pool.items()]
        self.classes = [row.id for row in list_classes(store, self.project)]

    def label(self, item: int, class_: int, who: str = "ann", at: datetime = START, **more) -> None:
        event = LabelInput(
            uuid=str(uuid.uuid4()),
            item_id=self.items[item],
            kind=more.pop("kind", "label"),
            class_id=self.classes[class_],
            at=at,
            **more,
        )
        answers = self.pool.apply([event], annotator=annotator_named(self.store, who).id)
        assert answers[0].accepted, answers


def standing(store: Store, project: int) -> set[tuple]:
    """Every current label as (bytes, class, annotator, time, kind), the label that counts, and the items' other
    names."""
    names = {row.id: row.name for row in list_classes(store, project, include_inactive=True)}
    counts = {row.id: names[row.effective_id or row.id] for row in list_classes(store, project, include_inactive=True)}
    found: set[tuple] = set()
    with store.read() as connection:
        query = (
            select(LabelEvent.__table__, Item.sha256, Item.name.label("item"), Annotator.name.label("who"))
            .join(Item, Item.id == LabelEvent.item_id)
            .join(Annotator, Annotator.id == LabelEvent.annotator_id)
            .where(LabelEvent.project_id == project, LabelEvent.kind.in_(("label", "decide")))
        )
        for row in connection.execute(query):
            found.add((
                row.sha256, row.item, counts[row.class_id], row.who, row.at, row.kind, row.seconds, row.suggestion,
                row.suggested_confidence, row.note,
            ))  # fmt: skip
        query = select(Item.sha256, ItemName.name).join(Item, Item.id == ItemName.item_id)
        labeled = {one[0] for one in found}
        for row in connection.execute(query.where(Item.project_id == project)):
            if row.sha256 in labeled:  # the others are not part of an export of labels
                found.add((row.sha256, "also known as", row.name))
    for item in Pool(store, project).items():
        if item.class_id is not None:
            found.add((item.sha256, "counts", counts[item.class_id]))
    return found


def opened_shop(sqlite_store, tmp_path) -> Shop:
    (tmp_path / "in").mkdir()
    made = Shop(
        sqlite_store,
        tmp_path / "in",
        ["=1+1.png", "b.png", "c.png", "d.png"],
        ["cat", "-dog", "a/b", ".."],
        other_names=["=2+2.png", 'say "hi", [x].png'],
    )
    made.label(0, 0, seconds=1.5, suggestion="shown", suggested_class_id=made.classes[1], suggested_confidence=0.75)
    made.label(0, 1, "bob", START + timedelta(seconds=1), note="@note\nwith lines")
    made.label(1, 1, "bob")
    made.label(2, 2)
    made.label(2, 3, "bob", kind="decide", at=START + timedelta(hours=1))
    return made


def picked_round(shop: Shop, item: int, **reason) -> None:
    """A finished round that chose one item."""
    log = RoundLog(shop.store, shop.project)
    row = log.request(RoundConfig())
    log.start(row.id)
    picks = Selection(
        item_ids=np.array([shop.items[item]]),
        scores=np.array([0.5], np.float32),
        strategy=row.strategy,
        reasons=(PickReason(order=1, score=0.5, **reason),) if reason else (),
    )
    arrays = {"item_ids": np.array(shop.items), "probabilities": np.eye(4, dtype=np.float32)}
    log.finish(row.id, arrays=arrays, selection=picks, metrics={})
