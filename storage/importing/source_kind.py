"""Whether a source holds audio or images."""

from __future__ import annotations

from core.errors import InvalidInput
from core.types import MediaKind
from storage.importing.sources import Source
from storage.importing.zip_reader import BadEntry
from storage.media.types import HEAD_BYTES, identify, media_kind


def find_media_kind(source: Source) -> MediaKind:
    """The kind of the first entry whose bytes are audio or an image. Raises `InvalidInput` when there is none."""
    for entry in source.entries():
        if entry.place is None or entry.problem:
            continue
        try:
            head = source.head(entry.place, HEAD_BYTES)
        except (OSError, BadEntry):
            continue
        found = "audio/mpeg" if head.startswith(b"ID3") else _identify(head)
        if found is not None:
            return media_kind(found)
    raise InvalidInput(f"{source.description} contains no audio clips or pictures that can be imported.")


def _identify(head: bytes) -> str | None:
    return identify(head, lambda offset, n_bytes: head[offset : offset + n_bytes])
