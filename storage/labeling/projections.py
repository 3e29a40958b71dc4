"""What label events mean. The two projections, `current_labels` and `item_states`, follow from the events alone.

Standing      an event that no later `undo` event names
Opinion       an annotator's newest standing `label` or `skip` on an item; a `label` is their current label
Counts        a standing `decide` (the newest), else the class most annotators give, with merged classes counted as one;
              a tie goes to the newest label
Skipped       the newest standing `label`, `skip` or `decide` on the item is a `skip`
Flagged       the newest standing `flag` or `unflag` is a `flag`
Waiting       readable, not held out, not skipped, not decided, fewer current labels than the project asks for

`derive` says this in code for one item. `refresh_states` writes it for the items of a change, in the same transaction;
`rebuild` writes it for the whole project and must change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update

from storage.database.schema import NOT_QUEUED, CurrentLabel, Item, ItemState, LabelClass, LabelEvent, Project
from storage.labeling import queue

CHUNK = 400  # identifiers in one IN (...) list
Identifier = TypeVar("Identifier", int, str)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the events of one item say."""

    labels: dict[int, tuple[int, int]] = field(default_factory=dict)  # annotator -> (class as given, sequence)
    class_id: int | None = None
    decided: bool = False
    skipped: bool = False
    flagged: bool = False
    sequence: int | None = None

    @property
    def n_labels(self) -> int:
        return len(self.labels)


def derive(events: Sequence[Any], effective: Mapping[int, int]) -> Standing:
    """`events` of one item in order of sequence -> what stands."""
    undone = {event.undoes for event in events if event.kind == "undo"}
    opinions: dict[int, Any] = {}
    newest: dict[str, Any] = {}
    for event in events:
        if event.uuid in undone:
            continue
        if event.kind in ("label", "skip"):
            opinions[event.annotator_id] = event
        if event.kind in ("label", "skip", "decide"):
            newest["opinion"] = event
        if event.kind in ("flag", "unflag"):
            newest["flag"] = event
        if event.kind == "decide":
            newest["decide"] = event
    given = {who: event for who, event in opinions.items() if event.kind == "label"}
    counts = newest.get("decide") or _most_given(given.values(), effective)
    return Standing(
        labels={who: (event.class_id, event.sequence) for who, event in given.items()},
        class_id=counts.class_id if counts is not None else None,
        decided="decide" in newest,
        skipped="opinion" in newest and newest["opinion"].kind == "skip",
        flagged="flag" in newest and newest["flag"].kind == "flag",
        sequence=counts.sequence if counts is not None else None,
    )


def _most_given(given: Iterable[Any], effective: Mapping[int, int]) -> Any | None:
    """The newest label of the class with most labels; among equals, of the class labeled last."""
    by_class: dict[int, list[Any]] = defaultdict(list)
    for event in given:
        by_class[effective.get(event.class_id, event.class_id)].append(event)
    if not by_class:
        return None
    newest = {one: max(events, key=lambda event: event.sequence) for one, events in by_class.items()}
    winner = max(by_class, key=lambda one: (len(by_class[one]), newest[one].sequence))
    return newest[winner]


def shuffle_of(sha256: str) -> int:
    """A place between 0 and 2^31 - 1 that depends on the bytes alone."""
    return int(sha256[:8], 16) & 0x7FFFFFFF


