"""Fetches an encoder from the Hugging Face Hub: ONNX and JSON files only.

Only the operator's command line imports this module, pages and workers do not. No other part of Winnow downloads
anything.

HF_ENDPOINT, HF_HUB_OFFLINE and the cache of `huggingface_hub` are honored.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from core.encoders.folders import JSON, MAX_ONNX_BYTES, ONNX
from core.errors import InvalidInput, NotFound

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
PATTERNS = ["*.onnx", "*.json"]


@contextmanager
def fetched(repository: str, description: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder with the encoder of a repository, OWNER/NAME or OWNER/NAME@REVISION."""
    name, _, revision = repository.partition("@")
    if not REPOSITORY.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a repository; write hf:OWNER/NAME, or hf:OWNER/NAME@REVISION.")
    try:
        found = Path(huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=PATTERNS))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError, ValueError) as problem:
        raise NotFound(f"{name} cannot be fetched: {str(problem).splitlines()[0]}") from problem
    with tempfile.TemporaryDirectory(prefix="winnow-hub-") as place:
        folder = Path(place)
        onnx = _network_of(found, name)
        if onnx.stat().st_size > MAX_ONNX_BYTES:
            raise InvalidInput(f"{onnx.name} of {name} has {onnx.stat().st_size:,} bytes; at most {MAX_ONNX_BYTES:,}.")
        shutil.copyfile(onnx, folder / ONNX)
        described = description or next((one for one in (onnx.parent / JSON, found / JSON) if one.is_file()), None)
        if described is None:
            raise InvalidInput(
                f"{name} has no {JSON}. Write one (see docs/encoders.md) and name it with --description."
            )
        shutil.copyfile(described, folder / JSON)
        yield folder


def _network_of(folder: Path, name: str) -> Path:
    """The ONNX file of a repository: encoder.onnx, or its only .onnx file."""
    found = sorted(folder.rglob("*.onnx"))
    named = [path for path in found if path.name == ONNX]
    if len(named or found) != 1:
        shown = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
        raise InvalidInput(f"{name} must have one {ONNX}, or a single .onnx file; it has: {shown}.")
    return (named or found)[0]
