"""The picks of a round as a table, each with its reason and its effect."""

from __future__ import annotations

from typing import Any

from app.views.item_names import ItemNames
from app.views.text import visible
from storage.database.store import Store
from storage.exporting.reasons import picks_of_round
from storage.labeling.labeled_items import items_to_hide
from storage.projects.classes import list_classes

TITLES = {
    "pick_order": "rank",
    "name": "item",
    "pick_guess": "prediction",
    "pick_confidence": "confidence",
    "pick_entropy": "entropy",
    "pick_score": "score",
    "pick_outer_before": "loss before",
    "pick_outer_after": "loss after",
    "pick_gradient_rank": "gradient rank",
    "pick_first_gradient_rank": "gradient rank at the start",
    "pick_stands_for": "items represented",
    "pick_nearest_name": "nearest labeled",
    "pick_nearest_distance": "distance to nearest",
    "label": "label",
    "pick_guess_was_wrong": "prediction was wrong",
    "hindsight_label_probability": "probability of its label",
    "hindsight_n_changed": "changed nearby",
    "hindsight_n_changed_to_label": "changed to its label",
    "hindsight_n_neighbors": "neighbors",
    "hindsight_mean_shift": "shift nearby",
    "hindsight_confidence_gain": "confidence gain nearby",
}


TELLING = ("label", "pick_guess", "pick_guess_was_wrong", "pick_nearest_name", "hindsight_label_probability")


def pick_table(store: Store, project_id: int, round_id: int, viewer: int | None = None) -> list[dict[str, Any]]:
    """One row per pick, in the order of selection, without columns that are empty for all picks.

    In a blind project, picks that the viewer (an annotator) may still label have no label and no prediction.
    """
    hidden = set(items_to_hide(store, project_id, viewer).tolist())
    picks = picks_of_round(store, project_id, round_id)
    called = ItemNames(row.name for row in list_classes(store, project_id, include_inactive=True))
    for pick in picks:
        pick.update(dict.fromkeys(TELLING) if pick["item_id"] in hidden else {})
        pick["name"] = called.shown_name(pick["item_id"], pick["name"])
        if pick.get("pick_nearest_name") is not None and called.tells_class(pick["pick_nearest_name"]):
            pick["pick_nearest_name"] = "name hidden"
    shown = [name for name in TITLES if any(pick.get(name) is not None for pick in picks)]
    return [{TITLES[name]: _cell(pick.get(name)) for name in shown} for pick in picks]


def _cell(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value