def start_states(connection: Connection, project_id: int, item_ids: Sequence[int]) -> None:
    """Make the projections of items just inserted; items that have theirs keep them."""
    for chunk in chunks(item_ids):
        known = set(connection.execute(select(ItemState.item_id).where(ItemState.item_id.in_(chunk))).scalars())
        query = select(Item.id, Item.sha256, Item.held_out, Item.condition).where(
            Item.id.in_(chunk), Item.project_id == project_id
        )
        fresh = [
            {
                "item_id": row.id,
                "project_id": project_id,
                "waiting": row.condition == "ok" and not row.held_out,
                "n_labels": 0,
                "decided": False,
                "skipped": False,
                "flagged": False,
                "queue_rank": NOT_QUEUED,
                "shuffle": shuffle_of(row.sha256),
            }
            for row in connection.execute(query)
            if row.id not in known
        ]
        if fresh:
            connection.execute(insert(ItemState), fresh)
            waiting = [(NOT_QUEUED, row["shuffle"], row["item_id"]) for row in fresh if row["waiting"]]
            queue.move_cursors_back(connection, project_id, waiting)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the meaning of events depends on besides the events."""

    effective: Mapping[int, int]  # class id -> the class it counts as
    wanted: int  # labels per item


def rules_of(connection: Connection, project_id: int) -> Rules:
    return Rules(effective_ids(connection, project_id), labels_per_item(connection, project_id))


def refresh_states(connection: Connection, project_id: int, item_ids: Iterable[int], rules: Rules | None = None) -> int:
    """Derive the projections of these items again from their events; call after adding events or changing items.
    Returns how many rows differed."""
    rules = rules or rules_of(connection, project_id)
    changed = 0
    for chunk in chunks(sorted(set(item_ids))):
        events = _events_by_item(connection, LabelEvent.item_id.in_(chunk))
        rows = connection.execute(_state_query(project_id).where(Item.id.in_(chunk))).all()
        derived = [(row, derive(events.get(row.item_id, ()), rules.effective)) for row in rows]
        changed += _write(connection, project_id, derived, rules.wanted)
    return changed


def rebuild(connection: Connection, project_id: int) -> int:
    """Derive all projections of the project again; returns how many items or labels differed (0 in a sound store)."""
    item_ids = list(connection.execute(select(Item.id).where(Item.project_id == project_id)).scalars())
    start_states(connection, project_id, item_ids)
    return refresh_states(connection, project_id, item_ids)


def refresh_contested(connection: Connection, project_id: int) -> None:
    """After a merge or its undoing: items with several labels may count as another class now."""
    query = select(ItemState.item_id).where(ItemState.project_id == project_id, ItemState.n_labels > 1)
    refresh_states(connection, project_id, connection.execute(query).scalars().all())


def refresh_waiting(connection: Connection, project_id: int, wanted: int) -> None:
    """After the number of labels per item changed."""
    readable = select(Item.id).where(Item.project_id == project_id, Item.condition == "ok", ~Item.held_out)
    state = ItemState.__table__.c
    waits = state.item_id.in_(readable) & ~state.skipped & ~state.decided & (state.n_labels < wanted)
    which = (ItemState.project_id == project_id, ItemState.waiting != waits)
    connection.execute(update(ItemState).where(*which).values(waiting=waits))
    queue.forget_cursors(connection, project_id)


def effective_ids(connection: Connection, project_id: int) -> dict[int, int]:
    """class id -> the class it counts as."""
    query = select(LabelClass.id, LabelClass.effective_id).where(LabelClass.project_id == project_id)
    return {row.id: row.effective_id or row.id for row in connection.execute(query)}


def labels_per_item(connection: Connection, project_id: int) -> int:
    settings = connection.execute(select(Project.settings).where(Project.id == project_id)).scalar_one()
    return int(settings.get("labels_per_item", 1))


def chunks(ids: Iterable[Identifier], size: int = CHUNK) -> Iterator[list[Identifier]]:
    ids = list(ids)
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _events_by_item(connection: Connection, condition: Any) -> dict[int, list[Any]]:
    columns = (
        LabelEvent.item_id, LabelEvent.sequence, LabelEvent.uuid, LabelEvent.kind,
        LabelEvent.annotator_id, LabelEvent.class_id, LabelEvent.undoes,
    )  # fmt: skip
    query = select(*columns).where(condition).order_by(LabelEvent.item_id, LabelEvent.sequence)
    rows = connection.execute(query)
    return {item_id: list(events) for item_id, events in groupby(rows, key=lambda row: row.item_id)}


def _state_query(project_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(ItemState.__table__, Item.held_out, Item.condition)
        .join(Item, Item.id == ItemState.item_id)
        .where(ItemState.project_id == project_id)
    )


def _write(connection: Connection, project_id: int, derived: Sequence[tuple[Any, Standing]], wanted: int) -> int:
    """Bring the rows of these items to what was derived; returns how many were different."""
    changed, again_waiting = [], []
    for row, standing in derived:
        values = {
            "waiting": row.condition == "ok"
            and not (row.held_out or standing.skipped or standing.decided)
            and standing.n_labels < wanted,
            "n_labels": standing.n_labels,
            "class_id": standing.class_id,
            "decided": standing.decided,
            "skipped": standing.skipped,
            "flagged": standing.flagged,
            "sequence": standing.sequence,
        }
        if any(getattr(row, name) != value for name, value in values.items()):
            changed.append({"which": row.item_id} | values)
        if values["waiting"] and not row.waiting:
            again_waiting.append((row.queue_rank, row.shuffle, row.item_id))
    if changed:
        names = [name for name in changed[0] if name != "which"]
        statement = update(ItemState).where(ItemState.__table__.c.item_id == bindparam("which"))
        connection.execute(statement.values({name: bindparam(name) for name in names}), changed)
    if wanted > 1:
        queue.move_cursors_back(connection, project_id, again_waiting)
    return len(changed) + _write_labels(connection, project_id, derived, wanted)


def _write_labels(connection: Connection, project_id: int, derived: Sequence[tuple[Any, Standing]], wanted: int) -> int:
    item_ids = [row.item_id for row, _ in derived]
    query = select(CurrentLabel.__table__).where(CurrentLabel.item_id.in_(item_ids))
    stored = {(row.item_id, row.annotator_id): (row.class_id, row.sequence) for row in connection.execute(query)}
    meant = {(row.item_id, who): label for row, standing in derived for who, label in standing.labels.items()}
    gone = [key for key, label in stored.items() if meant.get(key) != label]
    fresh = [key for key, label in meant.items() if stored.get(key) != label]
    if gone:
        table = CurrentLabel.__table__.c
        statement = delete(CurrentLabel).where(table.item_id == bindparam("i"), table.annotator_id == bindparam("a"))
        connection.execute(statement, [{"i": item, "a": who} for item, who in gone])
    if fresh:
        names = ("item_id", "annotator_id", "project_id", "class_id", "sequence")
        rows = [dict(zip(names, (*key, project_id, *meant[key]), strict=True)) for key in fresh]
        connection.execute(insert(CurrentLabel), rows)
    if wanted > 1:
        places = {row.item_id: (row.queue_rank, row.shuffle, row.item_id) for row, _ in derived}
        for item, who in gone:
            if (item, who) not in meant:
                queue.move_cursors_back(connection, project_id, [places[item]], annotator=who)
    return len(set(gone) | set(fresh))
