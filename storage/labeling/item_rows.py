"""Items as frozen rows: media, label state and the newest pick, with filters and orders for listing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Select, func, select, text

from storage.database.bulk import chunks
from storage.database.schema import NOT_OK, CurrentLabel, Item, ItemState, Pick, Round
from storage.database.store import Store
from storage.projects.class_rows import members_of

State = Literal["all", "waiting", "labeled", "unlabeled", "skipped", "flagged", "held_out", "unreadable", "contested"]
Order = Literal["id", "queue", "newest", "name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRow:
    """One selection of an item by a round, with its position and reason."""

    round_id: int
    round: int  # its number in the project
    position: int
    item_id: int
    score: float
    reason: dict[str, Any]
    hindsight: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    id: int
    project_id: int
    sha256: str
    name: str
    media_type: str
    n_bytes: int
    link_path: str | None
    link_mtime_ns: int | None
    seconds: float | None
    sample_rate: int | None
    channels: int | None
    width: int | None
    height: int | None
    held_out: bool
    condition: str
    condition_note: str
    class_id: int | None  # the label that counts, as given
    n_labels: int
    decided: bool
    skipped: bool
    flagged: bool
    waiting: bool
    sequence: int | None  # the event that gave class_id
    recording_sha256: str | None = None  # of a window, as the following two
    first_frame: int | None = None
    last_frame: int | None = None
    group_name: str = ""
    pick: PickRow | None = None  # the newest

    @property
    def waits_for_second_look(self) -> bool:
        """Whether the item waits for a second look; its label is then not shown to the annotator."""
        return self.waiting and self.pick is not None and bool(self.pick.reason.get("second_look"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFilter:
    """Selects the items that meet all conditions."""

    state: State = "all"
    class_id: int | None = None  # counts as this class, merged ones included
    annotator: int | None = None  # has a current label of this annotator
    search: str = ""  # part of the name, upper or lower case
    round_id: int | None = None  # was picked by this round
    after: int | None = None  # has a higher id: the next page of a listing in the order of ids

    @property
    def needs_item(self) -> bool:
        """Whether a condition reads the table of items, not only that of their states."""
        return bool(self.search) or self.state in ("labeled", "unlabeled", "held_out", "unreadable")


ITEM_COLUMNS = [
    getattr(ItemState if name in ItemState.__table__.c and name not in ("item_id", "project_id") else Item, name)
    for name in ItemRow.__dataclass_fields__
    if name != "pick"
]


def item_query(project_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(*ITEM_COLUMNS)
        .join_from(Item, ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id)
    )


def filtered(query: Select[*tuple[Any, ...]], which: ItemFilter) -> Select[Any]:
    """`query` over items and their states, restricted to `which`."""
    conditions: dict[str, list[Any]] = {
        "all": [],
        "waiting": [ItemState.waiting],
        "labeled": [ItemState.class_id.is_not(None), ~Item.held_out],
        "unlabeled": [ItemState.class_id.is_(None), ~Item.held_out],
        "skipped": [ItemState.skipped],
        "flagged": [ItemState.flagged],
        "held_out": [Item.held_out],
        "unreadable": [text(NOT_OK)],
        "contested": [ItemState.n_labels > 1],
    }
    query = query.where(*conditions[which.state])
    if which.after is not None:
        query = query.where(Item.id > which.after)
    if which.class_id is not None:
        query = query.where(ItemState.class_id.in_(members_of(which.class_id)))
    if which.annotator is not None:
        mine = select(CurrentLabel.item_id).where(
            CurrentLabel.project_id == ItemState.project_id, CurrentLabel.annotator_id == which.annotator
        )
        query = query.where(ItemState.item_id.in_(mine))
    if which.search:
        query = query.where(func.lower(Item.name).contains(which.search.lower(), autoescape=True))
    if which.round_id is not None:
        query = query.where(ItemState.item_id.in_(select(Pick.item_id).where(Pick.round_id == which.round_id)))
    return query


def ordered(query: Select[*tuple[Any, ...]], order: Order) -> Select[Any]:
    by: dict[str, tuple[Any, ...]] = {
        "id": (Item.id,),
        "queue": (ItemState.waiting.desc(), ItemState.queue_rank, ItemState.shuffle, ItemState.item_id),
        "newest": (func.coalesce(ItemState.sequence, -1).desc(), ItemState.item_id),
        "name": (Item.name, ItemState.item_id),
    }
    return query.order_by(*by[order])


def rows_of(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[ItemRow]:
    rows = connection.execute(query).all()
    picks = newest_picks(connection, [row.id for row in rows])
    return [ItemRow(**row._asdict(), pick=picks.get(row.id)) for row in rows]


def rows_by_id(connection: Connection, project_id: int, item_ids: Sequence[int]) -> list[ItemRow]:
    """The rows in the order of `item_ids`; unknown ids are omitted."""
    found = {
        row.id: row
        for chunk in chunks(item_ids)
        for row in rows_of(connection, item_query(project_id).where(ItemState.item_id.in_(chunk)))
    }
    return [found[item_id] for item_id in item_ids if item_id in found]


def pick_query() -> Select[*tuple[Any, ...]]:
    return select(
        Pick.round_id, Round.number.label("round"), Pick.position, Pick.item_id, Pick.score, Pick.reason, Pick.hindsight
    ).join_from(Pick, Round, Round.id == Pick.round_id)


def newest_picks(connection: Connection, item_ids: Sequence[int]) -> dict[int, PickRow]:
    """item id -> the pick of the newest round that chose it."""
    newest: dict[int, PickRow] = {}
    for chunk in chunks(item_ids):
        query = pick_query().where(Pick.item_id.in_(chunk)).order_by(Pick.round_id)
        newest.update({row.item_id: PickRow(**row._asdict()) for row in connection.execute(query)})
    return newest


def item_names(store: Store, project_id: int, item_ids: Sequence[int]) -> dict[int, str]:
    """item id -> name; ids of other projects are omitted."""
    columns = (Item.id, Item.name, Item.project_id)
    with store.read() as connection:
        return {
            item_id: name
            for chunk in chunks(item_ids)
            for item_id, name, of in connection.execute(select(*columns).where(Item.id.in_(chunk)))
            if of == project_id
        }


def item_ids_by_hash(store: Store, project_id: int, hashes: Sequence[str]) -> dict[str, int]:
    """SHA-256 -> item id, for the hashes that are items of the project."""
    found: dict[str, int] = {}
    with store.read() as connection:
        for chunk in chunks(list(hashes)):
            query = select(Item.sha256, Item.id).where(Item.project_id == project_id, Item.sha256.in_(chunk))
            found.update({row.sha256: row.id for row in connection.execute(query)})
    return found


def first_pick_rounds(store: Store, project_id: int) -> dict[int, int]:
    """item id -> the number of the first round that picked it; replays do not count."""
    query = (
        select(Pick.item_id, func.min(Round.number))
        .join(Round, Round.id == Pick.round_id)
        .where(Round.project_id == project_id, Round.replay_of.is_(None))
        .group_by(Pick.item_id)
    )
    with store.read() as connection:
        return {item_id: int(number) for item_id, number in connection.execute(query)}


def count_items(store: Store, project_id: int) -> int:
    """All items of a project, test items and unreadable ones included."""
    with store.read() as connection:
        return int(connection.execute(select(func.count()).where(Item.project_id == project_id)).scalar_one())
