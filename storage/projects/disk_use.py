"""The disk space of a project."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select, true

from storage.database.schema import Artifact, Item
from storage.database.store import Store
from storage.database.tables.recordings import Recording
from storage.projects import roles


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Sizes in bytes. Contents that several projects use are stored once; `shared_bytes` is the part of `media_bytes`
    that would stay if this project were deleted."""

    media_files: int
    media_bytes: int
    shared_bytes: int
    linked_files: int  # outside of the store; not counted in media_bytes
    artifact_files: int
    artifact_bytes: int


def disk_use(store: Store, project_id: int) -> DiskUse:
    """The disk space of the project's media and arrays."""
    media, shared, n_linked = [0, 0], 0, 0
    arrays = select(Artifact.sha256, Artifact.n_bytes).where(Artifact.project_id == project_id).distinct().subquery()
    with store.read() as connection:
        roles.check_in(connection, project_id, "read")
        for table, is_file in ((Item, Item.recording_sha256.is_(None)), (Recording, true())):  # windows have no file
            n_bytes = func.coalesce(func.sum(table.n_bytes), 0)
            mine = (table.project_id == project_id, is_file)
            copied = (*mine, table.link_path.is_(None))
            elsewhere = select(table.sha256).where(table.project_id != project_id)
            found = connection.execute(select(func.count(), n_bytes).select_from(table).where(*copied)).one()
            media = [media[0] + int(found[0]), media[1] + int(found[1])]
            shared += int(connection.execute(select(n_bytes).where(*copied, table.sha256.in_(elsewhere))).scalar_one())
            linked = select(func.count()).select_from(table).where(*mine, table.link_path.is_not(None))
            n_linked += int(connection.execute(linked).scalar_one())
        total = select(func.count(), func.coalesce(func.sum(arrays.c.n_bytes), 0)).select_from(arrays)
        artifacts = connection.execute(total).one()
    return DiskUse(
        media_files=media[0],
        media_bytes=media[1],
        shared_bytes=shared,
        linked_files=n_linked,
        artifact_files=int(artifacts[0]),
        artifact_bytes=int(artifacts[1]),
    )
