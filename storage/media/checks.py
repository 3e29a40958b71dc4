"""Detection of files that went missing or changed after import, when they are read or verified.

An item whose file is missing or changed keeps its labels and its history but leaves the queue. It returns to the queue
when the original bytes are back. Only the machine that holds the media records such findings: a worker that reads from
an artifact folder has no media files and records nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, text, update

from core.errors import NotFound
from core.types import Progress, Report, ignore
from storage.database.schema import Item
from storage.database.store import Store
from storage.database.tables.recordings import IS_WINDOW
from storage.labeling import projections
from storage.labeling.item_rows import count_items
from storage.media.contents import check_content, content_of
from storage.media.folder import MediaChanged, MediaMissing
from storage.projects import projects

BLOCK = 500
CONTENT = (Item.sha256, Item.link_path, Item.recording_sha256, Item.first_frame, Item.last_frame)


@dataclass(frozen=True, slots=True)
class MediaReport:
    """Number of items checked, by their present condition."""

    checked: int = 0
    missing: int = 0
    changed: int = 0
    repaired: int = 0


@contextlib.contextmanager
def updating_condition(store: Store, project_id: int, item_id: int, condition: str) -> Iterator[None]:
    """A context for code that reads an item's file and compares it with its hash. If the outcome (missing, changed or
    correct) differs from `condition`, the new condition is stored with the item."""
    try:
        yield
    except (MediaMissing, MediaChanged) as problem:
        found = describe(problem)
        if can_verify_media(store) and condition not in (found[0], "unreadable"):
            set_condition(store, project_id, dict.fromkeys(_same_file(store, project_id, item_id), found))
        raise
    if condition in ("missing", "changed"):
        set_condition(store, project_id, dict.fromkeys(_same_file(store, project_id, item_id), ("ok", "")))


def _same_file(store: Store, project_id: int, item_id: int) -> list[int]:
    """The item and all other windows of its recording, which share its file; unreadable ones are left out."""
    recording = select(Item.recording_sha256).where(Item.id == item_id).scalar_subquery()
    windows = select(Item.id).where(
        Item.project_id == project_id,
        text(IS_WINDOW),
        Item.recording_sha256 == recording,
        Item.condition != "unreadable",
    )
    with store.read() as connection:
        return list(connection.execute(windows).scalars()) or [item_id]


def note_by_hash(store: Store, project_id: int, sha256: str, problem: NotFound) -> None:
    """Note a missing or changed file with the item that has this hash."""
    query = select(Item.id, Item.condition).where(Item.project_id == project_id, Item.sha256 == sha256)
    with store.read() as connection:
        row = connection.execute(query).one_or_none()
    with contextlib.suppress(MediaMissing, MediaChanged):
        if row is not None:
            with updating_condition(store, project_id, row.id, row.condition):
                raise problem


def is_shared(store: Store) -> bool:
    """Whether the artifact folder is somewhere other than beside the store."""
    return store.artifacts_address != str(store.home / "artifacts")


def holds_media(store: Store) -> bool:
    """Whether this machine is the one whose home holds the media."""
    return store.media.root.is_dir() and any(store.media.root.iterdir())


def can_verify_media(store: Store) -> bool:
    """Whether a file that is not found on this machine is really missing, rather than stored on another machine."""
    return not is_shared(store) or holds_media(store)


def verify_items(store: Store, project_id: int, report: Report = ignore) -> MediaReport:
    """Read every file of the project once, compare it with its hash, and note what changed since the last time.

    Linked files whose size and modification time have not changed since the import are not read; all other files are.
    """
    total, last = count_items(store, project_id), 0
    counts = {"checked": 0, "missing": 0, "changed": 0, "repaired": 0}
    while rows := _block(store, project_id, last):
        last = rows[-1].id
        found: dict[int, tuple[str, str]] = {}
        for row in rows:
            condition, note = _look(store, row)
            counts["checked"] += 1
            if condition != "ok":
                counts[condition] += 1
            elif row.condition in ("missing", "changed"):
                counts["repaired"] += 1
            if row.condition != "unreadable" and condition != row.condition:
                found[row.id] = (condition, note)
            if counts["checked"] % 100 == 0:
                report(Progress("check", counts["checked"], total))
        set_condition(store, project_id, found)
    report(Progress("check", counts["checked"], total))
    return MediaReport(**counts)


def set_condition(store: Store, project_id: int, found: dict[int, tuple[str, str]]) -> None:
    """Store (condition, note) of items. Items that are not ok leave the queue; those that are ok again return to it."""
    if not found:
        return
    with store.write() as connection:
        projects.lock(connection, project_id)
        for item_id, (condition, note) in found.items():
            statement = update(Item).where(Item.id == item_id, Item.project_id == project_id)
            connection.execute(statement.values(condition=condition, condition_note=note))
        projections.refresh_states(connection, project_id, found)


def describe(problem: MediaMissing | MediaChanged) -> tuple[str, str]:
    """(condition, note) that a problem means for an item."""
    return "missing" if isinstance(problem, MediaMissing) else "changed", str(problem)


def _look(store: Store, row: Any) -> tuple[str, str]:
    try:
        if row.link_path is None or row.condition == "changed" or not _as_linked(store, row):
            check_content(store.media, content_of(row))
    except (MediaMissing, MediaChanged) as problem:
        return describe(problem)
    return "ok", ""


def _as_linked(store: Store, row: Any) -> bool:
    """Whether a linked file has the size and time that it had at import."""
    if row.recording_sha256 is not None:
        return False  # read once, for all windows of the recording
    store.media.locate(row.sha256, row.link_path)
    status = os.stat(row.link_path)
    return (status.st_size, status.st_mtime_ns) == (row.n_bytes, row.link_mtime_ns)


def _block(store: Store, project_id: int, last: int) -> list[Any]:
    columns = (Item.id, Item.link_mtime_ns, Item.n_bytes, Item.condition)
    query = (
        select(*columns, *CONTENT).where(Item.project_id == project_id, Item.id > last).order_by(Item.id).limit(BLOCK)
    )
    with store.read() as connection:
        return list(connection.execute(query))
