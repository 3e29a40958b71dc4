"""Finding and removing files of the store that nothing refers to any more, by comparing names with rows.

A file is named after the hash of its bytes. Media are referred to by items and recordings, arrays by artifacts. While
an import or a round is under way, its files may have no row yet; then nothing is removed, and a later call does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection, select

from storage.database.bulk import chunks
from storage.database.schema import Artifact, ImportRun, Item, Round, Simulation
from storage.database.store import Store, now
from storage.database.tables.recordings import Recording

HASH_LENGTH = 64
STALE = timedelta(days=1)  # an import that began earlier and is still marked as running was killed


def remove_unreferenced(store: Store, names: Sequence[str]) -> int:
    """Remove the files with these names (a hash, with a suffix for arrays) that no row refers to; returns how many."""
    if not names:
        return 0
    with store.write() as connection:  # no row appears until the files are gone
        if is_busy(connection):
            return 0
        free = unreferenced(connection, names)
        return sum(_remove(store, name) for name in free)


def is_busy(connection: Connection) -> bool:
    """Whether files may exist that do not have their row yet."""
    running = select(ImportRun.id).where(ImportRun.status == "running", ImportRun.started_at > now() - STALE)
    rounds = select(Round.id).where(Round.status.in_(("requested", "running")))
    simulations = select(Simulation.id).where(Simulation.status.in_(("requested", "running")))
    return any(connection.execute(query.limit(1)).first() is not None for query in (running, rounds, simulations))


def unreferenced(connection: Connection, names: Sequence[str]) -> list[str]:
    """Those of the names that no item, recording or artifact refers to."""
    used: set[str] = set()
    for block in chunks(sorted({name[:HASH_LENGTH] for name in names})):
        for column in (Item.sha256, Artifact.sha256, Recording.sha256):
            used |= set(connection.execute(select(column).where(column.in_(block))).scalars())
    return [name for name in names if name[:HASH_LENGTH] not in used]


def _remove(store: Store, name: str) -> bool:
    """Remove a media file, or with a suffix an array. Packed media stay in their pack (`python -m app clean`)."""
    if len(name) > HASH_LENGTH:
        return store.artifacts.remove(name)
    path = store.media.path(name)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed
