"""The numbers of the newest finished round as files: embeddings and probabilities of its items.

`arrays.npz` holds item_ids (n,), sha256 (n,), split (n,), class_names (C,), probabilities (n, C) and, if the round
trained a model, embeddings (n, e). `arrays.parquet` holds the same values and the item names, one row per item; the
class names are in the metadata of its schema under `class_names`. The probabilities are the pseudo-labels of the round:
those of a labeled item are the label it had then. Classes have their current names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from core.errors import NotFound
from storage.database.schema import Item, Round
from storage.database.store import Store
from storage.projects import class_rows
from storage.rounds.log import RoundLog

NPZ, PARQUET = "arrays.npz", "arrays.parquet"
GROUP_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class RoundArrays:
    """Rows are the items of the round that the project still has."""

    round_number: int
    item_ids: NDArray[np.int64]  # (n,)
    probabilities: NDArray[np.float32]  # (n, C)
    embeddings: NDArray[np.float32] | None  # (n, e)
    class_names: list[str]
    names: list[str]
    hashes: list[str]
    splits: list[str]


def write_arrays(store: Store, connection: Connection, project_id: int, folder: Path) -> int:
    """Write both files into `folder`; returns the number of the round. Raises NotFound before the first round."""
    found = newest_arrays(store, connection, project_id)
    _write_npz(found, folder / NPZ)
    _write_parquet(found, folder / PARQUET)
    return found.round_number


def newest_arrays(store: Store, connection: Connection, project_id: int) -> RoundArrays:
    """The arrays of the newest finished round, for the items that the project still has. NotFound before it."""
    query = select(Round.id, Round.number, Round.class_event).where(
        Round.project_id == project_id, Round.status == "finished"
    )
    newest = connection.execute(query.order_by(Round.number.desc()).limit(1)).one_or_none()
    if newest is None:
        raise NotFound("There are no arrays yet: no round has finished. Run one, or export without --arrays.")
    log = RoundLog(store, project_id)
    ids = np.asarray(log.arrays(newest.id, "item_ids"), np.int64)
    probabilities = log.arrays(newest.id, "probabilities")
    try:
        embeddings = log.arrays(newest.id, "embeddings")
    except NotFound:
        embeddings = None
    items = _items(connection, project_id)
    rows = np.flatnonzero([item_id in items for item_id in ids.tolist()])
    listed = [items[item_id] for item_id in ids[rows].tolist()]
    now = {row.id: row.name for row in class_rows.rows_in(connection, project_id)}
    columns = [row for row in class_rows.rows_as_of(connection, project_id, newest.class_event) if row.active]
    return RoundArrays(
        newest.number,
        ids[rows],
        np.asarray(probabilities[rows], np.float32),
        None if embeddings is None else np.asarray(embeddings[rows], np.float32),
        [now[row.id] for row in columns],
        [item.name for item in listed],
        [item.sha256 for item in listed],
        [item.split_name or ("test" if item.held_out else "train") for item in listed],
    )


def _items(connection: Connection, project_id: int) -> dict[int, Any]:
    query = select(Item.id, Item.name, Item.sha256, Item.split_name, Item.held_out)
    return {row.id: row for row in connection.execute(query.where(Item.project_id == project_id))}


def _write_npz(found: RoundArrays, path: Path) -> None:
    arrays: dict[str, Any] = {
        "item_ids": found.item_ids,
        "sha256": np.array(found.hashes, "U64"),
        "split": np.array(found.splits, np.str_),
        "class_names": np.array(found.class_names, np.str_),
        "probabilities": found.probabilities,
    }
    if found.embeddings is not None:
        arrays["embeddings"] = found.embeddings
    np.savez(path, **arrays)


def _write_parquet(found: RoundArrays, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = [("item_id", pa.int64()), ("name", pa.string()), ("sha256", pa.string()), ("split", pa.string())]
    kinds += [("predicted", pa.string()), ("probabilities", pa.list_(pa.float32(), len(found.class_names)))]
    if found.embeddings is not None:
        kinds.append(("embedding", pa.list_(pa.float32(), found.embeddings.shape[1])))
    about = {"class_names": json.dumps(found.class_names, ensure_ascii=False), "round": str(found.round_number)}
    schema = pa.schema(kinds, metadata=about)
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, len(found.item_ids), GROUP_ROWS):
            writer.write_table(pa.table(_columns(found, slice(start, start + GROUP_ROWS), schema), schema=schema))


def _columns(found: RoundArrays, part: slice, schema: Any) -> dict[str, Any]:
    import pyarrow as pa

    probabilities = found.probabilities[part]
    best = probabilities.argmax(1).tolist() if probabilities.size else []
    columns: dict[str, Any] = {
        "item_id": found.item_ids[part],
        "name": found.names[part],
        "sha256": found.hashes[part],
        "split": found.splits[part],
        "predicted": [found.class_names[column] for column in best],
        "probabilities": pa.FixedSizeListArray.from_arrays(probabilities.ravel(), probabilities.shape[1]),
    }
    if found.embeddings is not None:
        embeddings = found.embeddings[part]
        columns["embedding"] = pa.FixedSizeListArray.from_arrays(embeddings.ravel(), embeddings.shape[1])
    return {name: columns[name] for name in schema.names}
