"""Adds embeddings that were computed elsewhere to a project's store, as an encoder."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.encoders.built_in import BUILT_IN
from core.encoders.description import check_name
from core.encoders.embeddings import match_items, read_embeddings, table_files
from core.encoders.folders import encoders_folder, open_encoder
from core.encoders.recipes import place_encoder
from core.errors import Conflict, InvalidInput
from core.types import Progress, Report, ignore
from storage.database.store import Store
from storage.labeling.labeled_items import item_files
from storage.projects import roles
from storage.projects.projects import ProjectRow

STAGE = "embeddings"


def add_embeddings(
    store: Store, project: ProjectRow, file: Path, name: str = "", *, replace: bool = False, report: Report = ignore
) -> dict[str, Any]:
    """Read the file, match its rows to items, and store the result as an encoder.

    Returns the coverage and the missing items.
    """
    roles.check(store, project.id, "edit")
    report(Progress(STAGE, 0, 3, "reading"))
    with _unpacked(file) as given:
        found = read_embeddings(given)
    report(Progress(STAGE, 1, 3, "finding items"))
    matched = match_items(found, item_files(store, project.id))
    name = check_name(name or _name_from(file))
    files = table_files(name, project.kind, matched, file.name)
    if name in BUILT_IN or ((encoders_folder(store.home) / name).is_dir() and not replace):
        raise Conflict(f"An encoder called {name} already exists. Choose another --name, or use --replace.")
    placed = open_encoder(place_encoder(store.home, name, dict(files), replace=replace))
    report(Progress(STAGE, 3, 3))
    return {
        "name": name,
        "identity": placed.identity,
        "items": len(matched.hashes),
        "of": matched.n_items,
        "dimension": placed.description.output.width,
        "missing": list(matched.missing),
        "unused": matched.unused,
    }


@contextlib.contextmanager
def _unpacked(file: Path) -> Iterator[Path]:
    """Yield the file itself or, for an upload, the table it contains: one .parquet, or one .npy with its .txt.

    Names in the archive are never used as paths.
    """
    if file.suffix != ".zip":
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="winnow-") as folder, zipfile.ZipFile(file) as archive:
        tables = [one for one in archive.infolist() if one.filename.lower().endswith((".parquet", ".npy"))]
        if len(tables) != 1:
            raise InvalidInput(
                f"The upload has {len(tables)} files of embeddings; choose one .parquet or one .npy file."
            )
        texts = [one for one in archive.infolist() if one.filename.lower().endswith(".txt")]
        is_array = tables[0].filename.lower().endswith(".npy")
        if is_array and len(texts) != 1:
            raise InvalidInput("An .npy file needs its keys: upload it together with one .txt file.")
        parts = {"table" + Path(tables[0].filename).suffix.lower(): tables[0]}
        if is_array:
            parts["table.txt"] = texts[0]
        for name, entry in parts.items():
            with archive.open(entry) as source, open(Path(folder) / name, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        yield Path(folder) / next(iter(parts))


def _name_from(file: Path) -> str:
    """Derive an encoder name from the file name: its valid characters, or a hash if none is left."""
    kept = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in file.stem.lower())
    return kept.strip("-._")[:64] or f"embeddings-{hashlib.sha256(file.stem.encode()).hexdigest()[:8]}"
