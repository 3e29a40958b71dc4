"""Deleting a project or items for good: planned, confirmed by name, then done in steps that can be resumed.

Deleted  the items with their events, labels, notes and picks; for a project also its classes, rounds, simulations,
         settings and members; media and arrays that nothing else refers to
Kept     media whose bytes are items of another project; linked files; earlier backups and exports; the audit log

A deletion is one row. `run_deletion` removes items in blocks, one transaction each, and then the files that the block
left without a reference. Progress is stored with each block, so a run after a kill continues where it stopped.
Rounds keep their metrics when items are deleted, but can no longer be repeated exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from core.errors import Conflict, InvalidInput, NotFound
from core.types import Progress, Report, ignore
from storage.database.access_schema import Deletion
from storage.database.bulk import chunks
from storage.database.schema import (
    CurrentLabel,
    Item,
    ItemName,
    ItemState,
    LabelEvent,
    Lease,
    Pick,
    Project,
    Round,
    Simulation,
)
from storage.database.store import Store, now
from storage.database.strings import count
from storage.database.tables.recordings import Recording
from storage.media.references import remove_unreferenced
from storage.projects import audit, projects, roles
from storage.projects.project_rows import delete_project_rows
from storage.projects.recordings import delete_empty, left_empty

BLOCK = 500
OF_ITEMS: tuple[Any, ...] = (LabelEvent, CurrentLabel, ItemState, Lease, ItemName, Pick)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """What a deletion removes and keeps, counted before it starts."""

    project: str
    whole_project: bool
    items: int
    events: int
    rounds: int  # 0 when only items are deleted: rounds stay
    media_removed: int  # contents that no other project uses
    media_bytes: int
    media_shared: int  # contents that stay because another project uses them
    linked_files: int  # files outside of the store; they stay

    def sentence(self) -> str:
        what = f"The project {self.project!r} with" if self.whole_project else f"From {self.project!r}:"
        rounds = f", {count(self.rounds, 'round')}" if self.whole_project else ""
        parts = [
            f"{what} {count(self.items, 'item')}, {count(self.events, 'label event')}{rounds} and "
            f"{count(self.media_removed, 'media file')} ({self.media_bytes:,} bytes) will be deleted for good."
        ]
        if self.media_shared:
            parts.append(f"Kept because other projects use them: {count(self.media_shared, 'media file')}.")
        if self.linked_files:
            parts.append(f"Kept where they are: {count(self.linked_files, 'linked file')}.")
        return " ".join([*parts, "Backups and exports are kept."])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRow:
    id: int
    project_id: int
    project_name: str
    item_ids: list[int] | None
    finished: bool
    counts: dict[str, Any]


def plan_deletion(store: Store, project_id: int, item_ids: Sequence[int] | None = None) -> DeletionPlan:
    """Count what `request_deletion` would remove; nothing is changed."""
    with store.read() as connection:
        roles.check_in(connection, project_id, "own")
        project = projects.row_in(connection, project_id)
        ids = _existing(connection, project_id, item_ids)
        totals: Counter[str] = Counter()
        for block in chunks(ids):
            totals.update(_count_block(connection, project_id, block))
        totals.update(_count_recordings(connection, project_id, ids))
        rounds = select(func.count()).select_from(Round).where(Round.project_id == project_id)
        n_rounds = int(connection.execute(rounds).scalar_one()) if item_ids is None else 0
    names = ("events", "media_removed", "media_bytes", "media_shared", "linked_files")
    return DeletionPlan(
        project=project.name,
        whole_project=item_ids is None,
        items=len(ids),
        rounds=n_rounds,
        **{name: totals[name] for name in names},
    )


def request_deletion(
    store: Store, project_id: int, confirmation: str, item_ids: Sequence[int] | None = None
) -> DeletionRow:
    """Record a deletion for `run_deletion`. `confirmation` is the project's name, typed exactly. A project that is
    to be deleted is archived at once."""
    with store.write() as connection:
        project = projects.lock(connection, project_id)
        roles.check_in(connection, project_id, "own")
        if confirmation != project.name:
            raise InvalidInput(
                f"The confirmation {confirmation!r} is not the project's name, {project.name!r}. Nothing is deleted."
            )
        _refuse_work(connection, project_id)
        ids = None if item_ids is None else _existing(connection, project_id, item_ids)
        if ids is not None and not ids:
            raise NotFound("None of these items is in the project. Nothing is deleted.")
        if ids is None:
            connection.execute(update(Project).where(Project.id == project_id).values(archived_at=now()))
        actor = roles.current_actor()
        by = None if actor is None else actor.annotator_id
        values = {"project_id": project_id, "project_name": project.name, "item_ids": ids, "requested_by": by}
        query = insert(Deletion).values(**values, requested_at=now(), counts={}).returning(Deletion.id)
        deletion_id = int(connection.execute(query).scalar_one())
        detail = {"deletion": deletion_id, "project": project.name, "items": None if ids is None else len(ids)}
        audit.record(connection, audit.Entry("request_deletion", project_id, by, detail))
        return _row(connection, deletion_id)


def run_deletion(store: Store, deletion_id: int, report: Report = ignore) -> DeletionRow:
    """Do a requested deletion, or the rest of one that was interrupted. No effect on a finished one."""
    with store.read() as connection:
        row = _row(connection, deletion_id)
        total = len(_existing(connection, row.project_id, row.item_ids))
    done = 0
    while not row.finished:
        remove_unreferenced(store, row.counts.get("pending", ()))  # left by the previous block or an interrupted run
        with store.write() as connection:
            row, n_items = _delete_block(connection, row)
        done += n_items
        report(Progress("delete", min(done, total), total))
    remove_unreferenced(store, row.counts.get("pending", ()))
    return row


def unfinished_deletions(store: Store) -> list[DeletionRow]:
    query = select(Deletion.id).where(Deletion.finished_at.is_(None)).order_by(Deletion.id)
    with store.read() as connection:
        return [_row(connection, deletion_id) for deletion_id in connection.execute(query).scalars()]


def _delete_block(connection: Connection, row: DeletionRow) -> tuple[DeletionRow, int]:
    """Delete the next items, or finish; the hashes of the block are stored, so that its files are removed after it."""
    exists = connection.execute(select(Project.id).where(Project.id == row.project_id)).one_or_none()
    ids = _existing(connection, row.project_id, row.item_ids, BLOCK) if exists is not None else []
    counts = Counter({name: n for name, n in row.counts.items() if name != "pending"})
    pending: list[str] = []
    values: dict[str, Any] = {}
    if ids:
        projects.lock(connection, row.project_id)
        files = connection.execute(select(Item.sha256, Item.recording_sha256).where(Item.id.in_(ids))).all()
        pending = [row.sha256 for row in files if row.recording_sha256 is None]
        for table in OF_ITEMS:
            counts[table.__tablename__] += connection.execute(delete(table).where(table.item_id.in_(ids))).rowcount
        counts["items"] += connection.execute(delete(Item).where(Item.id.in_(ids))).rowcount
        pending += delete_empty(connection, row.project_id, (one.recording_sha256 for one in files))
    else:
        if row.item_ids is None and exists is not None:
            pending = delete_project_rows(connection, row.project_id)
        values["finished_at"] = now()
        detail = {"deletion": row.id, "project": row.project_name, "deleted": dict(counts)}
        by = connection.execute(select(Deletion.requested_by).where(Deletion.id == row.id)).scalar()
        audit.record(connection, audit.Entry("finish_deletion", row.project_id, by, detail))
    values["counts"] = dict(counts) | {"pending": pending}
    connection.execute(update(Deletion).where(Deletion.id == row.id).values(**values))
    return _row(connection, row.id), len(ids)


def _existing(
    connection: Connection, project_id: int, item_ids: Sequence[int] | None, limit: int | None = None
) -> list[int]:
    """The ids of the items to delete that are still there, lowest first."""
    query = select(Item.id).where(Item.project_id == project_id).order_by(Item.id).limit(limit)
    if item_ids is None:
        return list(connection.execute(query).scalars())
    found: list[int] = []
    for block in chunks(sorted({one for one in item_ids if 0 < one < 2**62})):
        found += connection.execute(query.where(Item.id.in_(block))).scalars()
        if limit is not None and len(found) >= limit:
            return found[:limit]
    return found


def _count_block(connection: Connection, project_id: int, ids: Sequence[int]) -> dict[str, int]:
    mine = select(Item.sha256, Item.n_bytes, Item.link_path).where(Item.id.in_(ids), Item.recording_sha256.is_(None))
    rows = connection.execute(mine).all()
    others = select(Item.sha256).where(Item.project_id != project_id, Item.sha256.in_([row.sha256 for row in rows]))
    shared = set(connection.execute(others).scalars())
    copied = [row for row in rows if row.link_path is None]
    events = select(func.count()).select_from(LabelEvent).where(LabelEvent.item_id.in_(ids))
    return {
        "events": int(connection.execute(events).scalar_one()),
        "media_removed": sum(row.sha256 not in shared for row in copied),
        "media_bytes": sum(row.n_bytes for row in copied if row.sha256 not in shared),
        "media_shared": sum(row.sha256 in shared for row in copied),
        "linked_files": len(rows) - len(copied),
    }


def _count_recordings(connection: Connection, project_id: int, ids: Sequence[int]) -> dict[str, int]:
    """The files of recordings that lose their last window; those with other windows stay."""
    found = left_empty(connection, project_id, ids)
    hashes = [sha256 for sha256, _, _ in found]
    shared: set[str] = set()
    for table in (Item, Recording):
        others = select(table.sha256).where(table.project_id != project_id, table.sha256.in_(hashes))
        shared |= set(connection.execute(others).scalars())
    copied = [(sha256, n_bytes) for sha256, n_bytes, link in found if link is None]
    return {
        "media_removed": sum(sha256 not in shared for sha256, _ in copied),
        "media_bytes": sum(n_bytes for sha256, n_bytes in copied if sha256 not in shared),
        "media_shared": sum(sha256 in shared for sha256, _ in copied),
        "linked_files": len(found) - len(copied),
    }


def _refuse_work(connection: Connection, project_id: int) -> None:
    for table, what in ((Round, "round"), (Simulation, "simulation")):
        query = select(func.count()).where(table.project_id == project_id, table.status.in_(("requested", "running")))
        if n_running := connection.execute(query).scalar_one():
            state = f"A {what} of this project is" if n_running == 1 else f"{n_running} {what}s of this project are"
            raise Conflict(f"{state} running. Cancel {'it' if n_running == 1 else 'them'} first. Nothing is deleted.")
    waiting = select(Deletion.id).where(Deletion.project_id == project_id, Deletion.finished_at.is_(None))
    if connection.execute(waiting.limit(1)).one_or_none() is not None:
        raise Conflict("A deletion in this project has not finished. Resume it: python -m app delete --resume")


def _row(connection: Connection, deletion_id: int) -> DeletionRow:
    row = connection.execute(select(Deletion.__table__).where(Deletion.id == deletion_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no deletion {deletion_id}.")
    names = ("id", "project_id", "project_name", "item_ids", "counts")
    values = {name: getattr(row, name) for name in names}
    return DeletionRow(**values, finished=row.finished_at is not None)
