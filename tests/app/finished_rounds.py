"""Finished rounds with a model, a map whose points lie on a grid, and measured accuracy: for tests of the screens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow
from storage.rounds.log import RoundLog, RoundRow

COLUMNS = 6  # of the grid


def place(k: int) -> tuple[float, float]:
    """The position of the k-th item on the map."""
    return float(k % COLUMNS), float(k // COLUMNS)


def finish_round(
    store: Store,
    project: ProjectRow,
    picks: Sequence[int],
    *,
    accuracy: float = 0.7,
    confidence: float = 0.8,
    **metrics: object,
) -> RoundRow:
    """The prediction for item k is class k modulo the number of classes; `picks` are positions among the items.
    `metrics` are stored with the others."""
    pool, log = Pool(store, project.id), RoundLog(store, project.id)
    row = log.request(RoundConfig())
    log.start(row.id)
    snapshot = pool.snapshot()
    n, n_classes = len(snapshot.item_ids), snapshot.n_classes
    probabilities = np.full((n, n_classes), (1 - confidence) / (n_classes - 1), np.float32)
    probabilities[np.arange(n), np.arange(n) % n_classes] = confidence
    ids = snapshot.item_ids[list(picks)]
    reasons = tuple(
        PickReason(order=i + 1, score=1.0, guess=int(k % n_classes), confidence=confidence, stands_for=40 + i)
        for i, k in enumerate(picks)
    )
    confusion = np.diag(np.full(n_classes, 5))
    confusion[-1, 0] = 3
    log.finish(
        row.id,
        arrays={
            "item_ids": snapshot.item_ids,
            "probabilities": probabilities,
            "embeddings": np.eye(n, 8, dtype=np.float32),
            "map": np.array([place(k) for k in range(n)], np.float32),
        },
        selection=Selection(item_ids=ids, scores=np.ones(len(ids), np.float32), strategy="bico", reasons=reasons),
        metrics={
            "has_model": True,
            "class_names": list(snapshot.class_names),
            "accuracy": accuracy,
            "accuracy_measure": "inductive",
            "n_held_out": 100,
            "confusion": confusion.tolist(),
            "seconds": {"train": 12.0, "select": 3.0},
            **metrics,
        },
    )
    return log.get(row.id)


def ask_again(store: Store, project_id: int, item_id: int) -> RoundRow:
    """A finished round that requests a second look at the label of one item."""
    log = RoundLog(store, project_id)
    row = log.request(RoundConfig())
    looks = (PickReason(order=1, score=1.0, second_look=True, trust=0.1, influence=-0.2),)
    chosen = Selection(item_ids=np.array([item_id]), scores=np.ones(1), strategy="bico", reasons=looks)
    log.finish(row.id, arrays={}, selection=chosen, metrics={})
    return row
