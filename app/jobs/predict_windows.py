"""The input units of a prediction (whole files, or windows of recordings) and the label tracks written from it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from core.errors import NotFound, WinnowError
from core.limits import current_limits
from core.types import MediaKind
from storage.exporting.models.predictions import PredictionTable
from storage.exporting.span_tables import LabeledSpan, RecordingKey, SpanFormat, SpanTables
from storage.media.contents import RecordingFile
from storage.media.probe import Measures, examine_recording
from storage.media.windows import FileContent, WindowOptions, cut

SUFFIXES: dict[MediaKind, tuple[str, ...]] = {
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff", ".aifc"),
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"),
}


@dataclass(frozen=True, slots=True)
class Unit:
    """A file to predict, or a window of one."""

    path: Path
    start: float | None = None  # seconds; None if the length was not requested
    end: float | None = None
    frames: tuple[int, int] | None = None  # first and last frame of a window, inclusive
    sample_rate: int = 0

    def read(self) -> bytes:
        """The bytes of the file, or the window as a WAV file. Only the window itself is read from disk."""
        if self.frames is None:
            return self.path.read_bytes()
        with RecordingFile(self.path) as data:
            return cut(data, *self.frames)


def list_units(
    paths: Sequence[str], kind: MediaKind, windows: WindowOptions | None = None, *, measured: bool = False
) -> Iterator[Unit]:
    """Yield all files, with `windows` the windows of long files, in the same order in every run.

    With `measured`, whole files have their length as well.
    """
    for path in list_files(paths, kind):
        if windows is None and not measured:
            yield Unit(path)
        else:
            yield from _windows(path, windows)


def _windows(path: Path, windows: WindowOptions | None) -> Iterator[Unit]:
    """Yield the windows of a file, or the whole file if it is short or cannot be read (its row then has the error)."""
    try:
        with RecordingFile(path) as data:
            found = examine_recording(cast(FileContent, data), current_limits())
    except (WinnowError, OSError):
        found = Measures("unreadable")
    n_frames, rate = found.n_frames or 0, found.sample_rate or 1
    if found.status != "ok":
        yield Unit(path)
    elif windows is None or n_frames <= windows.seconds * rate:
        yield Unit(path, 0.0, n_frames / rate, None, rate)
    else:
        for first, last in windows.spans(n_frames, rate):
            yield Unit(path, first / rate, (last + 1) / rate, (first, last), rate)


def list_files(paths: Sequence[str], kind: MediaKind) -> Iterator[Path]:
    """Yield the files in `paths` and all files of the kind below its folders, in the same order in every run."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from _below(path, SUFFIXES[kind])
        elif path.exists():
            yield path
        else:
            raise NotFound(f"There is no file or folder {path}.")


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path), suffixes)
        elif entry.name.lower().endswith(suffixes) and entry.is_file():
            yield Path(entry.path)


def write_tracks(table: PredictionTable, form: SpanFormat, above: float, *, overwrite: bool) -> Path:
    """Write label tracks or selection tables into a folder next to the table. Returns the folder.

    They contain the rows with at least the confidence `above`. Adjacent windows of one class are merged.
    """
    tables, rates = SpanTables(form), dict[str, int]()
    for row in table.rows():
        if row["error"] or row["end"] is None or row["confidence"] < above:
            continue
        name = row["file"]
        if name not in rates:
            rates[name] = next((one.sample_rate for one in _windows(Path(name), None)), 0)
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        key = RecordingKey(Path(name).name, digest, rates[name])
        tables.add(key, LabeledSpan(row["start"], row["end"], row["class"], row["confidence"]))
    folder = table.target.with_name(f"{table.target.stem}_{form}")
    if overwrite and folder.is_dir():
        shutil.rmtree(folder)
    tables.write(folder)
    return folder
