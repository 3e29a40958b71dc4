"""The target of an export on disk: written beside it under a temporary name, packed, and renamed at the end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.atomic_files import sync_path
from core.errors import Conflict, InvalidInput
from storage.system.processes import is_running

MANIFESTS = ("manifest.json", "model.json")  # an export of labels, and one of a model
_PARTIAL = re.compile(r"\.(?P<name>.+)\.export-(?P<pid>\d+)-[0-9a-f]{8}\Z")


def check_target(target: Path | str, overwrite: bool) -> Path:
    """The absolute path of a target that may be written; raises Conflict or InvalidInput if it may not."""
    target = Path(target).expanduser().absolute()
    if not target.name:
        raise InvalidInput(f"{target} cannot be the target of an export; name a folder or a .zip file in it.")
    refuse_existing(target, overwrite)
    return target


@contextlib.contextmanager
def new_export(target: Path, overwrite: bool) -> Iterator[Path]:
    """An empty folder to fill. At the end of the block it becomes `target`, packed if that is a zip file; after an
    exception it is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(target)
    partial = target.with_name(f".{target.name}.export-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    folder = partial if target.suffix != ".zip" else partial.with_name(partial.name + ".d")
    folder.mkdir()
    try:
        yield folder
        if folder != partial:
            pack(folder, partial)
        sync_all(partial)
        put_in_place(partial, target, overwrite)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            partial.unlink()


def described(path: Path) -> dict[str, Any]:
    """The hash and the size of a file, in the form used in manifests."""
    with open(path, "rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "n_bytes": path.stat().st_size}


def is_media(path: Path) -> bool:
    return len(path.stem) == 64 and path.suffix != ".json"


def pack(folder: Path, target: Path) -> None:
    """Write one zip file: media stored, tables deflated, fixed dates, so that equal exports are equal files."""
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        for path in files_below(folder):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_STORED if is_media(path) else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            with open(path, "rb") as source, archive.open(entry, "w", force_zip64=True) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)


def files_below(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from files_below(Path(entry.path))
        else:
            yield Path(entry.path)


def refuse_existing(target: Path, overwrite: bool) -> None:
    if not target.exists() or overwrite:
        is_export = any((target / name).is_file() for name in MANIFESTS)
        if overwrite and target.is_dir() and any(target.iterdir()) and not is_export:
            raise Conflict(f"{target} is not an export of Winnow and was not changed. Choose another name.")
        return
    raise Conflict(f"{target} already exists. Choose another name, or replace it (--overwrite).")


def put_in_place(partial: Path, target: Path, overwrite: bool) -> None:
    """Rename `partial` to `target`; an older export is moved aside first and removed afterwards."""
    old = target.with_name(f"{partial.name}.old") if overwrite and target.is_dir() else None
    try:
        if old is not None:
            os.rename(target, old)
        if not overwrite and target.exists():
            raise FileExistsError
        os.replace(partial, target)
    except OSError as problem:
        if old is not None and old.exists() and not target.exists():
            os.rename(old, target)
        raise Conflict(f"{target} was created by another process in the meantime. Choose another name.") from problem
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    sync_path(target.parent)


def sync_all(path: Path) -> None:
    for file in files_below(path) if path.is_dir() else (path,):
        if path.is_dir() and is_media(file):
            continue  # a copy of bytes that the store has
        sync_path(file)


def clear_leftovers(target: Path) -> None:
    """Remove the temporary files of killed exports to this target."""
    for path in target.parent.iterdir():
        found = _PARTIAL.match(path.name.removesuffix(".d").removesuffix(".old"))
        if found and found["name"] == target.name and not is_running(int(found["pid"])):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()
