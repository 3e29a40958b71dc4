"""The stored features of an encoder, read from the row cache with numpy alone: for pages and small processes.

Features are written by the stage "encode" of rounds (`core.encoders.pool`). Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.encoders.folders import feature_key
from storage.rounds.row_cache import FolderRowCache


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """Features of those of the requested items that have any."""

    present: NDArray[np.bool_]  # (n,) items that have features
    matrix: NDArray[np.float32]  # (present.sum(), width) in their order


def read_features(home: Path, identity: str, hashes: Sequence[str]) -> StoredFeatures:
    """The features of the encoder with this identity for the items behind `hashes`, as far as they are encoded. Items
    that cannot be encoded (`core.encoders.pool`) count as absent."""
    known, rows = FolderRowCache(Path(home) / "cache" / "rows").known_rows(feature_key(identity), hashes)
    if not known.any():
        return StoredFeatures(known, np.empty((0, 0), np.float32))
    matrix = rows.take(np.arange(len(rows)))
    finite = np.isfinite(matrix[:, 0])
    present = known.copy()
    present[known] = finite
    return StoredFeatures(present, np.asarray(matrix[finite], np.float32))
