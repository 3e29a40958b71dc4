"""The meaning of label events. The two projections, `current_labels` and `item_states`, follow from the events alone.

Current label   an annotator's newest `label` or `skip` on an item, if that is a `label`
Counting label  the newest `decide`; else the class that most annotators give, merged classes counted as one; a tie goes
                to the newest label
Skipped         the newest `label`, `skip` or `decide` on the item is a `skip`
Flagged         the newest `flag` or `unflag` is a `flag`
Waiting         readable, not skipped, not decided, fewer current labels than the project requires, and no test item
                unless the item belongs to a test set (`storage.labeling.test_sets`). An item that a round picked for a
                second look also waits, until it is labeled, skipped or decided after the pick.

Undone events (`storage.labeling.undo`) are ignored. `derive` implements these rules for one item. `refresh_states`
writes the result for the items of a change, in the same transaction; `rebuild` writes it for the whole project and
must change nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, or_, select, update

from storage.database.bulk import chunks
from storage.database.schema import NOT_QUEUED, CurrentLabel, Item, ItemState, LabelEvent, Pick, Project
from storage.labeling import queue
from storage.labeling.undo import without_undone
from storage.projects.class_rows import effective_ids


@dataclass(frozen=True, slots=True)
class DerivedState:
    """The state of one item that its events define."""

    labels: dict[int, tuple[int, int]] = field(default_factory=dict)  # annotator -> (class as given, sequence)
    class_id: int | None = None
    decided: bool = False
    skipped: bool = False
    flagged: bool = False
    sequence: int | None = None
    handled: int = 0  # sequence of the newest label, skip or decision

    @property
    def n_labels(self) -> int:
        return len(self.labels)


def derive(events: Sequence[Any], effective: Mapping[int, int]) -> DerivedState:
    """The state of one item from its events, in order of sequence; `effective`: class id -> the class it counts as."""
    decisions: dict[int, Any] = {}  # annotator -> newest label or skip
    newest: dict[str, Any] = {}
    for event in without_undone(events):
        if event.kind in ("label", "skip"):
            decisions[event.annotator_id] = event
        if event.kind in ("label", "skip", "decide"):
            newest["decision"] = event
        if event.kind in ("flag", "unflag"):
            newest["flag"] = event
        if event.kind == "decide":
            newest["decide"] = event
    given = {who: event for who, event in decisions.items() if event.kind == "label"}
    counts = newest.get("decide") or _most_given(given.values(), effective)
    return DerivedState(
        labels={who: (event.class_id, event.sequence) for who, event in given.items()},
        class_id=counts.class_id if counts is not None else None,
        decided="decide" in newest,
        skipped="decision" in newest and newest["decision"].kind == "skip",
        flagged="flag" in newest and newest["flag"].kind == "flag",
        sequence=counts.sequence if counts is not None else None,
        handled=newest["decision"].sequence if "decision" in newest else 0,
    )


def _most_given(given: Iterable[Any], effective: Mapping[int, int]) -> Any | None:
    """The newest label of the class with the most labels; ties go to the class that was labeled last."""
    by_class: dict[int, list[Any]] = defaultdict(list)
    for event in given:
        by_class[effective.get(event.class_id, event.class_id)].append(event)
    if not by_class:
        return None
    newest = {one: max(events, key=lambda event: event.sequence) for one, events in by_class.items()}
    winner = max(by_class, key=lambda one: (len(by_class[one]), newest[one].sequence))
    return newest[winner]


def shuffle_of(sha256: str) -> int:
    """A queue position in [0, 2^31) that depends on the item's bytes alone."""
    return int(sha256[:8], 16) & 0x7FFFFFFF


def start_states(connection: Connection, project_id: int, item_ids: Sequence[int]) -> None:
    """Create the projections of new items; existing projections stay unchanged."""
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
    """The project settings that `derive` and the waiting rule depend on."""

    effective: Mapping[int, int]  # class id -> the class it counts as
    wanted: int  # labels per item


def rules_of(connection: Connection, project_id: int) -> Rules:
    return Rules(effective_ids(connection, project_id), labels_per_item(connection, project_id))


def refresh_states(connection: Connection, project_id: int, item_ids: Iterable[int], rules: Rules | None = None) -> int:
    """Derive the projections of these items from their events, write the differences, and return their number.

    Call it after adding events or changing items.
    """
    rules = rules or rules_of(connection, project_id)
    changed = 0
    for chunk in chunks(sorted(set(item_ids))):
        events = _events_by_item(connection, LabelEvent.item_id.in_(chunk))
        rows = connection.execute(_state_query(project_id).where(Item.id.in_(chunk))).all()
        derived = [(row, derive(events.get(row.item_id, ()), rules.effective)) for row in rows]
        changed += _write(connection, project_id, derived, rules.wanted)
    return changed


def rebuild(connection: Connection, project_id: int) -> int:
    """Derive all projections of the project again; returns how many items or labels differed (0 when consistent)."""
    item_ids = list(connection.execute(select(Item.id).where(Item.project_id == project_id)).scalars())
    start_states(connection, project_id, item_ids)
    return refresh_states(connection, project_id, item_ids)


