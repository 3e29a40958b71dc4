"""Moving items to the front of the queue on behalf of an editor, and back to their former places.

An item that any annotator skipped waits again: its skips are undone by events of the editor. Taking the items back
restores their ranks and skips them again in the editor's name. An item that was labeled in between is not changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from core.errors import InvalidInput
from storage.database.bulk import chunks
from storage.database.schema import NOT_QUEUED, ItemState, LabelEvent
from storage.database.store import Store
from storage.labeling import queue
from storage.labeling.events import LabelInput, apply_events
from storage.labeling.undo import is_undone
from storage.projects import projects


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What `take_back` needs to undo the move."""

    ranks: dict[int, int]  # item id -> former rank, for the items that wait now
    skipped: dict[int, int]  # item id -> number of labels, for those of them that were skipped

    @property
    def n_waiting(self) -> int:
        return len(self.ranks)


def send_to_queue(store: Store, project_id: int, item_ids: Sequence[int], *, annotator: int) -> Sent:
    """Serve these items, as far as they can be labeled, before all others and in this order."""
    with store.write() as connection:
        projects.touch(connection, project_id)
        skipped = {row.item_id: row.n_labels for row in _states(connection, project_id, item_ids) if row.skipped}
        events = [
            LabelInput(uuid=str(uuid.uuid4()), item_id=row.item_id, kind="undo", undoes=row.uuid)
            for part in chunks(list(skipped))
            for row in connection.execute(
                select(LabelEvent.item_id, LabelEvent.uuid).where(
                    LabelEvent.project_id == project_id,
                    LabelEvent.item_id.in_(part),
                    LabelEvent.kind == "skip",
                    ~is_undone(),
                )
            )
        ]
        apply_events(connection, project_id, events, annotator)
        waiting = {row.item_id for row in _states(connection, project_id, item_ids) if row.waiting}
        wanted = [one for one in dict.fromkeys(item_ids) if one in waiting]
        ranks = queue.ranks_of(connection, project_id, wanted)
        queue.put_first(connection, project_id, wanted)
    return Sent(ranks=ranks, skipped={one: n for one, n in skipped.items() if one in waiting})


def take_back(store: Store, project_id: int, sent: Sent, *, annotator: int) -> int:
    """Undo `send_to_queue`; returns the number of items that are back in their former places.

    Ranks come from a browser. An item above NOT_QUEUED would never be served, and one far below 0 would leave no rank
    before it.
    """
    if any(abs(rank) > NOT_QUEUED for rank in sent.ranks.values()):
        raise InvalidInput("These items were not moved: their former places in the queue are out of range.")
    with store.write() as connection:
        projects.touch(connection, project_id)
        states = {row.item_id: row for row in _states(connection, project_id, list(sent.ranks)) if row.waiting}
        queue.set_ranks(connection, project_id, {one: rank for one, rank in sent.ranks.items() if one in states})
        skips = [
            LabelInput(uuid=str(uuid.uuid4()), item_id=one, kind="skip")
            for one, n_labels in sent.skipped.items()
            if one in states and states[one].n_labels == n_labels
        ]
        apply_events(connection, project_id, skips, annotator)
    return len(states)


def _states(connection: Connection, project_id: int, item_ids: Sequence[int]) -> list[Any]:
    columns = (ItemState.item_id, ItemState.waiting, ItemState.skipped, ItemState.n_labels)
    return [
        row
        for part in chunks(list(item_ids))
        for row in connection.execute(
            select(*columns).where(ItemState.item_id.in_(part), ItemState.project_id == project_id)
        )
    ]
