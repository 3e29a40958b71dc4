"""The recordings of a project and their windows.

A recording has a row as long as one of its windows is an item: deleting the last window deletes the recording, and its
bytes where nothing else refers to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, func, select, text

from core.errors import NotFound
from storage.database.bulk import chunks
from storage.database.schema import Item, ItemState
from storage.database.store import Store
from storage.database.strings import count
from storage.database.tables.recordings import IS_WINDOW, Recording

WINDOW_CLASSES = ("mixed", "none of these")
"""Classes for windows that contain several classes, or none; offered when a project is created."""
WINDOW_GUIDELINES = (
    "Label each window with the class that is most prominent in it. Use mixed where two classes are equally prominent, "
    "and none of these where there is none. Press X to hear the seconds before and after."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRow:
    sha256: str
    name: str
    media_type: str
    n_bytes: int
    link_path: str | None
    n_frames: int
    sample_rate: int
    channels: int
    n_windows: int
    n_labeled: int

    @property
    def seconds(self) -> float:
        return self.n_frames / self.sample_rate


@dataclass(frozen=True, slots=True)
class WindowState:
    """One window on the strip of its recording."""

    item_id: int
    first_frame: int | None
    last_frame: int | None
    class_id: int | None  # the label that counts
    held_out: bool


def list_recordings(store: Store, project_id: int, sha256: str | None = None) -> list[RecordingRow]:
    """All recordings with the numbers of their windows, sorted by name; with `sha256`, only that one."""
    names = [
        name for name in RecordingRow.__dataclass_fields__ if not name.startswith("n_windows") and name != "n_labeled"
    ]
    columns = [getattr(Recording, name) for name in names]
    query = (
        select(*columns, func.count(Item.id).label("n_windows"), func.count(ItemState.class_id).label("n_labeled"))
        .select_from(Recording)
        .outerjoin(Item, and_(Item.project_id == project_id, Item.recording_sha256 == Recording.sha256))
        .outerjoin(ItemState, ItemState.item_id == Item.id)
        .where(Recording.project_id == project_id)
        .group_by(Recording.project_id, *columns)
        .order_by(Recording.name, Recording.sha256)
    )
    if sha256 is not None:
        query = query.where(Recording.sha256 == sha256)
    with store.read() as connection:
        return [RecordingRow(**row._asdict()) for row in connection.execute(query)]


def get_recording(store: Store, project_id: int, sha256: str) -> RecordingRow:
    found = list_recordings(store, project_id, sha256)
    if not found:
        raise NotFound("The project has no such recording.")
    return found[0]


def find_recording(store: Store, project_id: int, name: str) -> RecordingRow:
    """The recording with this name, or whose SHA-256 starts with it; `NotFound` when there is none or more than one."""
    rows = list_recordings(store, project_id)
    found = [row for row in rows if row.name == name or (len(name) >= 6 and row.sha256.startswith(name.lower()))]
    if len(found) != 1:
        several = f"{len(found)} recordings are called {name!r}; name one by its SHA-256." if found else ""
        raise NotFound(several or f"The project has no recording {name!r}; it has {count(len(rows), 'recording')}.")
    return found[0]


def windows_of(store: Store, project_id: int, sha256: str) -> list[WindowState]:
    """The windows of a recording in the order of their first frames."""
    query = (
        select(Item.id, Item.first_frame, Item.last_frame, ItemState.class_id, Item.held_out)
        .join(ItemState, ItemState.item_id == Item.id)
        .where(Item.project_id == project_id, text(IS_WINDOW), Item.recording_sha256 == sha256)
        .order_by(Item.first_frame, Item.last_frame)
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
    return [WindowState(row.id, row.first_frame, row.last_frame, row.class_id, row.held_out) for row in rows]


def delete_empty(connection: Connection, project_id: int, hashes: Iterable[str | None]) -> list[str]:
    """Delete the recordings that have no window left; returns their hashes."""
    wanted = sorted({sha256 for sha256 in hashes if sha256 is not None})
    empty: list[str] = []
    for block in chunks(wanted):
        used = select(Item.recording_sha256).where(Item.project_id == project_id, Item.recording_sha256.in_(block))
        empty += sorted(set(block) - set(connection.execute(used).scalars()))
    for block in chunks(empty):
        connection.execute(delete(Recording).where(Recording.project_id == project_id, Recording.sha256.in_(block)))
    return empty


def left_empty(connection: Connection, project_id: int, item_ids: Sequence[int]) -> list[tuple[str, int, str | None]]:
    """(hash, bytes, link path) of the recordings all of whose windows are among `item_ids`."""
    gone: dict[str, int] = {}
    for block in chunks(item_ids):
        query = select(Item.recording_sha256, func.count()).where(
            Item.id.in_(block), Item.recording_sha256.is_not(None)
        )
        for key, number in connection.execute(query.group_by(Item.recording_sha256)):
            sha256 = str(key)
            gone[sha256] = gone.get(sha256, 0) + int(number)
    found: list[tuple[str, int, str | None]] = []
    for sha256, number in sorted(gone.items()):
        total = select(func.count()).where(Item.project_id == project_id, Item.recording_sha256 == sha256)
        row = select(Recording.sha256, Recording.n_bytes, Recording.link_path).where(
            Recording.project_id == project_id, Recording.sha256 == sha256
        )
        known = connection.execute(row).one_or_none()
        if known is not None and int(connection.execute(total).scalar_one()) == number:
            found.append((known.sha256, known.n_bytes, known.link_path))
    return found
