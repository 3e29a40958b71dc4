"""Finding items in the whole pool of a project: by state, class, annotator, round, split, date, name and marks.

`matching` answers a query with one boolean per item, at the positions of `ItemStates`. Conditions on the state of an
item compare arrays, and so do those on an annotator's labels, on notes and on contested items
(`storage.labeling.browsing.kept_values`). Unreadable items and the picks of a round are read through an index that
holds only those rows. No query reads all items; names and splits are read once
(`storage.labeling.browsing.item_columns`).

A `viewer` is an annotator of a blind project: only their own labels and notes count, and no item is contested.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, select, text

from storage.database.bulk import chunks
from storage.database.schema import (
    IN_NAMED_SPLIT,
    NOT_OK,
    Annotator,
    CurrentLabel,
    Item,
    LabelEvent,
    Pick,
    Round,
)
from storage.database.store import Store
from storage.labeling.browsing.item_columns import item_columns
from storage.labeling.browsing.kept_values import are_contested, have_notes, labels_of, standing_notes
from storage.labeling.state_arrays import NO_ID, ItemStates, item_states
from storage.projects import class_rows

Show = Literal["waiting", "labeled", "test", "all"]
Mark = Literal["flagged", "skipped", "noted", "contested", "unreadable"]
SHOWS: tuple[Show, ...] = ("waiting", "labeled", "test", "all")
MARKS: tuple[Mark, ...] = ("flagged", "skipped", "noted", "contested", "unreadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemQuery:
    """The items that meet all conditions. `waiting` are those that can be labeled now."""

    show: Show = "all"
    marks: tuple[Mark, ...] = ()
    class_id: int | None = None  # the label counts as this class
    annotator_id: int | None = None  # has a current label of this annotator
    round_id: int | None = None  # was picked by this round
    split: str = ""  # as exports name it
    since: datetime | None = None  # the label was given at this time or later
    until: datetime | None = None  # and before this one
    search: str = ""  # part of the name, upper or lower case
    items: tuple[int, ...] | None = None  # only these, for example an area of the map
    viewer: int = NO_ID
    hidden: tuple[int, ...] = ()  # items whose label is not shown and not searched, such as those of second looks


@dataclass(frozen=True, slots=True)
class Matches:
    """One entry per item of the project, at the positions of `states`."""

    states: ItemStates
    matches: NDArray[np.bool_]
    class_id: NDArray[np.int32]  # of the label that the viewer may see, as given; NO_ID without one

    @property
    def item_ids(self) -> NDArray[np.int64]:
        return self.states.item_ids[self.matches]


def matching(store: Store, project_id: int, query: ItemQuery) -> Matches:
    """The items that meet all conditions of the query."""
    states = item_states(store, project_id)
    labels = _visible_labels(store, project_id, states, query)
    mask = _of_states(states, labels, query)
    with store.read() as connection:
        if query.class_id is not None:
            members = list(connection.execute(class_rows.members_of(query.class_id)).scalars())
            mask &= np.isin(labels, np.array(members, np.int32))
        for ids in _listed(connection, project_id, query):
            mask &= _are_among(states, ids)
    for fits in _kept(store, project_id, states, query):
        mask &= fits
    if query.split or query.search:
        columns = item_columns(store, project_id, states)
        if query.split:
            mask &= columns.in_split(query.split, states.held_out)
        if query.search:
            mask &= columns.containing(query.search)
    return Matches(states, mask, labels)


def _visible_labels(store: Store, project_id: int, states: ItemStates, query: ItemQuery) -> NDArray[np.int32]:
    if query.viewer != NO_ID:
        return labels_of(store, project_id, query.viewer, states)
    if not query.hidden:
        return states.class_id
    return np.where(_are_among(states, np.array(query.hidden, np.int64)), np.int32(NO_ID), states.class_id)


def _of_states(states: ItemStates, labels: NDArray[np.int32], query: ItemQuery) -> NDArray[np.bool_]:
    """(n,) whether the item meets the conditions on its state and on the labels in view; a new array."""
    labeled = labels != NO_ID
    if query.show == "waiting":
        mask = states.waiting & ~labeled if query.viewer != NO_ID else states.waiting.copy()
    elif query.show == "labeled":
        mask = labeled & ~states.held_out
    else:
        mask = states.held_out.copy() if query.show == "test" else np.ones(states.n_items, np.bool_)
    for mark in ("flagged", "skipped"):
        if mark in query.marks:
            mask &= getattr(states, mark)
    if query.since is not None:
        mask &= labeled & (states.labeled_at >= query.since.timestamp())
    if query.until is not None:
        mask &= labeled & (states.labeled_at < query.until.timestamp())
    if query.items is not None:
        mask &= _are_among(states, np.unique(np.array(query.items, np.int64)))
    return mask


def _are_among(states: ItemStates, item_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    inside = np.zeros(states.n_items, np.bool_)
    at = states.positions(item_ids)
    inside[at[at >= 0]] = True
    return inside


def _listed(connection: Connection, project_id: int, query: ItemQuery) -> Iterable[NDArray[np.int64]]:
    """For each condition that has an index, the ids of the items that meet it."""
    if "unreadable" in query.marks:
        yield _ids(connection, select(Item.id).where(Item.project_id == project_id, text(NOT_OK)))
    if query.round_id is not None:
        picks = select(Pick.item_id).join(Round, Round.id == Pick.round_id)
        yield _ids(connection, picks.where(Pick.round_id == query.round_id, Round.project_id == project_id))


def _kept(store: Store, project_id: int, states: ItemStates, query: ItemQuery) -> Iterable[NDArray[np.bool_]]:
    """For each condition on labels and notes, (n,) whether the item meets it, from the arrays of `kept_values`."""
    nothing = np.zeros(states.n_items, np.bool_)
    if "noted" in query.marks:
        yield have_notes(store, project_id, query.viewer, states)
    if "contested" in query.marks:
        yield nothing if query.viewer != NO_ID else are_contested(store, project_id, states)
    if query.annotator_id is not None:
        hidden = query.viewer not in (NO_ID, query.annotator_id)
        yield nothing if hidden else labels_of(store, project_id, query.annotator_id, states) != NO_ID
        yield ~_are_among(states, np.array(query.hidden, np.int64))


def _ids(connection: Connection, query: Select[Any]) -> NDArray[np.int64]:
    """The only column of a query, from the driver's tuples."""
    with connection.execute(query) as result:
        tuples: Any = result.cursor
        return np.fromiter((row[0] for row in tuples), np.int64)