def refresh_contested(connection: Connection, project_id: int) -> None:
    """Derive items with several labels again after a merge or an unmerge, which may change the majority."""
    query = select(ItemState.item_id).where(ItemState.project_id == project_id, ItemState.n_labels > 1)
    refresh_states(connection, project_id, connection.execute(query).scalars().all())


def refresh_waiting(connection: Connection, project_id: int, wanted: int) -> None:
    """Update which items wait after the number of labels per item has changed."""
    served = or_(~Item.held_out, Item.test_set_id.is_not(None))
    readable = select(Item.id).where(Item.project_id == project_id, Item.condition == "ok", served)
    state = ItemState.__table__.c
    waits = state.item_id.in_(readable) & ~state.skipped & ~state.decided & (state.n_labels < wanted)
    which = (ItemState.project_id == project_id, ItemState.waiting != waits)
    connection.execute(update(ItemState).where(*which).values(waiting=waits, revision=_revision(project_id)))
    queue.delete_cursors(connection, project_id)
    looks = select(Pick.item_id).join(Item, Item.id == Pick.item_id)
    looks = looks.where(Item.project_id == project_id, Pick.look_after.is_not(None))
    refresh_states(connection, project_id, connection.execute(looks).scalars().all())


def _revision(project_id: int) -> Any:
    """The current revision of the project, as a subquery.

    A change of item states happens in a transaction that has incremented the revision (`projects.lock`).
    """
    return select(Project.revision).where(Project.id == project_id).scalar_subquery()


def mark_changed(connection: Connection, project_id: int, item_ids: Sequence[int]) -> None:
    """Make `storage.labeling.state_arrays` read these items again, after a change of a column outside their state."""
    for chunk in chunks(item_ids):
        statement = update(ItemState).where(ItemState.item_id.in_(chunk))
        connection.execute(statement.values(revision=_revision(project_id)))


def labels_per_item(connection: Connection, project_id: int) -> int:
    settings = connection.execute(select(Project.settings).where(Project.id == project_id)).scalar_one()
    return int(settings.get("labels_per_item", 1))


def _events_by_item(connection: Connection, condition: Any) -> dict[int, list[Any]]:
    columns = (
        LabelEvent.item_id, LabelEvent.sequence, LabelEvent.uuid, LabelEvent.kind,
        LabelEvent.annotator_id, LabelEvent.class_id, LabelEvent.undoes,
    )  # fmt: skip
    query = select(*columns).where(condition).order_by(LabelEvent.item_id, LabelEvent.sequence)
    rows = connection.execute(query)
    return {item_id: list(events) for item_id, events in groupby(rows, key=lambda row: row.item_id)}


def _state_query(project_id: int) -> Select[*tuple[Any, ...]]:
    look = select(func.max(Pick.look_after)).where(Pick.item_id == Item.id).scalar_subquery()
    return (
        select(ItemState.__table__, Item.held_out, Item.test_set_id, Item.condition, look.label("look_after"))
        .join(Item, Item.id == ItemState.item_id)
        .where(ItemState.project_id == project_id)
    )


def _write(connection: Connection, project_id: int, derived: Sequence[tuple[Any, DerivedState]], wanted: int) -> int:
    """Update the rows of these items to the derived state; returns how many differed."""
    changed, again_waiting = [], []
    for row, state in derived:
        values = {
            "waiting": row.condition == "ok"
            and not ((row.held_out and row.test_set_id is None) or state.skipped or state.decided)
            and (state.n_labels < wanted or (row.look_after is not None and state.handled <= row.look_after)),
            "n_labels": state.n_labels,
            "class_id": state.class_id,
            "decided": state.decided,
            "skipped": state.skipped,
            "flagged": state.flagged,
            "sequence": state.sequence,
        }
        if any(getattr(row, name) != value for name, value in values.items()):
            changed.append({"which": row.item_id} | values)
        if values["waiting"] and not row.waiting:
            again_waiting.append((row.queue_rank, row.shuffle, row.item_id))
    if changed:
        names = [name for name in changed[0] if name != "which"]
        statement = update(ItemState).where(ItemState.__table__.c.item_id == bindparam("which"))
        values = {name: bindparam(name) for name in names} | {"revision": _revision(project_id)}
        connection.execute(statement.values(values), changed)
    if wanted > 1:
        queue.move_cursors_back(connection, project_id, again_waiting)
    return len(changed) + _write_labels(connection, project_id, derived, wanted)


def _write_labels(
    connection: Connection, project_id: int, derived: Sequence[tuple[Any, DerivedState]], wanted: int
) -> int:
    item_ids = [row.item_id for row, _ in derived]
    query = select(CurrentLabel.__table__).where(CurrentLabel.item_id.in_(item_ids))
    stored = {(row.item_id, row.annotator_id): (row.class_id, row.sequence) for row in connection.execute(query)}
    meant = {(row.item_id, who): label for row, state in derived for who, label in state.labels.items()}
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
