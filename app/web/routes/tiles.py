"""The grid's tiles: the items of a query, with label, marks and prediction.

An item whose label the model was trained with has no prediction. In a blind project (`ProjectSettings.is_blind`), tiles
have no predictions, order and filters do not depend on predictions, and tiles show only the annotator's own labels and
notes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.live.current import current_predictions
from app.views.item_names import ItemNames
from app.views.similarity.similar_items import most_similar
from app.views.tile_order import NONE, Order, PredictedItems, ProjectOrders, Sort, page
from app.web.routes.media import media_path, sound_path
from storage.database.store import Store
from storage.labeling.browsing.item_browser import ItemQuery, Matches, matching, notes_of
from storage.labeling.item_rows import ItemRow
from storage.labeling.pool import Pool
from storage.labeling.state_arrays import NO_ID
from storage.media.types import media_kind
from storage.projects import class_rows, classes
from storage.projects.annotators import list_annotators
from storage.projects.class_rows import ClassRow
from storage.projects.projects import get_project

MOST_SIMILAR = 500  # largest number of similar items


@dataclass(frozen=True, slots=True, kw_only=True)
class TileQuery:
    """A query for one page of the items that meet all conditions."""

    find: ItemQuery = field(default_factory=lambda: ItemQuery(show="waiting"))
    class_id: int | None = None  # only items predicted as this class
    confidence: tuple[float, float] | None = None  # only predictions with a confidence in this range
    order: Sort = "sure"
    like: int | None = None  # show only the items most similar to this one, most similar first
    after: int | None = None  # the page starts after this item
    offset: int = 0
    limit: int = 60


@dataclass(frozen=True, slots=True)
class FoundItems:
    """The items of a query, at the positions of their `ItemStates`."""

    matches: Matches
    wanted: NDArray[np.bool_]
    order: Order
    predicted: PredictedItems | None
    note: str = ""  # a sentence for the user if the order is not the requested one


def found_items(store: Store, project_id: int, query: TileQuery) -> FoundItems:
    """All items that match, in order. Rows of individual items are not read."""
    blind = get_project(store, project_id).settings.is_blind
    known = classes.list_classes(store, project_id, include_inactive=True)
    predictions = None if blind else current_predictions(store, project_id)
    matches = matching(store, project_id, query.find)
    best = predictions.best_classes(known) if predictions is not None else None
    orders = ProjectOrders(store, project_id, matches.states, predictions, best)
    wanted = matches.matches
    if query.class_id is not None or query.confidence is not None:
        wanted = wanted & _predicted_so(orders.predicted, matches.states.n_items, query, known)
    pool = Pool(store, project_id)
    if query.like is not None and predictions is not None:
        at = int(matches.states.positions(np.array([query.like]))[0])
        if at >= 0 and matches.states.held_out[at] and matches.states.waiting[at]:  # test items are labeled blind
            return FoundItems(matches, wanted, Order.some(np.empty(0, np.int32)), orders.predicted)
        among = predictions.of_rows(matches.states, wanted, False)
        order = matches.states.positions(most_similar(predictions, query.like, among))
        similar = Order.some(order[order >= 0][:MOST_SIMILAR].astype(np.int32))
        return FoundItems(matches, wanted, similar, orders.predicted)
    in_order = orders.order(query.order, pool.first_in_queue())
    return FoundItems(matches, wanted, in_order, orders.predicted, orders.note(query.order))


def _predicted_so(
    predicted: PredictedItems | None, n_items: int, query: TileQuery, known: list[ClassRow]
) -> NDArray[np.bool_]:
    if predicted is None:
        return np.zeros(n_items, np.bool_)
    fits: NDArray[np.bool_] = predicted.predicted != NONE
    if query.class_id is not None:
        active = [row.id for row in known if row.active]
        position = active.index(query.class_id) if query.class_id in active else len(active)
        fits = predicted.predicted == position
    if query.confidence is not None:
        low, high = query.confidence
        fits &= (predicted.confidence >= low) & (predicted.confidence <= high)
    return fits


def tiles(store: Store, project_id: int, query: TileQuery) -> dict[str, Any]:
    """One page of tiles, and the number of all items that match."""
    found = found_items(store, project_id, query)
    states = found.matches.states
    after = int(states.positions(np.array([query.after or 0]))[0])
    at = page(found.order, found.wanted, query.limit, after=after, offset=query.offset)
    rows = {row.id: row for row in Pool(store, project_id).items_by_id(states.item_ids[at].tolist())}
    made = _TileMaker(store, project_id, found, query.find.viewer, list(rows))
    wanted = zip(at.tolist(), states.item_ids[at].tolist(), strict=True)
    total = int(np.count_nonzero(found.wanted if found.order.is_complete else found.wanted[found.order.positions]))
    return {
        "tiles": [made.tile(rows[item_id], position) for position, item_id in wanted if item_id in rows],
        "total": total,
        "guessed": found.predicted is not None,
        "note": found.note,
    }


class _TileMaker:
    """Creates the tiles of one page."""

    def __init__(self, store: Store, project_id: int, found: FoundItems, viewer: int, item_ids: list[int]) -> None:
        known = classes.list_classes(store, project_id, include_inactive=True)
        self.active = [row for row in known if row.active]
        self.labels = class_rows.effective_names(known)
        self.counts_as = class_rows.counts_as(known)
        self.names = ItemNames(row.name for row in known)
        self.found, self.viewer = found, viewer
        self.people = {row.id: row.name for row in list_annotators(store, include_removed=True)}
        self.notes = notes_of(store, project_id, item_ids, viewer)

    def tile(self, item: ItemRow, position: int) -> dict[str, Any]:
        states, predicted = self.found.matches.states, self.found.predicted
        guess = int(predicted.predicted[position]) if predicted is not None else NONE
        label = int(self.found.matches.class_id[position])
        own = self.viewer != NO_ID
        return {
            "item_id": item.id,
            "name": self.names.shown_name(item.id, item.name),
            "thumb": media_path(item, "thumb.png"),
            "audio": sound_path(item) if media_kind(item.media_type) == "audio" else None,
            "guess": self.active[guess].name if guess != NONE else None,
            "class_id": self.active[guess].id if guess != NONE else None,
            "confidence": round(float(predicted.confidence[position]), 4) if predicted and guess != NONE else None,
            "label": self.labels.get(label) if label != NO_ID else None,
            "label_id": self.counts_as.get(label) if label != NO_ID else None,
            "labeled_by": None if own or label == NO_ID else self.people.get(int(states.annotator_id[position])),
            "labeled_at": None if own or label == NO_ID else int(states.labeled_at[position]),
            "flagged": item.flagged,
            "skipped": item.skipped,
            "test": item.held_out,
            "unreadable": "" if item.condition == "ok" else item.condition_note or item.condition,
            "notes": [{"by": self.people.get(who, ""), "text": text} for who, text in self.notes.get(item.id, [])],
            "picked_by": item.pick.round if item.pick is not None else None,
        }