def notes_of(
    store: Store, project_id: int, item_ids: Iterable[int], viewer: int = NO_ID
) -> dict[int, list[tuple[int, str]]]:
    """item id -> (annotator id, note) of its notes, oldest first, for the items that have any."""
    found: dict[int, dict[int, str]] = {}
    with store.read() as connection:
        for block in chunks(item_ids):
            for row in connection.execute(standing_notes(project_id).where(LabelEvent.item_id.in_(block))):
                if viewer in (NO_ID, row.annotator_id):
                    found.setdefault(row.item_id, {}).pop(row.annotator_id, None)
                    found[row.item_id][row.annotator_id] = row.note
    standing = {item: [(who, note) for who, note in notes.items() if note] for item, notes in found.items()}
    return {item: notes for item, notes in standing.items() if notes}


def note_texts(connection: Connection, project_id: int, first: int, last: int) -> dict[int, str]:
    """item id -> its notes, one per line, oldest first, for the items in a range of ids that have any."""
    found: dict[int, dict[int, str]] = {}
    for row in connection.execute(standing_notes(project_id).where(LabelEvent.item_id.between(first, last))):
        found.setdefault(row.item_id, {}).pop(row.annotator_id, None)
        found[row.item_id][row.annotator_id] = row.note
    texts = {item: "\n".join(note for note in notes.values() if note) for item, notes in found.items()}
    return {item: text for item, text in texts.items() if text}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryChoices:
    """The values that the conditions of a query can have in a project."""

    annotators: list[tuple[int, str]]  # with a current label in the project: id, name
    rounds: list[tuple[int, int]]  # finished rounds, newest first: id, number
    splits: list[str]  # as exports name them


def query_choices(store: Store, project_id: int, viewer: int = NO_ID) -> QueryChoices:
    """`QueryChoices` of this project."""
    states = item_states(store, project_id)
    with store.read() as connection:
        people = connection.execute(select(Annotator.id, Annotator.name).order_by(Annotator.name)).all()
        gave = [row.id for row in people if _has_label(connection, project_id, row.id)]
        finished = select(Round.id, Round.number).where(Round.project_id == project_id, Round.status == "finished")
        rounds = [(row.id, row.number) for row in connection.execute(finished.order_by(Round.number.desc()))]
        named = select(Item.split_name).where(Item.project_id == project_id, text(IN_NAMED_SPLIT)).distinct()
        splits = set(connection.execute(named).scalars())
    splits |= {"test"} if states.n_held_out else set()
    splits |= {"train"} if states.n_held_out < states.n_items else set()
    names = {row.id: row.name for row in people}
    shown = [(one, names[one]) for one in gave if viewer in (NO_ID, one)]
    return QueryChoices(annotators=shown, rounds=rounds, splits=sorted(splits))


def _has_label(connection: Connection, project_id: int, annotator: int) -> bool:
    query = select(CurrentLabel.item_id).where(
        CurrentLabel.project_id == project_id, CurrentLabel.annotator_id == annotator
    )
    return connection.execute(query.limit(1)).one_or_none() is not None
