"""The folder of an exported model: its files, and model.json with its provenance and the hash of every file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.exporting.target import described, new_export

FORMAT, VERSION = "winnow-model", 1
ABOUT = "model.json"


def write_model_folder(target: Path, files: Mapping[str, bytes], about: Mapping[str, Any], overwrite: bool) -> None:
    """Write the files and `about` to the folder or zip file `target`, with the hashes and sizes of the files."""
    with new_export(target, overwrite) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        listed = {name: described(folder / name) for name in sorted(files)}
        (folder / ABOUT).write_bytes(as_json({"format": FORMAT, "version": VERSION, **about, "files": listed}))


def as_json(value: Mapping[str, Any]) -> bytes:
    """Readable JSON with sorted keys: equal values give equal bytes."""
    return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n").encode()
