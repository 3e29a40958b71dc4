"""Hindsight: the effect of the previous round's picks, stored with them when the next round is finished."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.rounds.stored_round import StoredRound
from core.acquisition.hindsight import neighborhood, pick_effects
from core.rounds.outputs import Predictions, PropagatedLabels
from core.types import UNLABELED

N_NEIGHBORS = 20


def store_hindsight(of: StoredRound, predictions: Predictions, labels: PropagatedLabels) -> None:
    """Store the hindsight of each previous pick if the models of both rounds have the same classes. Idempotent."""
    round_id = of.start.previous_round
    if round_id is None or of.row.replay_of is not None or not predictions.has_model:
        return
    before = of.log.get(round_id)
    if not before.metrics.get("has_model") or tuple(before.metrics["class_names"]) != of.start.snapshot.class_names:
        return
    found = of.load_or_note("predictions", lambda: hindsight_of(of, predictions, labels, round_id))
    for position, hindsight in (found or {}).items():
        of.log.set_hindsight(round_id, position, hindsight)


def hindsight_of(
    of: StoredRound, predictions: Predictions, labels: PropagatedLabels, round_id: int
) -> dict[int, dict[str, Any]]:
    """position of a pick -> its `core.acquisition.hindsight.Hindsight` as a dict, with the number of this round."""
    snapshot = of.start.snapshot
    old_ids = np.asarray(of.log.arrays(round_id, "item_ids"))
    shared, here, there = np.intersect1d(snapshot.item_ids, old_ids, return_indices=True)
    old: NDArray[np.float32] = np.asarray(of.log.arrays(round_id, "probabilities")[there])
    new = np.asarray(labels.probabilities[here])
    given = snapshot.labels[here]
    picks = [pick for pick in of.log.picks(round_id) if pick.item_id in set(shared.tolist())]
    if not picks:
        return {}
    rows = np.searchsorted(shared, [pick.item_id for pick in picks])
    among = (given == UNLABELED) & ~snapshot.held_out[here]
    around = neighborhood(np.asarray(predictions.embeddings[here]), rows, N_NEIGHBORS, among)
    found = pick_effects(old, new, rows, given[rows], around)
    return {
        pick.position: dataclasses.asdict(one) | {"round": of.row.number}
        for pick, one in zip(picks, found, strict=True)
    }
