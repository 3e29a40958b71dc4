"""Limits on files and archives, shared by import, display and rounds. Every limit has a default and can be set.

The module needs neither torch nor a decoder, so `core` and `storage` can both use it. A file that import accepts can be
displayed and read by the model; a file over a limit gets the same message in all three places.

Sources of settings, in increasing precedence: the defaults below; `WINNOW_LIMITS` (a JSON object); one environment
variable per limit (`WINNOW_MAX_FILE_BYTES` and so on); `--limit max_pixels=1000000` on the command line.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from core.errors import InvalidInput

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits. A file over a limit is refused with a message that states the number and the limit's name."""

    max_file_bytes: int = 256 * MIB
    max_pixels: int = 64_000_000  # width x height, checked before decoding
    max_seconds: float = 600.0
    min_sample_rate: int = 1_000
    max_sample_rate: int = 384_000
    max_channels: int = 8
    max_samples: int = 128 * MIB  # decoded values, frames x channels: 600 s of stereo at 96 kHz
    max_recording_bytes: int = 64 * 1024 * MIB  # of a file that is cut into windows
    max_recording_seconds: float = 172_800.0  # 48 h
    max_windows: int = 500_000  # of one recording
    max_zip_entries: int = 1_000_000
    max_zip_bytes: int = 20 * 1024 * MIB  # of all entries, unpacked
    max_zip_ratio: float = 200.0  # unpacked over packed, for entries above 1 MiB and for the archive as a whole
    max_manifest_bytes: int = 1024 * MIB
    decode_seconds: float = 20.0  # wall seconds to decode one file
    decode_bytes: int = 2048 * MIB  # address space of the process that decodes
    encode_seconds: float = 20.0  # wall seconds an encoder may take for one item
    encode_bytes: int = 4096 * MIB  # memory of an encoder in addition to its program

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InvalidInput(f"The limit {field.name} is {value}; it must be above 0.")
        if self.min_sample_rate > self.max_sample_rate:
            raise InvalidInput(
                f"The lowest sample rate allowed, {self.min_sample_rate}, is above the highest, {self.max_sample_rate}."
            )


def header_problem(sample_rate: int, channels: int, limits: Limits) -> str | None:
    """Why audio with this header is refused, as a sentence; None if it is accepted."""
    if not limits.min_sample_rate <= sample_rate <= limits.max_sample_rate:
        return (
            f"Its sample rate is {sample_rate:,} Hz; allowed are {limits.min_sample_rate:,} to "
            f"{limits.max_sample_rate:,} Hz (min_sample_rate, max_sample_rate)."
        )
    if not 1 <= channels <= limits.max_channels:
        return f"It has {channels} channels; the limit is {limits.max_channels} (max_channels)."
    return None


def length_problem(n_frames: int, sample_rate: int, channels: int, limits: Limits) -> str | None:
    """Why audio of `n_frames` decoded frames is refused, as a sentence; None if it is accepted."""
    if n_frames > max_frames(sample_rate, channels, limits):
        if n_frames > limits.max_seconds * sample_rate:
            return (
                f"It lasts {n_frames / sample_rate:,.1f} s or more; the limit is {limits.max_seconds:,g} s "
                "(max_seconds). Import it with windows, which cuts it into clips (--windows)."
            )
        return (
            f"Its {n_frames:,} frames or more of {channels} channels are above the limit of {limits.max_samples:,} "
            "decoded samples (max_samples). Cut it into shorter clips, mix the channels or lower the sample rate."
        )
    return None


def size_problem(n_bytes: int, limits: Limits) -> str | None:
    """Why a file of this size is refused if it is not cut into windows, as a sentence; None if it is accepted."""
    if n_bytes > limits.max_file_bytes:
        return (
            f"It has {n_bytes:,} bytes; the limit is {limits.max_file_bytes:,} (max_file_bytes). Recordings that are "
            "cut into windows (--windows) can be larger."
        )
    return None


def recording_problem(n_frames: int, sample_rate: int, limits: Limits) -> str | None:
    """Why a recording of `n_frames` cannot be cut into windows, as a sentence; None if it can be."""
    if n_frames > limits.max_recording_seconds * sample_rate:
        return (
            f"It lasts {n_frames / sample_rate:,.1f} s; the limit for recordings that are cut into windows is "
            f"{limits.max_recording_seconds:,g} s (max_recording_seconds)."
        )
    return None


def max_frames(sample_rate: int, channels: int, limits: Limits) -> int:
    """The largest number of frames that may be decoded, whatever the file's header states."""
    return min(int(limits.max_seconds * sample_rate), limits.max_samples // max(1, channels))


def pixels_problem(width: int, height: int, limits: Limits) -> str | None:
    """Why a picture of this size is refused, as a sentence; None if it is accepted."""
    if width * height > limits.max_pixels:
        return f"It has {width:,} x {height:,} pixels; the limit is {limits.max_pixels:,} in all (max_pixels)."
    return None


def tiff_problem(tags: Mapping[int, Any]) -> str | None:
    """Why a TIFF with these tags on its first page is refused; None if it can be converted to an 8-bit picture."""
    if 50706 in tags or int(tags.get(254, 0)) & 1:  # DNGVersion, NewSubfileType
        return "Its first page is a preview of a camera raw file. Export the photograph as TIFF or JPEG."
    bits = tags.get(258, 1)  # BitsPerSample
    deepest = max(bits) if isinstance(bits, tuple) else int(bits)
    if deepest not in (1, 2, 4, 8, 16):
        return f"It has {deepest} bits per sample; allowed are 8 and 16. Scale it to 16 bits."
    return None


@lru_cache(maxsize=1)
def current_limits() -> Limits:
    """The limits set by the environment of this process, read once."""
    return limits_from()


def limits_from(
    options: Iterable[str] = (), environment: Mapping[str, str] | None = None, known: Limits | None = None
) -> Limits:
    """The limits in force: `known` (the defaults), then the environment, then the `name=value` options."""
    from core.config import from_dict  # imported here because every process that examines files imports this module

    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    if text := environment.get("WINNOW_LIMITS"):
        try:
            given = json.loads(text)
        except ValueError as problem:
            raise InvalidInput(f"WINNOW_LIMITS is not a JSON object ({problem}).") from problem
        if not isinstance(given, dict):
            raise InvalidInput('WINNOW_LIMITS is not a JSON object, such as {"max_pixels": 1000000}.')
        values.update(given)
    for field in dataclasses.fields(Limits):
        if text := environment.get(f"WINNOW_{field.name.upper()}"):
            values[field.name] = _number(field.name, text)
    for option in options:
        name, separator, text = option.partition("=")
        if not separator:
            raise InvalidInput(f"The limit {option!r} has no value; write it as max_pixels=1000000.")
        values[name.strip()] = _number(name.strip(), text)
    return from_dict(Limits, {**dataclasses.asdict(known or Limits()), **values})


def _number(name: str, text: str) -> int | float:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"The limit {name} is {text!r}; give a number.") from None
