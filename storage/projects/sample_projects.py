"""The two projects of a new store: spoken digits (clips in `sample_data/`) and handwritten digits (images from
scikit-learn). Both have known labels that annotators do not see, and test items.

The store's settings record which projects were loaded, so a later start does not load them again, even if they were
renamed or archived. An interrupted load continues at the next start.
"""

from __future__ import annotations

import gzip
import importlib.util
import struct
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from sqlalchemy import select

from core.errors import NotFound
from core.types import MediaKind, Report, ignore
from storage.database.schema import Setting
from storage.database.store import Store, insert_for
from storage.importing.open import open_source
from storage.importing.reading import Findings
from storage.importing.run import ImportOptions, run_import
from storage.importing.sources import CellPlace, Entry, GivenLabel, PackedPlace, Place, Source
from storage.importing.splits import GivenSplit
from storage.projects.projects import create_project, get_project

SPOKEN, HANDWRITTEN = "Spoken digits", "Handwritten digits"
SPOKEN_FOLDER = Path(__file__).resolve().parent.parent.parent / "sample_data" / "spoken_digits"
DIGITS = tuple("0123456789")
KEY = "sample_projects"
N_POOL = 1_500  # of the 1,797 images; the rest is the test set
SCALE = 4  # each of the 8 x 8 pixels becomes 4 x 4 equal ones


def load_sample_projects(store: Store, report: Report = ignore) -> list[str]:
    """Create both projects unless this store had them before; returns the names of the new ones."""
    with store.read() as connection:
        known = connection.execute(select(Setting.value).where(Setting.key == KEY)).scalar_one_or_none() or {}
    loaded: list[str] = list(known.get("loaded", ()))
    made = []
    if SPOKEN not in loaded and (SPOKEN_FOLDER / "manifest.csv").is_file():
        guide = "Which digit is spoken? Skip clips in which you hear no digit."
        _load(store, SPOKEN, "audio", open_source(SPOKEN_FOLDER), guide, report)
        made.append(SPOKEN)
        _remember(store, [*loaded, *made])
    if HANDWRITTEN not in loaded and (path := digits_file()) is not None:
        guide = "Which digit is written? Flag images that could be more than one digit."
        _load(store, HANDWRITTEN, "image", HandwrittenDigits(path), guide, report)
        made.append(HANDWRITTEN)
        _remember(store, [*loaded, *made])
    return made


def _load(store: Store, name: str, kind: MediaKind, source: Source, guide: str, report: Report) -> None:
    try:
        project = get_project(store, name)
    except NotFound:
        project = create_project(store, name, kind, DIGITS, guidelines=guide)
    try:
        run_import(store, project.id, source, ImportOptions(labels="hidden"), report)
    finally:
        source.close()


def _remember(store: Store, loaded: list[str]) -> None:
    with store.write() as connection:
        statement = insert_for(connection, Setting).values(key=KEY, value={"loaded": loaded})
        connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": {"loaded": loaded}}))


def digits_file() -> Path | None:
    """The path of scikit-learn's table of digit images, without importing scikit-learn; None if it is missing."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    return path if path.is_file() else None


class HandwrittenDigits:
    """An import source of PNG files from the table, whose rows hold 64 gray levels from 0 to 16 and the digit."""

    strict = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.description = HANDWRITTEN

    @cached_property
    def _table(self) -> np.ndarray:
        with gzip.open(self._path, "rt") as file:
            return np.loadtxt(file, delimiter=",", dtype=np.uint8)

    def entries(self) -> Iterator[Entry]:
        for row, values in enumerate(self._table):
            labels = (GivenLabel(str(values[64])),)
            split = GivenSplit("train", "train") if row < N_POOL else GivenSplit("test", "test")
            yield Entry(f"{row:04d}.png", PackedPlace(row, 0), "", split, labels)

    def png(self, row: int) -> bytes:
        levels = self._table[row, :64].reshape(8, 8).astype(np.uint16) * 255 // 16
        return gray_png(np.kron(levels, np.ones((SCALE, SCALE), np.uint16)).astype(np.uint8))

    def head(self, place: Place, n_bytes: int) -> bytes:
        assert isinstance(place, PackedPlace)
        return self.png(place.position)[:n_bytes]

    def findings(self) -> Findings:
        return Findings()

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        assert isinstance(place, PackedPlace)
        target.write_bytes(self.png(place.position))

    def close(self) -> None:
        """No effect: the source holds no open file."""


def gray_png(pixels: np.ndarray) -> bytes:
    """An 8-bit gray PNG in one stored block, so that its bytes do not depend on the version of a compressor.

    `pixels` is (height, width), at most 65,535 bytes including one filter byte per line.
    """
    height, width = pixels.shape
    lines = b"".join(b"\x00" + line.tobytes() for line in np.ascontiguousarray(pixels, np.uint8))
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(lines), len(lines) ^ 0xFFFF) + lines
    stored += struct.pack(">I", zlib.adler32(lines))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", stored) + chunk(b"IEND", b"")
