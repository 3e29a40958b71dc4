"""Files that other processes see only when they are complete.

A file is written under a temporary name in the folder of its target and renamed when it is complete. Durable writes
are also flushed to disk before and after the rename, so that a power failure leaves the old content or the new one.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_path(target: Path) -> Iterator[Path]:
    """An unused path beside `target`; a file left there at the end of the block is removed."""
    path = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write_file(target: Path, data: bytes | str, durable: bool = False) -> None:
    """Create or replace `target` in one step; text is written as UTF-8. With `durable`, the data is on disk."""
    with temporary_path(target) as path:
        path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
        if durable:
            replace_durably(path, target)
        else:
            os.replace(path, target)


def replace_durably(source: Path, target: Path) -> None:
    """Rename the complete file `source` to `target`; content and name are on disk when this returns."""
    sync_path(source)
    os.replace(source, target)
    sync_path(target.parent)


def sync_path(path: Path) -> None:
    """Flush a file's content, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
