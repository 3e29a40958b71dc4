"""The items of one project: serving, labeling, undo, counts, and snapshots for rounds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, func, select, text

from core.errors import NotFound
from core.types import PoolSnapshot
from storage.database.schema import NOT_OK, NOT_QUEUED, Item, ItemState, LabelEvent, Pick, Project, Round
from storage.database.store import Store, now
from storage.labeling import item_rows, projections, queue, snapshots
from storage.labeling.events import Applied, LabelEventRow, LabelInput, apply_events
from storage.labeling.item_rows import ItemFilter, ItemRow, Order, PickRow
from storage.labeling.state_arrays import ItemStates, states_in_memory
from storage.labeling.undo import is_undone, without_undone
from storage.projects import class_rows, classes, projects, roles
from storage.rounds.log import RoundRow

__all__ = ["Applied", "BatchProgress", "ItemFilter", "ItemRow", "LabelEventRow", "LabelInput", "PickRow", "Pool"]

WAITING = ItemFilter(state="waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    total: int  # test items included
    held_out: int
    labeled: int  # items with a label, without test items
    waiting: int  # items that can be served now
    skipped: int
    flagged: int
    unreadable: int  # missing, changed or damaged
    per_class: dict[int, int]  # active class id -> labeled items, merged ones counted with their successor


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """The number of handled picks of the newest finished round; `total` is 0 before the first round."""

    round_id: int | None = None
    number: int | None = None
    total: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnState:
    """The current label and the newest note of one annotator on an item."""

    class_id: int | None  # of their current label, as given
    note: str


class Pool:
    def __init__(self, store: Store, project_id: int) -> None:
        roles.check(store, project_id, "read")
        self.store = store
        self.project_id = project_id

    # Serving

    def next_to_label(self, *, annotator: int, holder: str = "", limit: int = 1) -> list[ItemRow]:
        """Items for one tab of one annotator: picks in their order, then the shuffled rest.

        Each item is leased to the tab (`holder`) for the project's `lease_seconds`. Items that the tab already holds
        come first, with renewed leases.
        """

        def claim_rows(connection: Connection) -> list[ItemRow]:
            project = projects.row_in(connection, self.project_id)
            roles.check_in(connection, self.project_id, "label")
            if project.archived_at is not None:
                return []
            claim = queue.Claim(
                project_id=self.project_id,
                annotator=annotator,
                holder=holder,
                at=now(),
                seconds=project.settings.lease_seconds,
                labels_per_item=project.settings.labels_per_item,
            )
            item_ids = queue.claim_items(connection, claim, limit)
            return item_rows.rows_by_id(connection, self.project_id, item_ids)

        return self.store.run(claim_rows)

    def release(self, *, annotator: int, holder: str | None = None) -> None:
        """End the leases of one tab; without `holder`, those of all tabs of the annotator."""
        with self.store.write() as connection:
            queue.release(connection, self.project_id, annotator, holder)

    def put_first(self, item_ids: Sequence[int]) -> None:
        """Serve these items before all others, in this order."""
        with self.store.write() as connection:
            projects.touch(connection, self.project_id)
            queue.put_first(connection, self.project_id, item_ids)

    # Labeling

    def apply(self, events: Sequence[LabelInput], *, annotator: int) -> list[Applied]:
        """Apply all events in one transaction, on disk when this returns; one result each, in order."""
        if not events:
            return []

        def apply_all(connection: Connection) -> list[Applied]:
            project = projects.lock(connection, self.project_id)
            return apply_events(connection, project, events, annotator)

        return self.store.run(apply_all)

    def label(self, item_id: int, class_id: int, *, annotator: int, **more: Any) -> Applied:
        """Apply one label with the current time; `more` are further fields of `LabelInput`."""
        event = LabelInput(
            uuid=more.pop("uuid", None) or str(uuid.uuid4()), item_id=item_id, kind="label", class_id=class_id, **more
        )
        return self.apply([event], annotator=annotator)[0]

    def undo(self, *, annotator: int) -> LabelEventRow | None:
        """Undo the annotator's newest action that is not undone yet, and return it; None if there is none."""
        with self.store.write() as connection:
            project = projects.lock(connection, self.project_id)
            newest = connection.execute(self._undoable(annotator).limit(1)).one_or_none()
            if newest is None:
                return None
            event = LabelInput(uuid=str(uuid.uuid4()), item_id=newest.item_id, kind="undo", undoes=newest.uuid)
            answer = apply_events(connection, project, [event], annotator)[0]
            return LabelEventRow(**newest._asdict()) if answer.accepted else None

    # Reading

    def item(self, item_id: int) -> ItemRow:
        with self.store.read() as connection:
            rows = item_rows.rows_by_id(connection, self.project_id, [item_id])
        if not rows:
            raise NotFound(f"Item {item_id} is not in this project.")
        return rows[0]

    def items(
        self, which: ItemFilter | None = None, *, order: Order = "id", limit: int | None = 100, offset: int = 0
    ) -> list[ItemRow]:
        query = item_rows.filtered(item_rows.item_query(self.project_id), which or ItemFilter())
        query = item_rows.ordered(query, order).limit(limit).offset(offset)
        with self.store.read() as connection:
            return item_rows.rows_of(connection, query)

    def items_by_id(self, item_ids: Sequence[int]) -> list[ItemRow]:
        """The rows in the order of `item_ids`; ids of other projects are omitted."""
        with self.store.read() as connection:
            return item_rows.rows_by_id(connection, self.project_id, item_ids)

    def count_items(self, which: ItemFilter | None = None) -> int:
        """The number of items that meet all conditions. `items` is joined only for conditions on its columns."""
        which = which or ItemFilter()
        if which == WAITING and (states := states_in_memory(self.store, self.project_id)) is not None:
            return states.tally.waiting
        query = select(func.count()).select_from(ItemState).where(ItemState.project_id == self.project_id)
        if which.needs_item:
            query = query.join(Item, Item.id == ItemState.item_id)
        query = item_rows.filtered(query, which)
        with self.store.read() as connection:
            return int(connection.execute(query).scalar_one())

    def history(self, item_id: int) -> list[LabelEventRow]:
        """All events of an item, oldest first."""
        return self._event_rows(self._events().where(LabelEvent.item_id == item_id).order_by(LabelEvent.sequence))

    def recent(self, annotator: int, limit: int = 20) -> list[LabelEventRow]:
        """The annotator's newest events, newest first."""
        mine = self._events().where(LabelEvent.annotator_id == annotator)
        return self._event_rows(mine.order_by(LabelEvent.sequence.desc()).limit(limit))

    def undoable(self, annotator: int, limit: int = 50) -> list[LabelEventRow]:
        """The annotator's newest actions that can be undone, without review decisions; newest first."""
        return self._event_rows(self._undoable(annotator).where(LabelEvent.kind != "decide").limit(limit))

    def own_state(self, item_id: int, annotator: int) -> OwnState:
        """The annotator's current label and newest note on an item."""
        history = self.history(item_id)
        label = projections.derive(history, {}).labels.get(annotator)
        notes = [
            event.note for event in without_undone(history) if (event.annotator_id, event.kind) == (annotator, "note")
        ]
        return OwnState(class_id=label[0] if label is not None else None, note=notes[-1] if notes else "")

    def labels_since(self, sequence: int) -> int:
        """The number of label and decide events after `sequence`, undone ones included."""
        query = select(func.count()).where(
            LabelEvent.project_id + 0 == self.project_id,  # without the sum SQLite reads all events of the project
            LabelEvent.sequence > sequence,
            LabelEvent.kind.in_(("label", "decide")),
        )
        with self.store.read() as connection:
            return int(connection.execute(query).scalar_one())

    def first_in_queue(self) -> NDArray[np.int64]:
        """(n,) ids of the waiting items that are picks or were put first, in the order of the queue."""
        query = queue.waiting_items(self.project_id).where(ItemState.queue_rank < NOT_QUEUED)
        with self.store.read() as connection:
            return np.fromiter(connection.execute(query).scalars(), np.int64)

    def prioritized(self, item_ids: Sequence[int]) -> set[int]:
        """The ids of those items that are picks or were put first in the queue."""
        with self.store.read() as connection:
            return queue.prioritized_items(connection, self.project_id, item_ids)

    def counts(self) -> PoolCounts:
        """The counts: from the item states if this process has them in memory, else from indexes of the store."""
        states = states_in_memory(self.store, self.project_id)
        with self.store.read() as connection:
            if states is None:
                return _counts(connection, self.project_id)
            return _known_counts(connection, self.project_id, states)

    def batch(self) -> BatchProgress:
        """The progress of the batch of the newest finished round."""
        newest = (
            select(Round.id, Round.number)
            .where(Round.project_id == self.project_id, Round.status == "finished")
            .order_by(Round.number.desc())
            .limit(1)
        )
        with self.store.read() as connection:
            found = connection.execute(newest).one_or_none()
            if found is None:
                return BatchProgress()
            handled = func.count().filter(~ItemState.waiting)
            query = select(func.count(), handled).join_from(Pick, ItemState, ItemState.item_id == Pick.item_id)
            total, done = connection.execute(query.where(Pick.round_id == found.id)).one()
        return BatchProgress(round_id=found.id, number=found.number, total=total, done=done)

    def snapshot(self, as_of: RoundRow | int | None = None) -> PoolSnapshot:
        """The pool now, at the time of a round's request, or at a label sequence with the current classes."""
        with self.store.read() as connection:
            if as_of is None:
                return snapshots.take(connection, self.project_id)
            if isinstance(as_of, int):
                current = snapshots.present(connection, self.project_id)
                moment = snapshots.Moment(
                    label_sequence=as_of, class_event=current.class_event, last_item_id=current.last_item_id
                )
            else:
                moment = snapshots.Moment(
                    label_sequence=as_of.label_sequence,
                    class_event=as_of.class_event,
                    last_item_id=as_of.last_item_id,
                )
            return snapshots.take(connection, self.project_id, moment)

    def class_names(self) -> tuple[str, ...]:
        """Names of the active classes, in the order of class positions in a snapshot."""
        return tuple(row.name for row in classes.list_classes(self.store, self.project_id))

    def revision(self) -> int:
        """Grows with every change in the project; caches are keyed on it."""
        with self.store.read() as connection:
            return int(connection.execute(select(Project.revision).where(Project.id == self.project_id)).scalar_one())

    def rebuild(self) -> int:
        """Derive the projections from the events again; returns how many rows differed (0 when consistent)."""
        with self.store.write() as connection:
            projects.touch(connection, self.project_id)
            return projections.rebuild(connection, self.project_id)

    def _undoable(self, annotator: int) -> Select[*tuple[Any, ...]]:
        """The annotator's actions that are not undone, newest first."""
        mine = self._events().where(LabelEvent.annotator_id == annotator, LabelEvent.kind != "undo", ~is_undone())
        return mine.order_by(LabelEvent.sequence.desc())

    def _events(self) -> Select[*tuple[Any, ...]]:
        return select(LabelEvent.__table__).where(LabelEvent.project_id == self.project_id)

    def _event_rows(self, query: Select[*tuple[Any, ...]]) -> list[LabelEventRow]:
        with self.store.read() as connection:
            return [LabelEventRow(**row._asdict()) for row in connection.execute(query)]


