"""A project of a million items, made inside the database, and what every screen should show of it, by formulas.

Item n has the id n. Files exist only for the picks and for `FAR`. The remainder of n modulo 1,000 determines its other
properties:

    3 flagged · 5 skipped · 7 test item · 10 labeled by Ana, one second after the labeled item before it
"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from core.config import RoundConfig
from core.types import Selection
from storage.database.schema import NOT_QUEUED
from storage.database.store import Store
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, create_project
from storage.rounds.log import RoundLog
from tests.app import sample_store

N = 1_000_000
CLASSES = ("cat", "dog", 'say "no" & <b>')
FLAGGED, SKIPPED, TEST, LABELED = 3, 5, 7, 10
PICKS = (2, 1001, 2000, 2999, 3998)  # predicted as the last class; the name of the second one tells a class
FAR = 654_321  # not drawn as a point
TELLING = "cat_1001.png"
FEW = 2_000  # one item of this number is in a separate group on the map
GROUPS, COLUMNS, APART = 10, 5, 10.0
FIRST_LABEL = datetime(2026, 1, 1, tzinfo=UTC)

NUMBERS = np.arange(1, N + 1)
CONFIDENCE = 0.5 + (NUMBERS * 777_767 % N) / 2**21  # all different, and exact in 32 bits
PREDICTED = NUMBERS % len(CLASSES)
SHUFFLE = NUMBERS * 48_271 % 2_147_483_647
NAMES = NUMBERS * 7_919 % 1_000_003  # all different; `name_of` writes them
NAMES[PICKS[1] - 1] = 10**7  # letters come after digits
GROUP = np.where(NUMBERS % FEW == 11, GROUPS - 1, NUMBERS % (GROUPS - 1))


def name_of(item_id: int) -> str:
    return TELLING if item_id == PICKS[1] else f"{NAMES[item_id - 1]:07d}.png"


def remainder(*wanted: int) -> NDArray[np.bool_]:
    return np.isin(NUMBERS % 1_000, wanted)


def centers() -> NDArray[np.float64]:
    """(GROUPS, 2) the middle of each group on the map."""
    place = np.arange(GROUPS)
    return APART * np.stack([place % COLUMNS, place // COLUMNS], 1)


def map_points() -> NDArray[np.float32]:
    """(N, 2) groups that do not touch, and the picks in a row below them."""
    points = centers()[GROUP] + np.random.default_rng(0).uniform(-2, 2, (N, 2))
    for k, item in enumerate(PICKS):
        points[item - 1] = (APART * k, -APART)
    return points.astype(np.float32)


def fill(store: Store) -> ProjectRow:
    """The project and a finished round of it. The store must be empty: ids are numbers."""
    project = create_project(store, "A million pictures", "image", CLASSES)
    classes = [row.id for row in list_classes(store, project.id)]
    values = {
        "project": project.id, "n": N, "not_queued": NOT_QUEUED, "class": classes[0],
        "annotator": annotator_named(store, "Ana Koller").id, "at": FIRST_LABEL.replace(tzinfo=None).isoformat(" "),
    }  # fmt: skip
    with store.write() as connection:
        for statement in STATEMENTS:
            connection.execute(text(statement), values)
        for k, item in enumerate((*PICKS, FAR)):
            picture = {"sha256": store.media.put(sample_store.picture(k)), "name": name_of(item), "id": item}
            connection.execute(text("UPDATE items SET sha256 = :sha256, name = :name WHERE id = :id"), picture)
    finish_round(store, project)
    return project


def finish_round(store: Store, project: ProjectRow) -> None:
    log = RoundLog(store, project.id)
    row = log.request(RoundConfig())
    log.start(row.id)
    probabilities = np.repeat((1 - CONFIDENCE[:, None]) / 2, len(CLASSES), 1).astype(np.float32)
    probabilities[np.arange(N), PREDICTED] = CONFIDENCE
    arrays = {"item_ids": NUMBERS, "probabilities": probabilities, "map": map_points()}
    picks = Selection(item_ids=np.array(PICKS), scores=np.ones(len(PICKS), np.float32), strategy="bico")
    log.finish(row.id, arrays=arrays, selection=picks, metrics={"has_model": True, "class_names": list(CLASSES)})


STATEMENTS = (
    """WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :n)
    INSERT INTO items (id, project_id, sha256, name, media_type, n_bytes, width, height, held_out, split_name,
      condition, condition_note, imported_at)
    SELECT n, :project, printf('%064x', n), printf('%07d.png', n * 7919 % 1000003), 'image/png', 1, 96, 96,
      n % 1000 = 7, '', 'ok', '', :at FROM numbers""",
    """INSERT INTO label_events (sequence, uuid, project_id, item_id, annotator_id, kind, class_id, suggestion, note,
      at, stored_at)
    SELECT id / 1000 + 1, printf('%036d', id), :project, id, :annotator, 'label', :class + (id / 1000) % 3, 'none', '',
      datetime(:at, (id / 1000) || ' seconds'), :at FROM items WHERE id % 1000 = 10""",
    """INSERT INTO current_labels (item_id, annotator_id, project_id, class_id, sequence)
    SELECT item_id, annotator_id, project_id, class_id, sequence FROM label_events""",
    """INSERT INTO item_states (item_id, project_id, waiting, n_labels, class_id, decided, skipped, flagged, sequence,
      queue_rank, shuffle)
    SELECT items.id, :project, items.id % 1000 NOT IN (5, 7, 10), items.id % 1000 = 10, class_id, 0,
      items.id % 1000 = 5, items.id % 1000 = 3, sequence, :not_queued, items.id * 48271 % 2147483647
    FROM items LEFT JOIN label_events ON label_events.item_id = items.id""",
)
