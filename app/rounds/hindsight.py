"""What the previous picks bought, told to them when the next round is finished."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.acquisition.hindsight import look_back, neighborhood
from core.rounds.context import PoolPredictions, Work
from core.types import UNLABELED

if TYPE_CHECKING:
    from app.rounds.steps import StageContext

N_NEIGHBORS = 20


def look_back_at(bench: StageContext, work: Work, guesses: PoolPredictions) -> None:
    """Store each pick's hindsight with it, where two models of the same classes can be compared. Repeatable."""
    round_id = bench.parcels["snapshot"]["previous"]
    if round_id is None or bench.row.replay_of is not None or not guesses.has_model:
        return
    before = bench.log.get(round_id)
    if not before.metrics.get("has_model") or tuple(before.metrics["class_names"]) != work.snapshot.class_names:
        return
    for position, found in hindsight_of(bench, work, guesses, round_id).items():
        bench.log.set_hindsight(round_id, position, found)


def hindsight_of(bench: StageContext, work: Work, guesses: PoolPredictions, round_id: int) -> dict[int, dict[str, Any]]:
    """Position of a pick -> `core.acquisition.hindsight.Hindsight` as a dict, with the number of this round."""
    snapshot = work.snapshot
    old_ids = np.asarray(bench.log.arrays(round_id, "item_ids"))
    shared, here, there = np.intersect1d(snapshot.item_ids, old_ids, return_indices=True)
    old: NDArray[np.float32] = np.asarray(bench.log.arrays(round_id, "probabilities")[there])
    new = np.asarray(guesses.probabilities[here])
    labels = snapshot.labels[here]
    picks = [pick for pick in bench.log.picks(round_id) if pick.item_id in set(shared.tolist())]
    if not picks:
        return {}
    rows = np.searchsorted(shared, [pick.item_id for pick in picks])
    among = (labels == UNLABELED) & ~snapshot.held_out[here]
    around = neighborhood(np.asarray(guesses.embeddings[here]), rows, N_NEIGHBORS, among)
    found = look_back(old, new, rows, labels[rows], around)
    return {
        pick.position: dataclasses.asdict(one) | {"round": bench.row.number}
        for pick, one in zip(picks, found, strict=True)
    }
