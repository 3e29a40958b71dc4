"""Adding and removing encoders: a folder, an encoder.onnx with its json beside it, a tar or zip archive."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TypeVar

from core.encoders.built_in import BUILT_IN
from core.encoders.checks import CheckedEncoder, check_encoder
from core.encoders.description import check_name
from core.encoders.folders import JSON, MAX_ONNX_BYTES, ONNX, encoders_folder, open_encoder
from core.encoders.recipes import place_encoder
from core.encoders.runner import Tick
from core.errors import Conflict, InvalidInput, NotFound

FILES = (ONNX, JSON)
Entry = TypeVar("Entry")


def add_encoder(home: Path, source: Path, *, replace: bool = False, tick: Tick = lambda: None) -> CheckedEncoder:
    """Check the encoder in a folder or an archive, and copy it under its name. If a check fails, nothing is kept."""
    with tempfile.TemporaryDirectory(prefix="winnow-encoder-") as place:
        folder = _as_folder(Path(source), Path(place))
        checked = check_encoder(folder, tick=tick)
        name, known = checked.encoder.name, encoders_folder(home) / checked.encoder.name
        if name in BUILT_IN:
            raise Conflict(f"{name} is the name of a built-in encoder. Change the name in {JSON}.")
        if known.is_dir() and not replace:
            there = _identity_of(known)
            if there == checked.encoder.identity:
                return check_encoder(known, tick=tick)
            raise Conflict(
                f"There is another encoder called {name} ({there[:12]}; the new one is "
                f"{checked.encoder.identity[:12]}). Change the name in {JSON}, or replace it with --replace: rounds of "
                "the former one keep their results and cannot be run again."
            )
        placed = place_encoder(home, name, {file: folder / file for file in FILES}, replace=replace)
    return CheckedEncoder(
        encoder=open_encoder(placed), batch=checked.batch, seconds_per_window=checked.seconds_per_window
    )


def _identity_of(folder: Path) -> str:
    try:
        return open_encoder(folder).identity
    except InvalidInput:
        return "damaged"


def remove_encoder(home: Path, name: str) -> None:
    """Remove an installed encoder. Results of rounds that used it stay."""
    folder = encoders_folder(home) / check_name(name)
    if not folder.is_dir():
        raise NotFound(f"There is no encoder {name!r}.")
    aside = folder.with_name(f".{name}-removed.part")
    folder.rename(aside)
    shutil.rmtree(aside)


def _as_folder(source: Path, place: Path) -> Path:
    """The folder of an encoder: `source` itself, or `place` with copies of an .onnx file and its description or of the
    files in an archive."""
    if source.is_dir():
        return source
    if not source.is_file():
        raise NotFound(f"There is no folder or file {source}.")
    if source.suffix == ".onnx":
        described = next((one for one in (source.with_suffix(".json"), source.parent / JSON) if one.is_file()), None)
        if described is None:
            raise InvalidInput(f"{source.name} has no description: write {JSON} beside it (see docs/encoders.md).")
        shutil.copyfile(source, place / ONNX)
        shutil.copyfile(described, place / JSON)
        return place
    _unpack(source, place)
    return place


def _unpack(source: Path, place: Path) -> None:
    """Unpack the two files, wherever they are in the archive. Nothing else is read, and no path of it is used."""
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                for name in FILES:
                    found = [entry for entry in archive.infolist() if Path(entry.filename).name == name]
                    _copy_one(archive.open(_single(found, name, source)), place / name)
        elif tarfile.is_tarfile(source):
            with tarfile.open(source) as tar:
                members = [one for one in tar if one.isreg()]
                for name in FILES:
                    member = _single([one for one in members if Path(one.name).name == name], name, source)
                    _copy_one(tar.extractfile(member), place / name)
        else:
            raise InvalidInput(f"{source.name} is neither a folder, nor an .onnx file, nor a tar or zip archive.")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as problem:
        raise InvalidInput(f"{source.name} is a damaged archive ({problem}).") from problem


def _single(found: Sequence[Entry], name: str, source: Path) -> Entry:
    if len(found) != 1:
        raise InvalidInput(f"{source.name} holds {len(found)} files called {name}; an encoder has one.")
    return found[0]


def _copy_one(stream: IO[bytes] | None, target: Path) -> None:
    assert stream is not None
    n_bytes = 0
    with stream, open(target, "wb") as file:
        while block := stream.read(1 << 20):
            n_bytes += len(block)
            if n_bytes > MAX_ONNX_BYTES:
                raise InvalidInput(f"{target.name} has more than {MAX_ONNX_BYTES:,} bytes, which is the limit.")
            file.write(block)
