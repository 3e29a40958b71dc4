"""References to artifacts as JSON. Rows and the engine store them instead of files. This module does not load torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from storage.rounds.artifacts import ArtifactRef


def to_dict(ref: ArtifactRef) -> dict[str, Any]:
    return dataclasses.asdict(ref) | {"shape": list(ref.shape)}


def to_ref(stored: Mapping[str, Any]) -> ArtifactRef:
    return ArtifactRef(
        stored["sha256"], stored["suffix"], int(stored["n_bytes"]), tuple(stored["shape"]), stored["dtype"]
    )
