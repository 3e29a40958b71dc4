"""The input of the live head of a project: the newest round with its features, predictions and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import RoundPredictions, newest_predictions
from core.types import UNLABELED
from storage.database.store import Store
from storage.labeling.state_arrays import ItemStates
from storage.rounds.log import RoundLog


@dataclass(frozen=True, kw_only=True, eq=False)
class LivePool:
    """The items of the newest round, without test items."""

    round_id: int
    item_ids: NDArray[np.int64]  # (n,)
    rows: NDArray[np.int64]  # (n,) their rows in the arrays of the round
    found: RoundPredictions
    labels: NDArray[np.int64]  # (n,) column of the label that the round used, or UNLABELED
    frozen: bool  # the features are those of an encoder, so they do not depend on labels


def _uses_encoder(metrics: Mapping[str, Any]) -> bool:
    """Whether the round's features are those of an encoder, from the `EncoderConfig.identity` that the round stored."""
    encoder = (metrics.get("settings") or {}).get("encoder") or {}
    return bool(encoder.get("identity"))


def live_pool(store: Store, project_id: int, states: ItemStates, known: LivePool | None) -> LivePool | None:
    """The pool of the newest round. None before the first round with a model or an encoder.

    `known` is returned unchanged if it is still valid.
    """
    found = newest_predictions(store, project_id)
    if found is None or found.embeddings is None:
        return None
    frozen = _uses_encoder(found.round.metrics)
    if not frozen and not found.round.metrics.get("has_model"):
        return None
    at = states.positions(found.item_ids)
    rows = np.flatnonzero((at >= 0) & ~states.held_out[at])
    if known is not None and known.round_id == found.round.id and np.array_equal(known.rows, rows):
        return known
    with np.load(RoundLog(store, project_id).file(found.round.id, "snapshot"), allow_pickle=False) as snapshot:
        labels = np.asarray(snapshot["labels"], np.int64)
    if len(labels) != len(found.item_ids):
        return None
    return LivePool(
        round_id=found.round.id,
        item_ids=found.item_ids[rows],
        rows=rows,
        found=found,
        frozen=frozen,
        labels=np.where(labels[rows] < len(found.column_classes), labels[rows], UNLABELED),
    )
