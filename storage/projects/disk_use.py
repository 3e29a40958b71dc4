"""The disk space of a project."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from storage.database.schema import Artifact, Item
from storage.database.store import Store
from storage.projects import roles


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """Bytes. Contents that several projects have are stored once; `shared_bytes` is the part of `media_bytes` that
    would stay if this project were deleted."""

    media_files: int
    media_bytes: int
    shared_bytes: int
    linked_files: int  # outside of the store; not counted in media_bytes
    artifact_files: int
    artifact_bytes: int


def disk_use(store: Store, project_id: int) -> DiskUse:
    copied = (Item.project_id == project_id, Item.link_path.is_(None))
    n_bytes = func.coalesce(func.sum(Item.n_bytes), 0)
    elsewhere = select(Item.sha256).where(Item.project_id != project_id)
    arrays = select(Artifact.sha256, Artifact.n_bytes).where(Artifact.project_id == project_id).distinct().subquery()
    linked = select(func.count()).where(Item.project_id == project_id, Item.link_path.is_not(None))
    with store.read() as connection:
        roles.check_in(connection, project_id, "read")
        media = connection.execute(select(func.count(), n_bytes).select_from(Item).where(*copied)).one()
        shared = connection.execute(select(n_bytes).where(*copied, Item.sha256.in_(elsewhere))).scalar_one()
        total = select(func.count(), func.coalesce(func.sum(arrays.c.n_bytes), 0)).select_from(arrays)
        artifacts = connection.execute(total).one()
        n_linked = connection.execute(linked).scalar_one()
    return DiskUse(
        media_files=int(media[0]),
        media_bytes=int(media[1]),
        shared_bytes=int(shared),
        linked_files=int(n_linked),
        artifact_files=int(artifacts[0]),
        artifact_bytes=int(artifacts[1]),
    )
