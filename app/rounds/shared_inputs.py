"""Prepared inputs as artifacts: if several machines share a round, one decodes the media and the others map its files.

This is used only if the artifact folder is shared. On one machine the row cache already has the rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.rounds.artifact_refs import to_dict, to_ref
from core.config import MediaConfig
from core.media.inputs import Inputs, NormalizedRows
from core.media.windows import Windows
from core.rows import ArrayRows
from core.types import MediaKind, Progress, Report, RowCache, Rows
from storage.rounds.artifacts import ArtifactFolder

BLOCK = 1024


def put_inputs(folder: ArtifactFolder, inputs: Inputs, report: Report) -> dict[str, Any]:
    """Store the sources and, for audio, the spectrograms. Returns JSON. Pictures are normalized when they are read."""
    about = {
        "names": inputs.names,
        "readable": inputs.readable.tolist(),
        "mean": inputs.mean.tolist(),
        "scale": inputs.scale.tolist(),
        "notes": inputs.notes,
        "key": inputs.key,
        "encoder": inputs.encoder,
        "window_rows": inputs.windows.rows.tolist() if inputs.windows else [],
    }
    return {
        "about": to_dict(folder.put_bytes(json.dumps(about).encode(), ".json")),
        "sources": _put_rows(folder, inputs.sources, report),
        "clean": _put_rows(folder, inputs.clean, report) if inputs.kind == "audio" and not inputs.encoder else None,
        "windows": _put_rows(folder, inputs.windows.pictures, report) if inputs.windows else None,
    }


def open_inputs(
    folder: ArtifactFolder, stored: Mapping[str, Any], kind: MediaKind, config: MediaConfig, cache: RowCache
) -> Inputs:
    """The inputs that `put_inputs` stored, memory-mapped."""
    about = json.loads(folder.path(to_ref(stored["about"])).read_bytes())
    mean, scale = np.asarray(about["mean"], np.float32), np.asarray(about["scale"], np.float32)
    sources = _open_rows(folder, stored["sources"])
    encoder = about.get("encoder", "")
    if encoder:
        clean: Rows = sources  # the features of the encoder
    else:
        clean = NormalizedRows(sources, mean, scale) if kind == "image" else _open_rows(folder, stored["clean"])
    windows = None
    if stored.get("windows"):
        rows = np.asarray(about["window_rows"], np.int64)
        windows = Windows(rows=rows, pictures=_open_rows(folder, stored["windows"]))
    return Inputs(
        kind=kind,
        config=config,
        clean=clean,
        sources=sources,
        mean=mean,
        scale=scale,
        names=tuple(about["names"]),
        readable=np.asarray(about["readable"], np.bool_),
        notes=tuple(about["notes"]),
        cache=cache,
        key=about["key"],
        windows=windows,
        encoder=encoder,
    )


def _put_rows(folder: ArtifactFolder, rows: Rows, report: Report) -> dict[str, Any]:
    """Store rows as one .npy file, which is written block by block."""
    with tempfile.TemporaryDirectory(prefix="winnow-") as place:
        path = Path(place) / "rows.npy"
        file = np.lib.format.open_memmap(path, mode="w+", dtype=rows.dtype, shape=rows.shape)
        for start in range(0, len(rows), BLOCK):
            stop = min(start + BLOCK, len(rows))
            file[start:stop] = rows.take(np.arange(start, stop))
            report(Progress("prepare", stop, len(rows), "sharing inputs"))
        file.flush()
        del file
        return to_dict(folder.put_file(path))


def _open_rows(folder: ArtifactFolder, stored: Mapping[str, Any]) -> ArrayRows:
    return ArrayRows(np.load(folder.path(to_ref(stored)), mmap_mode="r", allow_pickle=False))