def _counts(connection: Connection, project_id: int) -> PoolCounts:
    """Counts from two passes over an index of the pool and from the small indexes of rare states."""

    def count(*conditions: Any) -> int:
        query = select(func.count()).select_from(ItemState).where(ItemState.project_id == project_id, *conditions)
        return int(connection.execute(query).scalar_one())

    by_class = select(ItemState.class_id, func.count()).where(ItemState.project_id == project_id)
    everything: dict[int | None, int] = dict(connection.execute(by_class.group_by(ItemState.class_id)).all())
    of_tests = select(ItemState.class_id, func.count()).join(Item, Item.id == ItemState.item_id)
    of_tests = of_tests.where(Item.project_id == project_id, Item.held_out).group_by(ItemState.class_id)
    tests: dict[int | None, int] = dict(connection.execute(of_tests).all())
    labeled = {one: n - tests.get(one, 0) for one, n in everything.items() if one is not None}
    return PoolCounts(
        total=sum(everything.values()),
        held_out=sum(tests.values()),
        labeled=sum(labeled.values()),
        waiting=count(ItemState.waiting),
        skipped=count(ItemState.skipped),
        flagged=count(ItemState.flagged),
        unreadable=_unreadable(connection, project_id),
        per_class=_per_class(connection, project_id, labeled),
    )


def _known_counts(connection: Connection, project_id: int, states: ItemStates) -> PoolCounts:
    tally = states.tally
    return PoolCounts(
        total=states.n_items,
        held_out=states.n_held_out,
        labeled=tally.labeled.total(),
        waiting=tally.waiting,
        skipped=tally.skipped,
        flagged=tally.flagged,
        unreadable=_unreadable(connection, project_id),
        per_class=_per_class(connection, project_id, tally.labeled),
    )


def _unreadable(connection: Connection, project_id: int) -> int:
    query = select(func.count()).select_from(Item).where(Item.project_id == project_id, text(NOT_OK))
    return int(connection.execute(query).scalar_one())


def _per_class(connection: Connection, project_id: int, labeled: Mapping[int, int]) -> dict[int, int]:
    """Active class id -> number of items; `labeled` has the number for each class as given."""
    rows = class_rows.rows_in(connection, project_id)
    totals = {row.id: 0 for row in rows if row.active}
    for row in rows:
        if row.counts_as in totals:
            totals[row.counts_as] += labeled.get(row.id, 0)
    return totals
