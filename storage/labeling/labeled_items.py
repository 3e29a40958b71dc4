"""The labels that count now, for whole projects: by item, by annotator, and with the sequence of the first label.

Class ids are those that the labels count as (`storage.projects.class_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, func, or_, select
from sqlalchemy.orm import aliased

from storage.database.bulk import chunks
from storage.database.schema import CurrentLabel, Item, ItemState, LabelEvent, Pick, Round
from storage.database.store import Store
from storage.labeling import queue
from storage.labeling.browsing.kept_values import labels_of
from storage.labeling.state_arrays import states_in_memory
from storage.labeling.undo import undoes_event
from storage.projects.class_rows import effective_ids
from storage.projects.projects import row_in

NO_ID = 0  # no class, no annotator
UNDECIDED = np.dtype([("item_id", np.int64), ("class_id", np.int64), ("first_sequence", np.int64)])


def counting_classes(store: Store, project_id: int, item_ids: Sequence[int] | None = None) -> dict[int, int]:
    """item id -> class id, for the labeled items of a project, or for those among `item_ids`."""
    query = select(ItemState.item_id, ItemState.class_id).where(
        ItemState.project_id == project_id, ItemState.class_id.is_not(None)
    )
    parts = [query] if item_ids is None else [query.where(ItemState.item_id.in_(part)) for part in chunks(item_ids)]
    with store.read() as connection:
        counts_as = effective_ids(connection, project_id)
        return {row.item_id: counts_as[row.class_id] for part in parts for row in connection.execute(part)}


def own_classes(store: Store, project_id: int, annotator: int, item_ids: Sequence[int] | None = None) -> dict[int, int]:
    """item id -> class id, for the items that this annotator has labeled, or for those among `item_ids`."""
    query = select(CurrentLabel.item_id, CurrentLabel.class_id).where(
        CurrentLabel.project_id == project_id, CurrentLabel.annotator_id == annotator
    )
    parts = [query] if item_ids is None else [query.where(CurrentLabel.item_id.in_(part)) for part in chunks(item_ids)]
    with store.read() as connection:
        counts_as = effective_ids(connection, project_id)
        return {row.item_id: counts_as[row.class_id] for part in parts for row in connection.execute(part)}


def items_to_hide(
    store: Store, project_id: int, annotator: int | None, *, second_looks: bool = True
) -> NDArray[np.int64]:
    """(n,) sorted ids of the items whose labels and predictions screens must not show to the annotator.

    These are items that the annotator may still label and has not labeled: in a blind project (`is_blind`) all of them,
    else those of test sets (`storage.labeling.test_sets`) and those that wait for a second look. Without an annotator,
    the items of test sets and second looks are hidden. `second_looks=False` shows second looks to a reviewing owner.
    """
    states = states_in_memory(store, project_id)
    with store.read() as connection:
        blind = annotator is not None and row_in(connection, project_id).settings.is_blind
        if states is None:
            query = queue.waiting_items(project_id)
            of_tests = select(Item.id).where(Item.project_id == project_id, Item.held_out)
            query = query if blind else query.where(ItemState.item_id.in_(of_tests))
            waiting = np.fromiter(connection.execute(query).scalars(), np.int64)
        else:
            waiting = states.item_ids[states.waiting if blind else states.waiting & states.held_out]
        if second_looks and not blind:
            looks = connection.execute(_second_looks(project_id)).scalars()
            waiting = np.union1d(waiting, np.fromiter(looks, np.int64))
    if annotator is None or not len(waiting):
        return np.sort(waiting)
    if states is not None:
        own = states.item_ids[labels_of(store, project_id, annotator, states) != NO_ID]
    else:
        own = np.fromiter(own_classes(store, project_id, annotator), np.int64)
    return np.setdiff1d(waiting, own)


def _second_looks(project_id: int) -> Select[int]:
    """Ids of the labeled items that wait for a second look: no label, skip or decision came after the round."""
    return (
        select(ItemState.item_id)
        .join(Pick, Pick.item_id == ItemState.item_id)
        .join(Round, Round.id == Pick.round_id)
        .where(Round.project_id == project_id, Pick.look_after.is_not(None))
        .where(ItemState.waiting, ItemState.class_id.is_not(None), ItemState.sequence <= Pick.look_after)
        .distinct()
    )


def items_seen_with_labels(connection: Connection, project_id: int, label_sequence: int) -> NDArray[np.int64]:
    """(n,) sorted ids of the items whose labels were used by the round that used the labels up to `label_sequence`, or
    by an earlier round.

    The rows of these items in the round's probabilities repeat a label and are not predictions. Each model continues
    from the previous one, so a label that an earlier round used counts too, even if it was undone afterwards. A label
    that was undone before any round used it does not count. The result never changes: later events have larger
    sequences.
    """
    undo, used_by = aliased(LabelEvent), aliased(Round)
    was_used = (
        select(used_by.id)
        .where(
            used_by.project_id == project_id,
            used_by.label_sequence >= LabelEvent.sequence,
            used_by.label_sequence < undo.sequence,
            used_by.label_sequence <= label_sequence,
        )
        .exists()
    )
    query = (
        select(LabelEvent.item_id)
        .outerjoin(undo, undoes_event(undo))
        .where(
            LabelEvent.project_id == project_id,
            LabelEvent.kind.in_(("label", "decide")),
            LabelEvent.sequence <= label_sequence,
            or_(undo.sequence.is_(None), was_used),
        )
        .distinct()
    )
    return np.sort(np.fromiter(connection.execute(query).scalars(), np.int64))


def item_names(store: Store, project_id: int, item_ids: Sequence[int]) -> dict[int, str]:
    """item id -> name, for the items among `item_ids` that the project has."""
    query = select(Item.id, Item.name).where(Item.project_id == project_id)
    with store.read() as connection:
        found = (connection.execute(query.where(Item.id.in_(part))) for part in chunks(item_ids))
        return {row.id: row.name for rows in found for row in rows}


def item_files(store: Store, project_id: int) -> list[tuple[str, str]]:
    """(SHA-256, file name) of every item of a project, in the order of their ids."""
    query = select(Item.sha256, Item.name).where(Item.project_id == project_id).order_by(Item.id)
    with store.read() as connection:
        return [(row.sha256, row.name) for row in connection.execute(query)]


def undecided_labels(store: Store, project_id: int, after: int = 0) -> NDArray[np.void]:
    """(n,) item_id, class_id and first_sequence of the labeled items of a project without a review decision.

    `first_sequence` is that of the first label that anyone gave the item, undone or not; items where it is not larger
    than `after` are left out. Test items are left out too: if test labels were corrected where a model disagrees, the
    measured accuracy would be biased.
    """
    is_label = LabelEvent.kind.in_(("label", "decide"))
    first = (
        select(LabelEvent.item_id, func.min(LabelEvent.sequence).label("sequence"))
        .where(LabelEvent.project_id == project_id, LabelEvent.sequence > after, is_label)
        .group_by(LabelEvent.item_id)
        .subquery()
    )
    earlier = select(LabelEvent.sequence).where(
        LabelEvent.item_id == ItemState.item_id, LabelEvent.sequence <= after, is_label
    )
    query = (
        select(ItemState.item_id, ItemState.class_id, first.c.sequence)
        .join(first, first.c.item_id == ItemState.item_id)
        .join(Item, Item.id == ItemState.item_id)
        .where(ItemState.project_id == project_id, ItemState.class_id.is_not(None), ~ItemState.decided)
        .where(~Item.held_out)
    )
    query = query.where(~earlier.exists()) if after else query
    with store.read() as connection:
        counts_as = effective_ids(connection, project_id)
        with connection.execute(query) as result:
            tuples: Any = result.cursor
            found = np.fromiter(tuples, UNDECIDED)
    given, places = np.unique(found["class_id"], return_inverse=True)
    found["class_id"] = np.array([counts_as[one] for one in given.tolist()], np.int64)[places]
    return found


def undecided_until(store: Store, project_id: int, item_ids: Sequence[int], label_sequence: int) -> dict[int, int]:
    """item id -> class id, for those of the items whose counting label is not newer than `label_sequence` and was not
    decided in review; test items are left out."""
    query = (
        select(ItemState.item_id, ItemState.class_id)
        .join(Item, Item.id == ItemState.item_id)
        .where(ItemState.project_id == project_id, ItemState.class_id.is_not(None), ~ItemState.decided, ~Item.held_out)
        .where(ItemState.sequence <= label_sequence)
    )
    with store.read() as connection:
        counts_as = effective_ids(connection, project_id)
        parts = (connection.execute(query.where(ItemState.item_id.in_(part))) for part in chunks(item_ids))
        return {row.item_id: counts_as[row.class_id] for rows in parts for row in rows}


def last_labeled_project(store: Store) -> int | None:
    """The project of the newest label event; None if there is no event."""
    query = select(LabelEvent.project_id).order_by(LabelEvent.sequence.desc()).limit(1)
    with store.read() as connection:
        return connection.execute(query).scalar_one_or_none()
