"""The pool as arrays, now or at the time of a round's request.

Class positions follow the order of the classes that were active then. A label of a merged class counts as the class it
was merged into. A label of a retired class has no position: the item is not used as labeled and not selected again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, case, func, select, type_coerce

from core.types import UNLABELED, PoolSnapshot
from storage.database.bulk import chunks
from storage.database.schema import Item, ItemState, LabelEvent, Project
from storage.labeling import projections
from storage.labeling.groups import group_column
from storage.labeling.undo import without_undone
from storage.projects import class_rows

NO_CLASS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in a project's history: its newest label event, class event and item."""

    label_sequence: int
    class_event: int
    last_item_id: int


def present(connection: Connection, project_id: int) -> Moment:
    """The current moment, consistent with all other reads of this transaction."""
    sequence = select(func.coalesce(func.max(LabelEvent.sequence), 0)).where(LabelEvent.project_id == project_id)
    item = select(func.coalesce(func.max(Item.id), 0)).where(Item.project_id == project_id)
    return Moment(
        label_sequence=int(connection.execute(sequence).scalar_one()),
        class_event=class_rows.newest_event(connection, project_id),
        last_item_id=int(connection.execute(item).scalar_one()),
    )


def take(connection: Connection, project_id: int, moment: Moment | None = None) -> PoolSnapshot:
    """The pool at `moment`, or now if it is None."""
    kind = connection.execute(select(Project.kind).where(Project.id == project_id)).scalar_one()
    now = present(connection, project_id)
    past = moment is not None and moment != now
    moment = moment or now
    rows = class_rows.rows_as_of(connection, project_id, moment.class_event)
    active = [row for row in rows if row.active]
    positions = {row.id: position for position, row in enumerate(active)}
    counts_as = class_rows.counts_as(rows)
    position_of = {class_id: positions.get(counts_as[class_id], UNLABELED) for class_id in counts_as}
    columns = _columns(connection, project_id, moment.last_item_id)
    if past:
        _set_past(connection, project_id, moment, columns, counts_as)
    found = _snapshot(kind, tuple(row.name for row in active), columns, position_of, moment.label_sequence)
    confirmed = confirmed_items(connection, project_id, moment.label_sequence, counts_as)
    found = replace(found, confirmed=np.isin(found.item_ids, confirmed) if len(confirmed) else None)
    return _with_groups(connection, project_id, found)


def confirmed_items(
    connection: Connection, project_id: int, label_sequence: int, effective: dict[int, int]
) -> NDArray[np.int64]:
    """(m,) items whose label was decided in review, or given at least twice, up to a moment: by two annotators, or by
    one who labeled the item again and gave the same class. Undone events do not count."""
    several = (
        select(LabelEvent.item_id)
        .where(
            LabelEvent.project_id == project_id,
            LabelEvent.sequence <= label_sequence,
            LabelEvent.kind.in_(("label", "decide")),
        )
        .group_by(LabelEvent.item_id)
        .having((func.count() > 1) | (func.max(case((LabelEvent.kind == "decide", 1), else_=0)) == 1))
    )
    found = []
    for block in chunks(list(connection.execute(several).scalars())):
        query = (
            select(LabelEvent.__table__)
            .where(LabelEvent.item_id.in_(block), LabelEvent.sequence <= label_sequence)
            .order_by(LabelEvent.item_id, LabelEvent.sequence)
        )
        for item_id, events in groupby(connection.execute(query), key=lambda row: row.item_id):
            given = [one for one in without_undone(list(events)) if one.kind in ("label", "decide")]
            state = projections.derive(given, effective)
            counts = effective.get(state.class_id or NO_CLASS, state.class_id)
            same = sum(effective.get(one.class_id, one.class_id) == counts for one in given)
            if state.decided or same > 1:
                found.append(item_id)
    return np.array(found, np.int64)


def _columns(connection: Connection, project_id: int, last_item_id: int) -> dict[str, Any]:
    """One integer array per column (hashes: a tuple), with few conversions, for pools of a million items."""
    query = select(
        Item.id,
        Item.sha256,
        type_coerce(Item.held_out, Integer),
        type_coerce(ItemState.waiting, Integer),
        case((Item.condition == "ok", 1), else_=0),
        func.coalesce(Item.truth_class_id, NO_CLASS),
        func.coalesce(ItemState.class_id, NO_CLASS),
    ).join(ItemState, ItemState.item_id == Item.id)
    query = query.where(Item.project_id == project_id, Item.id <= last_item_id).order_by(Item.id)
    names = ("id", "sha256", "held_out", "waiting", "readable", "truth", "class_id")
    rows = connection.execute(query).all()
    found = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    return {name: column if name == "sha256" else np.array(column, dtype=np.int64) for name, column in found.items()}


