"""Embeddings that were computed elsewhere, as a separate encoder: a folder with a table of one row per item.

`read_embeddings` reads NPY and Parquet strictly: every row has a key, keys are unique, and all rows have the same width
and finite numbers. Keys are the SHA-256 of the item's bytes or the name of its file; `match_items` finds the items.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.encoders.description import EncoderDescription, Output, TableInput, to_json
from core.encoders.folders import HASHES, JSON, ROWS, Encoder
from core.errors import InvalidInput
from core.types import MediaKind

SHA256 = re.compile(r"[0-9a-f]{64}")
KEY_COLUMNS = ("sha256", "file", "file_name", "filename", "path", "name", "id")
VECTOR_COLUMNS = ("embedding", "embeddings", "vector", "features")
MOST_BYTES = 16 << 30
SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingFile:
    """Keys and vectors of a file, in the order of the file."""

    keys: tuple[str, ...]
    vectors: NDArray[np.float32]  # (n, d)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedEmbeddings:
    """The rows of a file that belong to items of a project, and the unmatched items and rows."""

    hashes: tuple[str, ...]  # of the items that have a row
    vectors: NDArray[np.float32]
    missing: tuple[str, ...]  # file names of items without a row
    unused: int  # rows that belong to no item

    @property
    def n_items(self) -> int:
        return len(self.hashes) + len(self.missing)


def read_embeddings(path: Path) -> EmbeddingFile:
    """The embeddings in an .npy file (with the keys beside it in PATH.txt, one per line) or a .parquet file."""
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.")
    if path.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"{path.name} has {path.stat().st_size:,} bytes; the limit is {MOST_BYTES:,}.")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        found = _read_npy(path)
    elif suffix == ".parquet":
        found = _read_parquet(path)
    else:
        raise InvalidInput(f"{path.name} is neither an .npy nor a .parquet file.")
    return _checked(found, path.name)


def _read_npy(path: Path) -> EmbeddingFile:
    keys = path.with_suffix(".txt")
    if not keys.is_file():
        raise InvalidInput(f"The keys of {path.name} are missing: write one per line, in its order, to {keys.name}.")
    try:
        vectors = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as problem:
        raise InvalidInput(f"{path.name} is not an NPY file of numbers ({problem}).") from problem
    lines = keys.read_text(encoding="utf-8").splitlines()
    return EmbeddingFile(keys=tuple(lines), vectors=_numbers(vectors, path.name))


def _numbers(vectors: NDArray[Any], name: str) -> NDArray[np.float32]:
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.number) or np.iscomplexobj(vectors):
        raise InvalidInput(f"{name} holds {vectors.dtype}, shape {vectors.shape}; it must be numbers (rows, width).")
    return np.asarray(vectors, np.float32)


def _read_parquet(path: Path) -> EmbeddingFile:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as problem:
        raise InvalidInput(f"{path.name} is not a Parquet file ({problem}).") from problem
    columns = {name.lower(): name for name in table.column_names}
    key = next((columns[name] for name in KEY_COLUMNS if name in columns), None)
    vector = next((columns[name] for name in VECTOR_COLUMNS if name in columns), None)
    if key is None or vector is None:
        raise InvalidInput(
            f"{path.name} has the columns {', '.join(table.column_names)}; it needs a key ({', '.join(KEY_COLUMNS)}) "
            f"and a vector ({', '.join(VECTOR_COLUMNS)})."
        )
    return EmbeddingFile(
        keys=tuple(str(one) for one in table.column(key).to_pylist()),
        vectors=_vectors(table.column(vector).combine_chunks(), path.name, vector),
    )


def _vectors(column: Any, name: str, title: str) -> NDArray[np.float32]:
    """(n, d) of a column of lists."""
    import pyarrow

    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    if not is_list or not (pyarrow.types.is_floating(kind.value_type) or pyarrow.types.is_integer(kind.value_type)):
        raise InvalidInput(f"The column {title} of {name} holds {kind}; it must hold lists of numbers.")
    widths = np.asarray(column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
    found, counts = np.unique(widths, return_counts=True)
    if len(found) != 1 or found[0] < 0:
        most = int(found[np.where(found < 0, 0, counts).argmax()])
        row = int(np.flatnonzero((widths != most) | (widths < 0))[0])
        shown = "nothing" if widths[row] < 0 else f"{widths[row]} numbers"
        raise InvalidInput(f"Row {row + 1} of {name} has {shown} in {title}; most rows have {most}.")
    values = column.flatten().cast(pyarrow.float32(), safe=False).fill_null(float("nan"))
    return np.array(values.to_numpy(zero_copy_only=False), np.float32).reshape(len(widths), int(found[0]))


def _checked(found: EmbeddingFile, name: str) -> EmbeddingFile:
    n = len(found.vectors)
    if len(found.keys) != n:
        raise InvalidInput(f"{name} has {n:,} rows and {len(found.keys):,} keys.")
    if n == 0 or found.vectors.shape[1] == 0:
        raise InvalidInput(f"{name} has no embeddings: its shape is {found.vectors.shape}.")
    unique, counts = np.unique(np.array(found.keys), return_counts=True)
    if len(unique) != n:
        shown = ", ".join(unique[counts > 1][:SHOWN])
        n_more = n - len(unique)
        raise InvalidInput(f"{name} has {n_more:,} rows with a repeated key, such as {shown}. Keep one row per key.")
    broken = np.flatnonzero(~np.isfinite(found.vectors).all(1))
    if len(broken):
        shown = ", ".join(found.keys[row] for row in broken[:SHOWN])
        raise InvalidInput(f"{len(broken):,} rows of {name} hold values that are not numbers, such as {shown}.")
    return found


def match_items(found: EmbeddingFile, items: Sequence[tuple[str, str]]) -> MatchedEmbeddings:
    """The rows of the items (hash, file name) of a project. Keys are hashes if all of them look like hashes, else file
    names: a full path as imported, or its last part if that is unique."""
    row_of = {key.strip(): row for row, key in enumerate(found.keys)}
    if all(SHA256.fullmatch(key) for key in row_of):
        rows = [row_of.get(sha256) for sha256, _ in items]
    else:
        rows = _rows_by_name(row_of, [name for _, name in items])
    kept = [(sha256, row) for (sha256, _), row in zip(items, rows, strict=True) if row is not None]
    if not kept:
        raise InvalidInput(
            f"None of the {len(found.keys):,} keys (such as {found.keys[0]!r}) belongs to one of the {len(items):,} "
            f"items (such as {items[0][1]!r}). Keys are SHA-256 hashes or file names."
        )
    used = {row for _, row in kept}
    return MatchedEmbeddings(
        hashes=tuple(sha256 for sha256, _ in kept),
        vectors=found.vectors[[row for _, row in kept]],
        missing=tuple(name for (_, name), row in zip(items, rows, strict=True) if row is None),
        unused=len(found.keys) - len(used),
    )


def _rows_by_name(row_of: Mapping[str, int], names: Sequence[str]) -> list[int | None]:
    by_last: dict[str, int | None] = {}
    for key, row in row_of.items():
        last = key.rsplit("/", 1)[-1]
        by_last[last] = None if last in by_last else row
    last_parts = [name.rsplit("/", 1)[-1] for name in names]
    counts: dict[str, int] = {}
    for last in last_parts:
        counts[last] = counts.get(last, 0) + 1
    return [
        row_of.get(name, by_last.get(last) if counts[last] == 1 else None)
        for name, last in zip(names, last_parts, strict=True)
    ]


def table_files(name: str, kind: MediaKind, matched: MatchedEmbeddings, source: str) -> dict[str, bytes]:
    """The files of an encoder made from these embeddings."""
    order = np.argsort(np.array(matched.hashes))
    vectors = np.ascontiguousarray(matched.vectors[order])
    description = EncoderDescription(
        name=name,
        kind=kind,
        license="unknown",
        source=source,
        input=TableInput(table=len(vectors), file=source),
        output=Output(name="embeddings", dimension=vectors.shape[1]),
    )
    buffer = io.BytesIO()
    np.save(buffer, vectors)
    hashes = "".join(f"{matched.hashes[row]}\n" for row in order)
    return {JSON: to_json(description), ROWS: buffer.getvalue(), HASHES: hashes.encode()}


def table_rows(encoder: Encoder, hashes: Sequence[str]) -> NDArray[np.float32]:
    """(len(hashes), width) the rows of these items, NaN for items that are not in the table."""
    places, vectors = _open_table(str(encoder.folder), encoder.identity)
    found = np.full((len(hashes), encoder.description.output.width), np.nan, np.float32)
    for row, sha256 in enumerate(hashes):
        if (place := places.get(sha256)) is not None:
            found[row] = vectors[place]
    return found


@lru_cache(maxsize=2)
def _open_table(folder: str, identity: str) -> tuple[dict[str, int], NDArray[np.float32]]:
    vectors = np.load(Path(folder) / ROWS, mmap_mode="r", allow_pickle=False)
    lines = (Path(folder) / HASHES).read_text(encoding="ascii").split()
    if len(lines) != len(vectors):
        raise InvalidInput(f"{Path(folder).name} has {len(vectors):,} embeddings and {len(lines):,} hashes.")
    return {sha256: row for row, sha256 in enumerate(lines)}, vectors
