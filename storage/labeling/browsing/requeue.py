"""Items that an editor sends to the front of the queue, and back to where they were.

An item that any annotator skipped waits again: its skips are undone by events of the editor. Taking the items back
restores their ranks and skips them again, in the name of the editor. An item that was labeled in between stays.
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
    """What was done, as `take_back` needs it."""

    ranks: dict[int, int]  # of the items that wait now: the ranks they had before
    skipped: dict[int, int]  # of those, the ones that were skipped: their labels then

    @property
    def n_waiting(self) -> int:
        return len(self.ranks)


def send_to_queue(store: Store, project_id: int, item_ids: Sequence[int], *, annotator: int) -> Sent:
    """Serve those of the items that can be labeled before all others, in this order."""
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
    """Undo `send_to_queue`; returns the number of items that are where they were.

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
