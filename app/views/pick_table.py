"""The picks of a round as a table for people: each with its whole reason and what it bought."""

from __future__ import annotations

from typing import Any

from app.views.text import visible
from storage.database.store import Store
from storage.exporting.reasons import picks_of_round

TITLES = {
    "pick_order": "order",
    "name": "item",
    "pick_guess": "guess",
    "pick_confidence": "confidence",
    "pick_entropy": "entropy",
    "pick_score": "score",
    "pick_outer_before": "loss before",
    "pick_outer_after": "loss after",
    "pick_gradient_rank": "gradient rank",
    "pick_first_gradient_rank": "gradient rank at the start",
    "pick_stands_for": "stands for",
    "pick_nearest_name": "nearest labeled",
    "pick_nearest_distance": "distance to it",
    "label": "label",
    "pick_guess_was_wrong": "guess was wrong",
    "hindsight_label_probability": "probability of its label",
    "hindsight_n_changed": "changed nearby",
    "hindsight_n_changed_to_label": "changed to its label",
    "hindsight_n_neighbors": "of neighbors",
    "hindsight_mean_shift": "shift nearby",
    "hindsight_confidence_gain": "confidence gained nearby",
}


def pick_table(store: Store, project_id: int, round_id: int) -> list[dict[str, Any]]:
    """One line a pick, in the order chosen; columns that no pick of the round has are left out."""
    picks = picks_of_round(store, project_id, round_id)
    shown = [name for name in TITLES if any(pick.get(name) is not None for pick in picks)]
    return [{TITLES[name]: _cell(pick.get(name)) for name in shown} for pick in picks]


def _cell(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value
