"""A past round of the preset `auto` as a file of plain arrays, for simulations that are resumed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from core.atomic_files import write_file
from core.rounds.approach.evidence import PastRound


def save_past(past: PastRound, path: Path) -> None:
    """Write the file in one step, so that an incomplete file never exists."""
    about = {"n_labels": past.n_labels, "encoder": past.encoder, "uses_encoder": past.uses_encoder}
    text = json.dumps(about | {"class_names": past.class_names}).encode()
    arrays = {name: getattr(past, name) for name in ("item_ids", "classes") if getattr(past, name) is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, about=np.frombuffer(text, np.uint8), **arrays)
    write_file(path, content.getvalue())


def load_past(path: Path) -> PastRound:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    return PastRound(**(about | {"class_names": tuple(about["class_names"])}), **arrays)
