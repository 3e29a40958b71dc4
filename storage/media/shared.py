"""Media for workers on other machines: the bytes of items as files of the artifact folder.

A worker may have access to the database and the artifact folder only. Where that folder is not beside the store, the
machine that holds the media (its WINNOW_HOME has a media folder) copies new items into it in the order of their ids and
records its progress. A copy is named after the SHA-256 of the file, so it needs no table and is checked when it is
fetched. For windows, their recording is shared once.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import Any

from sqlalchemy import insert, or_, select, update

from core.errors import NotFound
from core.types import MediaReader, Progress, Report, ignore
from storage.database.schema import Item, Setting
from storage.database.store import Store
from storage.media.checks import holds_media, is_shared, note_by_hash, updating_condition
from storage.media.contents import Content, RecordingFile, content_of, read_content
from storage.media.folder import MediaChanged, MediaMissing
from storage.media.windows import cut
from storage.rounds.artifacts import ArtifactRef

SUFFIX = ".media"
WAIT_SECONDS = 1.0
NOTED = 500  # items between two records of the progress


def reader(store: Store, project_id: int) -> MediaReader:
    """A reader of items' bytes from this machine, else from the artifact folder. A file that is missing or changed here
    is noted with its item."""
    columns = (Item.sha256, Item.link_path, Item.recording_sha256, Item.first_frame, Item.last_frame)
    elsewhere = or_(Item.link_path.is_not(None), Item.recording_sha256.is_not(None))
    with store.read() as connection:
        rows = connection.execute(select(*columns).where(Item.project_id == project_id, elsewhere))
        places = {row.sha256: content_of(row) for row in rows}

    def read(sha256: str) -> bytes:
        content = places.get(sha256) or Content(sha256)
        try:
            return read_content(store.media, content)
        except (MediaMissing, MediaChanged) as missing:
            note_by_hash(store, project_id, sha256, missing)
            if not is_shared(store):
                raise
            try:
                return _from_artifacts(store, content)
            except NotFound:
                raise missing from None

    return read


def _from_artifacts(store: Store, content: Content) -> bytes:
    path = store.artifacts.path(_ref(content.stored_sha256))
    if content.span is None:
        return path.read_bytes()
    with RecordingFile(path) as data:
        return cut(data, content.span.first_frame, content.span.last_frame)


def share(store: Store, project_id: int, last_item_id: int, report: Report = ignore) -> None:
    """Return when all items up to `last_item_id` can be read by every worker: copy them, or wait for the machine that
    can."""
    while is_shared(store) and (known := shared_until(store, project_id)) < last_item_id:
        if holds_media(store):
            _copy(store, project_id, known, last_item_id, report)
        else:
            report(Progress("snapshot", 0, 1, "waiting for the machine that holds the media to share it"))
            time.sleep(WAIT_SECONDS)


def shared_until(store: Store, project_id: int) -> int:
    with store.read() as connection:
        row = connection.execute(select(Setting.value).where(Setting.key == _key(store, project_id))).one_or_none()
    return int(row.value["last_item_id"]) if row is not None else 0


def _copy(store: Store, project_id: int, after: int, last_item_id: int, report: Report) -> None:
    items = _items(store, project_id, after, last_item_id)
    for number, item in enumerate(items, 1):
        content = content_of(item)
        if not _has(store, content.stored_sha256):
            with (
                contextlib.suppress(NotFound),  # missing or changed here: unreadable for every worker alike
                updating_condition(store, project_id, item.id, item.condition),
            ):
                _put(store, content)
        if number % NOTED == 0:
            _note(store, project_id, item.id)
        report(Progress("snapshot", number, len(items), "sharing media"))
    _note(store, project_id, last_item_id)


def _put(store: Store, content: Content) -> None:
    """Copy the file that holds the bytes; a recording is not read into memory."""
    path = store.media.verified(content.stored_sha256, content.link_path)
    if path is None:
        store.artifacts.put_bytes(store.media.read(content.stored_sha256), SUFFIX)
    else:
        store.artifacts.put_file(path, SUFFIX)


def _has(store: Store, sha256: str) -> bool:
    return store.artifacts.has(_ref(sha256))


def _items(store: Store, project_id: int, after: int, last: int) -> list[Any]:
    columns = (Item.id, Item.sha256, Item.link_path, Item.recording_sha256, Item.first_frame, Item.last_frame)
    query = select(*columns, Item.condition).where(Item.project_id == project_id, Item.id > after, Item.id <= last)
    with store.read() as connection:
        return list(connection.execute(query.order_by(Item.id)))


def _note(store: Store, project_id: int, last_item_id: int) -> None:
    key, value = _key(store, project_id), {"last_item_id": last_item_id}
    with store.write() as connection:
        if not connection.execute(update(Setting).where(Setting.key == key).values(value=value)).rowcount:
            connection.execute(insert(Setting).values(key=key, value=value))


def settings_prefix(project_id: int) -> str:
    """The start of the keys in the settings table that hold how far a project's media are shared."""
    return f"shared-media/{project_id}/"


def _key(store: Store, project_id: int) -> str:
    return f"{settings_prefix(project_id)}{hashlib.sha256(store.artifacts_address.encode()).hexdigest()[:16]}"


def _ref(sha256: str) -> ArtifactRef:
    return ArtifactRef(sha256, SUFFIX, 0)
