"""Windows of recordings: their keys, their places, and their samples as small WAV files.

Key       SHA-256 of the text "<SHA-256 of the recording> <first frame> <last frame>"; both frames belong to the window
Bytes     a WAV file of these frames, the same for every call. Plain samples (WAV, RF64) are copied bit by bit and need
          no decoder. FLAC and AIFF keep their 16, 24 or 32 bits. Decoded samples of MP3, OGG and coded WAV are rounded
          to 16 bits.

Decoding seeks: WAV, RF64, AIFF and FLAC cost the same at any position in a recording; OGG Vorbis searches its pages
(about 1.5 times as much); MP3 is read from its start, so the cost grows with the position.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from core.errors import InvalidInput
from core.limits import Limits
from storage.media.wav import PCM, Sliceable, WavLayout, wav_header, wav_layout

SHORTEST, LONGEST = 0.05, 600.0  # seconds of a window
SHORTEST_HOP, LONGEST_HOP = 0.01, 86_400.0  # seconds from one window to the next
LEAST_SHARE = 0.1  # of a window: a shorter remainder of the recording is left out
SUGGEST_SECONDS = 60.0  # for longer files, windows are suggested
KEPT_BITS = {"PCM_S8": 16, "PCM_U8": 16, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32}
DECODED_BITS = 16


class Span(NamedTuple):
    """Frames of a recording, the last one included."""

    recording: str  # SHA-256
    first_frame: int
    last_frame: int

    @property
    def n_frames(self) -> int:
        return self.last_frame - self.first_frame + 1


def window_key(span: Span) -> str:
    return hashlib.sha256(f"{span.recording} {span.first_frame} {span.last_frame}".encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How recordings are cut: windows of `seconds`, one every `hop` seconds."""

    seconds: float
    hop: float = 0.0  # 0: one window after the other

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and SHORTEST <= self.seconds <= LONGEST):
            raise InvalidInput(f"Windows of {self.seconds:g} s are not supported; use {SHORTEST:g} to {LONGEST:g} s.")
        if self.hop and not (math.isfinite(self.hop) and SHORTEST_HOP <= self.hop <= LONGEST_HOP):
            raise InvalidInput(f"A hop of {self.hop:g} s is not supported; use {SHORTEST_HOP:g} s or more.")

    @property
    def step(self) -> float:
        return self.hop or self.seconds

    def spans(self, n_frames: int, sample_rate: int) -> Iterator[tuple[int, int]]:
        """(first frame, last frame) of the windows of a recording. A remainder that no window covers becomes a
        shorter last window if it is at least a tenth of a window long."""
        length, step = max(1, round(self.seconds * sample_rate)), max(1, round(self.step * sample_rate))
        first = covered = 0
        while first + length <= n_frames:
            yield first, first + length - 1
            covered, first = first + length, first + step
        start = max(first, covered)
        if n_frames - start >= max(1, LEAST_SHARE * length):
            yield start, n_frames - 1

    def n_windows(self, n_frames: int, sample_rate: int) -> int:
        length, step = max(1, round(self.seconds * sample_rate)), max(1, round(self.step * sample_rate))
        whole = 0 if n_frames < length else (n_frames - length) // step + 1
        start = max(whole * step, (whole - 1) * step + length if whole else 0)
        return whole + (n_frames - start >= max(1, LEAST_SHARE * length))


