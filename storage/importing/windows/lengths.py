"""The lengths of sounds, estimated from their first bytes and their size, so that a preview can suggest windows.

WAV and FLAC state their length. For other formats it is estimated from the size at a typical bit rate.
"""

from __future__ import annotations

import os

from storage.importing.sources import CellPlace, FilePlace, PackedPlace, Place
from storage.media.wav import wav_layout
from storage.media.windows import SUGGEST_SECONDS, WindowOptions

BYTES_PER_SECOND = {"audio/mpeg": 16_000, "audio/ogg": 16_000, "audio/aiff": 176_400, "audio/flac": 80_000}


class _Beginning:
    """The first bytes of a file of a known size, for `wav_layout`."""

    def __init__(self, head: bytes, n_bytes: int) -> None:
        self._head, self._n_bytes = head, n_bytes

    def __len__(self) -> int:
        return self._n_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        return self._head[part]


def size_of(place: Place) -> int:
    """The number of bytes of an entry; 0 if it is not known without reading the entry."""
    if isinstance(place, PackedPlace | CellPlace):
        return place.n_bytes
    if isinstance(place, FilePlace):
        try:
            return os.stat(place.path).st_size
        except OSError:
            return 0
    return 0


def estimated_seconds(head: bytes, media_type: str, n_bytes: int) -> float:
    """The length of a sound in seconds; 0 if it is unknown."""
    if media_type == "audio/wav":
        layout = wav_layout(_Beginning(head, n_bytes))
        return layout.n_frames / layout.sample_rate if layout is not None else n_bytes / 176_400
    if media_type == "audio/flac" and len(head) >= 26 and head[:4] == b"fLaC":
        rate = int.from_bytes(head[18:21], "big") >> 4
        n_frames = int.from_bytes(head[21:26], "big") & (1 << 36) - 1
        if rate and n_frames:
            return n_frames / rate
    return n_bytes / BYTES_PER_SECOND[media_type] if media_type in BYTES_PER_SECOND else 0.0


def is_stated(media_type: str) -> bool:
    """Whether a file of this type states its length; else it is estimated."""
    return media_type in ("audio/wav", "audio/flac")


def cut_sentence(n_recordings: int, n_windows: int, windows: WindowOptions, rough: bool) -> str:
    """The result of an import with windows: "3 recordings → 2,160 windows of 5 s"."""
    if not n_recordings:
        return f"No sound is longer than {windows.seconds:g} s: nothing is cut"
    files = "1 recording" if n_recordings == 1 else f"{n_recordings:,} recordings"
    made = "1 window" if n_windows == 1 else f"{n_windows:,} windows"
    return f"{files} → {'about ' if rough else ''}{made} of {windows.seconds:g} s"


def suggestion(n_long: int, longest: float) -> str:
    """The sentence that suggests windows."""
    files = "1 file is" if n_long == 1 else f"{n_long:,} files are"
    return (
        f"{files} longer than {SUGGEST_SECONDS:g} s (up to about {longest:,.0f} s). A label belongs to a whole clip, "
        "and a model uses at most 10 s of it. Cut them into windows, such as of 5 s (--windows 5)."
    )
