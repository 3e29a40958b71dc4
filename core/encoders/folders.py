"""Encoders as folders. Installed ones are in `WINNOW_HOME/encoders/NAME/`.

    encoder.json    its description (`core.encoders.description`)
    encoder.onnx    the network with its weights

or, for embeddings that were computed elsewhere (`core.encoders.embeddings`),

    encoder.json, embeddings.npy (n, d) float32, embeddings.sha256: the hash of each row's item, one per line

This module reads and hashes files; it runs no network.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from core.encoders.description import EncoderDescription, TableInput, check_name, parse_description
from core.errors import InvalidInput, NotFound

ONNX, JSON = "encoder.onnx", "encoder.json"
ROWS, HASHES = "embeddings.npy", "embeddings.sha256"
MAX_ONNX_BYTES = 2 << 30  # a protobuf message cannot be larger
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """One encoder on this machine."""

    folder: Path
    description: EncoderDescription
    identity: str  # hash of its files, hex

    @property
    def is_table(self) -> bool:
        """Whether it is a table of embeddings, without a network to run."""
        return isinstance(self.description.input, TableInput)

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def feature_key(self) -> str:
        """The key of its features in a row cache."""
        return feature_key(self.identity)


def feature_key(identity: str) -> str:
    """The key under which a row cache keeps the features of this encoder: one row per item, named by its hash."""
    return f"encoded-{identity[:32]}"


def encoders_folder(home: Path) -> Path:
    """The folder in which the encoders of a store are installed."""
    return Path(home) / "encoders"


def open_encoder(folder: Path) -> Encoder:
    """The encoder in this folder, without running it. InvalidInput says what is missing or wrong."""
    folder = Path(folder)
    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.")
    text = _regular(folder, JSON).read_bytes()
    description = parse_description(text)
    files = (ROWS, HASHES) if isinstance(description.input, TableInput) else (ONNX,)
    hashes = [file_hash(_regular(folder, name)) for name in files]
    parts = ";".join([*hashes, hashlib.sha256(text).hexdigest()])
    return Encoder(folder=folder, description=description, identity=hashlib.sha256(parts.encode()).hexdigest())


def _regular(folder: Path, name: str) -> Path:
    """The path of one file of an encoder; InvalidInput unless it is a regular file of an allowed size."""
    path = folder / name
    if path.is_symlink() or not path.is_file():
        what = "is a link; copy the file" if path.is_symlink() else "is missing"
        raise InvalidInput(f"{folder.name} is not an encoder: {name} {what}. An encoder has {ONNX} and {JSON}.")
    size = path.stat().st_size
    if name == ONNX and size > MAX_ONNX_BYTES:
        raise InvalidInput(f"{ONNX} has {size:,} bytes; the limit is {MAX_ONNX_BYTES:,}.")
    return path


def file_hash(path: Path) -> str:
    """SHA-256 of a file, computed again if its size or modification time has changed."""
    status = os.stat(path)
    return _file_hash(str(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _file_hash(path: str, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def installed(home: Path) -> Iterator[tuple[str, Encoder | InvalidInput]]:
    """(name, encoder) of every folder, by name; for a folder that cannot be used, (name, problem)."""
    root = encoders_folder(home)
    names = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    for name in names:
        if name.endswith(".part"):
            continue
        try:
            found = open_encoder(root / name)
            if found.name != name:
                raise InvalidInput(f"The folder {name} holds an encoder called {found.name}. Rename the folder.")
            yield name, found
        except InvalidInput as problem:
            yield name, problem


def find_installed(home: Path, name: str) -> Encoder:
    """The installed encoder of this name. NotFound lists the installed ones."""
    check_name(name)
    folder = encoders_folder(home) / name
    if not folder.is_dir():
        known = ", ".join(known for known, _ in installed(home)) or "none"
        raise NotFound(f"There is no encoder {name!r} (installed: {known}). Add it: python -m app encoders add FOLDER")
    return open_encoder(folder)