class FileContent:
    """A file as a sequence of bytes. Only slices are read, so its size does not matter for memory."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._size = descriptor, os.fstat(descriptor).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(self._size)
        blocks, left = [], max(0, stop - start)
        while left and (block := os.pread(self._descriptor, left, start)):
            blocks.append(block)
            start, left = start + len(block), left - len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)


class ContentStream(io.RawIOBase):
    """A `Sliceable` as a file object, for decoders."""

    def __init__(self, data: Sliceable) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._data))[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        block = self._data[self._at : self._at + len(buffer)]
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


class RecordingEnded(InvalidInput):
    """The recording ends before the window does."""


def cut(data: Sliceable, first_frame: int, last_frame: int) -> bytes:
    """The frames as a WAV file. Raises `RecordingEnded` if some are missing, `InvalidInput` if decoding fails."""
    return cut_plain(data, first_frame, last_frame) or _cut_decoded(data, first_frame, last_frame)


def cut_plain(data: Sliceable, first_frame: int, last_frame: int) -> bytes | None:
    """The frames without a decoder; None when one is needed."""
    layout = wav_layout(data)
    if layout is None:
        return None
    if last_frame >= layout.n_frames:
        raise RecordingEnded(_ended(last_frame, layout.n_frames, layout.sample_rate))
    start, n_bytes = layout.offset + first_frame * layout.frame_bytes, layout.frame_bytes
    samples = data[start : start + n_bytes * (last_frame - first_frame + 1)]
    return wav_header(len(samples), layout) + samples + b"\0" * (len(samples) & 1)


def _cut_decoded(data: Sliceable, first_frame: int, last_frame: int) -> bytes:
    import numpy as np
    import soundfile

    n_frames = last_frame - first_frame + 1
    try:
        with soundfile.SoundFile(ContentStream(data)) as sound:
            bits = KEPT_BITS.get(sound.subtype, DECODED_BITS)
            layout = WavLayout(0, n_frames, n_frames, sound.samplerate, sound.channels, PCM, bits)
            if last_frame >= sound.frames:
                raise RecordingEnded(_ended(last_frame, sound.frames, sound.samplerate))
            sound.seek(first_frame)
            if sound.subtype in KEPT_BITS:
                values = sound.read(n_frames, dtype="int32", always_2d=True)
            else:
                decoded = np.nan_to_num(sound.read(n_frames, dtype="float32", always_2d=True))
                values = (np.clip(np.rint(decoded * 32768.0), -32768, 32767)).astype(np.int32) << 16
    except (soundfile.LibsndfileError, OSError, ValueError) as problem:
        raise InvalidInput(f"The frames {first_frame:,} to {last_frame:,} cannot be decoded: {problem}") from problem
    if len(values) < n_frames:
        raise RecordingEnded(_ended(last_frame, first_frame + len(values), layout.sample_rate))
    samples = np.ascontiguousarray(values.astype("<i4")).view(np.uint8).reshape(-1, 4)[:, 4 - bits // 8 :].tobytes()
    return wav_header(len(samples), layout) + samples + b"\0" * (len(samples) & 1)


def _ended(last_frame: int, n_frames: int, rate: int) -> str:
    return (
        f"The recording ends after {n_frames:,} frames ({n_frames / rate:,.1f} s), before the end of the window at "
        f"frame {last_frame:,} ({(last_frame + 1) / rate:,.1f} s)."
    )


def countable_frames(data: Sliceable, stated: int, most: int) -> int:
    """The frames of a coded file that can be read, at most one above `most`. The header's number is checked by reading
    the last frame; where that fails, the end is found by bisection, which takes a few dozen seeks."""
    stated = min(stated, most + 1)
    if stated <= 0 or _readable(data, stated - 1):
        return max(0, stated)
    low, high = 0, stated - 1  # frame `high` cannot be read
    while low < high:
        middle = (low + high) // 2
        if _readable(data, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _readable(data: Sliceable, frame: int) -> bool:
    import soundfile

    try:
        with soundfile.SoundFile(ContentStream(data)) as sound:  # a decoder is unusable after a failed seek
            sound.seek(frame)
            return len(sound.read(1, dtype="int32")) == 1
    except (soundfile.LibsndfileError, OSError, ValueError):
        return False


def span_problem(span: tuple[int, int], n_frames: int, sample_rate: int, limits: Limits) -> str:
    """Why these frames are not a valid window; "" if they are."""
    first, last = span
    if first < 0 or last < first:
        return f"The window from frame {first:,} to {last:,} is empty or starts before the recording."
    if last >= n_frames:
        return _ended(last, n_frames, sample_rate)
    if last - first + 1 > limits.max_seconds * sample_rate:
        return f"The window lasts {(last - first + 1) / sample_rate:,.1f} s; the limit is {limits.max_seconds:,g} s."
    return ""
