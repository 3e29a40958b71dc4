"""What can be removed from the store's folders without losing anything: caches, and files that no row refers to.

Caches are made again when they are needed. Media without an item and arrays without a round remain after deletions,
killed imports and killed rounds. While an import or a round is under way, only pictures and old uploads are listed.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, select

from storage.database.schema import Round, Setting, Watch
from storage.database.store import Store
from storage.media.pack_index import RECORD
from storage.media.references import HASH_LENGTH, is_busy, unreferenced

Kind = Literal["cache", "upload", "media", "pack", "artifact"]
HASH = re.compile(r"[0-9a-f]{64}")
UPLOAD_SECONDS = 2 * 24 * 3600.0
NEW_SECONDS = 3600.0  # a newer file may not have its row yet


@dataclass(frozen=True, slots=True)
class Removable:
    kind: Kind
    path: Path
    n_bytes: int


def find_removable(store: Store) -> list[Removable]:
    """Everything that `remove` would remove; nothing is changed."""
    home = store.home
    found = [_folder("cache", home / "cache" / "pictures"), *_old_uploads(home / "uploads")]
    with store.read() as connection:
        if not is_busy(connection):
            found += [_folder("cache", home / "cache" / "rows"), _folder("cache", home / "cache" / "simulations")]
            if store.artifacts.remote:
                found.append(_folder("cache", store.artifacts.folder))
            else:
                found += _artifacts(connection, store.artifacts.folder)
            found += _media(connection, store.media.root)
            found += _packs(connection, store.media.packs.folder)
    return [one for one in found if one is not None]


def remove(store: Store, found: Iterable[Removable]) -> int:
    """Remove what `find_removable` found, unless it got a reference since then; returns the number of bytes."""
    n_bytes = 0
    still = {one.path for one in find_removable(store)}
    for one in found:
        if one.path not in still:
            continue
        if one.kind == "pack":
            (one.path.parent / "table").unlink(missing_ok=True)  # made again from the logs
            one.path.with_suffix(".log").unlink(missing_ok=True)
        if one.path.is_dir():
            shutil.rmtree(one.path, ignore_errors=True)
        else:
            one.path.unlink(missing_ok=True)
        n_bytes += one.n_bytes
    return n_bytes


def _folder(kind: Kind, path: Path) -> Removable | None:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else []
    return Removable(kind, path, sum(file.stat().st_size for file in files)) if files else None


def _old_uploads(folder: Path) -> list[Removable]:
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    old = [path for path in files if time.time() - path.stat().st_mtime > UPLOAD_SECONDS]
    return [Removable("upload", path, path.stat().st_size) for path in old]


def _named(folder: Path) -> dict[str, Path]:
    """The files below `folder` that are named after a hash and are not new."""
    until = time.time() - NEW_SECONDS
    paths = (path for path in folder.glob("??/*") if HASH.match(path.name) and path.is_file())
    return {path.name: path for path in paths if path.stat().st_mtime < until}


def _media(connection: Connection, root: Path) -> list[Removable]:
    named = {name: path for name, path in _named(root).items() if len(name) == HASH_LENGTH}
    free = unreferenced(connection, sorted(named))
    return [Removable("media", named[name], named[name].stat().st_size) for name in free]


def _artifacts(connection: Connection, folder: Path) -> list[Removable]:
    named = _named(folder)
    mentioned = _mentioned(connection)
    free = [name for name in unreferenced(connection, sorted(named)) if name[:HASH_LENGTH] not in mentioned]
    return [Removable("artifact", named[name], named[name].stat().st_size) for name in free]


def _mentioned(connection: Connection) -> set[str]:
    """Hashes in the JSON of rounds, settings and watches: areas of the map and candidates, for example."""
    queries = (select(Round.constraint), select(Round.metrics), select(Setting.value), select(Watch.buffer))
    values = (value for query in queries for value in connection.execute(query).scalars())
    return {found for value in values for found in HASH.findall(json.dumps(value))}


def _packs(connection: Connection, folder: Path) -> list[Removable]:
    """Packs without any content that an item uses. A pack with one used content stays whole."""
    found = []
    for pack in sorted(folder.glob("*.pack")):
        hashes = sorted(_logged(pack.with_suffix(".log")))
        is_old = time.time() - pack.stat().st_mtime > NEW_SECONDS
        if hashes and is_old and len(unreferenced(connection, hashes)) == len(hashes):
            found.append(Removable("pack", pack, pack.stat().st_size))
    return found


def _logged(log: Path) -> Iterator[str]:
    data = log.read_bytes() if log.exists() else b""
    for start in range(0, len(data) - RECORD.size + 1, RECORD.size):
        yield RECORD.unpack_from(data, start)[0].hex()