def _with_groups(connection: Connection, project_id: int, snapshot: PoolSnapshot) -> PoolSnapshot:
    """The snapshot with groups and the places of windows, if the project has any."""
    group = group_column()
    columns = (Item.id, group, Item.recording_sha256, Item.first_frame, Item.last_frame, Item.sample_rate)
    query = select(*columns).where(Item.project_id == project_id, group.is_not(None)).order_by(Item.id)
    rows = connection.execute(query).all()
    places = np.searchsorted(snapshot.item_ids, [row[0] for row in rows])
    n_items = len(snapshot.item_ids)
    groups, windows = np.full(n_items, -1, np.int64), np.full((n_items, 3), -1.0)
    numbers: dict[str, int] = {}
    for place, row in zip(places.tolist(), rows, strict=True):
        if place < n_items and snapshot.item_ids[place] == row[0]:
            groups[place] = numbers.setdefault(row[1], len(numbers))
            if row[2] is not None:
                rate = row[5] or 1
                recording = numbers.setdefault(f"recording {row[2]}", len(numbers))
                windows[place] = recording, (row[3] or 0) / rate, ((row[4] or 0) + 1) / rate
    return replace(
        snapshot,
        groups=groups if (groups >= 0).any() else None,
        windows=windows if (windows[:, 0] >= 0).any() else None,
    )


def _set_past(
    connection: Connection, project_id: int, moment: Moment, columns: dict[str, Any], effective: dict[int, int]
) -> None:
    """Replace the current labels and waiting flags by those at `moment`, derived from the events up to it."""
    wanted = projections.labels_per_item(connection, project_id)
    row_of = {item_id: row for row, item_id in enumerate(columns["id"].tolist())}
    columns["class_id"] = np.full(len(row_of), NO_CLASS, dtype=np.int64)
    columns["waiting"] = columns["readable"] & (1 - columns["held_out"])
    for item_id, events in _events_until(connection, project_id, moment.label_sequence):
        row = row_of.get(item_id)
        if row is None:
            continue
        state = projections.derive(events, effective)
        columns["class_id"][row] = state.class_id or NO_CLASS
        if state.skipped or state.decided or state.n_labels >= wanted:
            columns["waiting"][row] = 0


def _events_until(connection: Connection, project_id: int, sequence: int) -> Iterator[tuple[int, list[Any]]]:
    query = (
        select(LabelEvent.__table__)
        .where(LabelEvent.project_id == project_id, LabelEvent.sequence <= sequence)
        .order_by(LabelEvent.item_id, LabelEvent.sequence)
        .execution_options(yield_per=5_000)
    )
    for item_id, events in groupby(connection.execute(query), key=lambda row: row.item_id):
        yield item_id, list(events)


def _snapshot(
    kind: Any, class_names: tuple[str, ...], columns: dict[str, Any], position_of: dict[int, int], sequence: int
) -> PoolSnapshot:
    held_out = columns["held_out"].astype(np.bool_)
    given, truth = (_positions(columns[name], position_of) for name in ("class_id", "truth"))
    known = np.where(given != UNLABELED, given, truth)
    return PoolSnapshot(
        kind=kind,
        class_names=class_names,
        item_ids=columns["id"],
        hashes=tuple(columns["sha256"]),
        labels=np.where(held_out, UNLABELED, given),
        held_out=held_out,
        held_out_labels=np.where(held_out, known, UNLABELED),
        eligible=columns["waiting"].astype(np.bool_) & ~held_out & (columns["class_id"] == NO_CLASS),
        label_sequence=sequence,
    )


def _positions(class_ids: NDArray[np.int64], position_of: dict[int, int]) -> NDArray[np.int64]:
    """(n,) class ids -> (n,) positions, UNLABELED where there is none."""
    positions = np.full(len(class_ids), UNLABELED, dtype=np.int64)
    for class_id, position in position_of.items():
        positions[class_ids == class_id] = position
    return positions
