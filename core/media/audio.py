"""Audio bytes -> a mono clip of fixed length.

The type is decided by the first bytes, before any decoder runs: WAV, FLAC, OGG, MP3 and AIFF only. Rate, channels and
the number of decoded samples are limited (`core.limits`), and audio is decoded in blocks to mono, so that a small file
cannot cause a large amount of work.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from core.config import MediaConfig
from core.errors import InvalidInput
from core.limits import Limits, current_limits, header_problem, length_problem, max_frames

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "MPEG", "AIFF")
BLOCK_SAMPLES = 1 << 18


def audio_type(data: bytes) -> str | None:
    """ "wav", "flac", "ogg", "aiff" or "mp3" by the first bytes; None for anything else."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if data[:4] == b"OggS":
        return "ogg"
    if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 == 0x02  # MPEG layer III
    return "mp3" if data[:3] == b"ID3" or is_frame else None


def decode_audio(data: bytes, limits: Limits | None = None, channel: int = 0) -> tuple[NDArray[np.float32], int]:
    """(samples,) mono in float32, and the sample rate. InvalidInput with the reason when it cannot be used.

    `channel` 1 is the first one. With 0, and where the file has fewer channels, it is the mean of all channels.
    """
    limits = limits or current_limits()
    mono = bytearray()  # grows with the samples that are read; the frame count of a header is never trusted
    with open_audio(data, limits) as source:
        rate, n_frames = int(source.file.samplerate), 0
        for block in source.blocks():
            if not np.isfinite(block).all():
                raise InvalidInput("The audio contains samples that are not numbers (NaN or infinity).")
            mono += _mono(block, channel).tobytes()
            n_frames += len(block)
            problem = length_problem(n_frames, rate, source.file.channels, limits)
            if problem is not None:
                raise InvalidInput(problem)
    if n_frames == 0:
        raise InvalidInput("The audio contains no samples.")
    return np.frombuffer(mono, np.float32), rate


def _mono(block: NDArray[np.float32], channel: int) -> NDArray[np.float32]:
    if 1 <= channel <= block.shape[1]:
        return np.ascontiguousarray(block[:, channel - 1])
    return np.asarray(block.mean(axis=1))


@contextmanager
def open_audio(data: bytes, limits: Limits) -> Iterator[AudioSource]:
    """The file with its header read and checked. Errors of its decoder are raised as InvalidInput."""
    if audio_type(data) is None:
        raise InvalidInput("Not a WAV, FLAC, OGG, MP3 or AIFF file by its first bytes.")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FORMATS:
                raise InvalidInput(f"The audio format {file.format} is not supported; use WAV, FLAC, OGG, MP3 or AIFF.")
            problem = header_problem(file.samplerate, file.channels, limits)
            if problem is not None:
                raise InvalidInput(problem)
            yield AudioSource(file, max_frames(file.samplerate, file.channels, limits))
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        raise InvalidInput(f"The audio cannot be decoded: {error}") from error


@dataclass(frozen=True, slots=True)
class AudioSource:
    """An open file that is read block by block, at most one block beyond `most_frames`."""

    file: soundfile.SoundFile
    most_frames: int

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Blocks (frames, channels) up to the end of the file, or until more than `most_frames` were read."""
        n_frames, size = 0, max(1, BLOCK_SAMPLES // self.file.channels)
        while n_frames <= self.most_frames and len(block := self.file.read(size, dtype="float32", always_2d=True)):
            n_frames += len(block)
            yield block


def clip_length(config: MediaConfig) -> int:
    """Samples in every clip: seconds x sample rate."""
    return round(config.seconds * config.sample_rate)


def to_clip(samples: NDArray[np.float32], rate: int, config: MediaConfig) -> NDArray[np.float32]:
    """(T,) at the configured rate; the largest absolute sample is scaled to 1 (levels carry no class information; half
    precision then suffices).

    clip_from   longer audio                         shorter audio
    loudest     the stretch with the most energy     centered in silence
    center      the middle                           centered in silence
    start       the beginning                        followed by silence
    """
    return _part(at_rate(samples, rate, config), None, config)


def to_windows(samples: NDArray[np.float32], rate: int, n_windows: int, config: MediaConfig) -> NDArray[np.float32]:
    """(n_windows, T): evenly spaced windows of the clip's length over the whole audio, the first at its start and the
    last at its end, each scaled as in `to_clip`. Audio that is not longer than a window gives equal windows."""
    samples = at_rate(samples, rate, config)
    spare = len(samples) - clip_length(config)
    if spare <= 0:
        return np.repeat(_part(samples, None, config)[None], n_windows, axis=0)
    starts = np.linspace(0, spare, n_windows).round().astype(np.int64)
    return np.stack([_part(samples, int(start), config) for start in starts])


def at_rate(samples: NDArray[np.float32], rate: int, config: MediaConfig) -> NDArray[np.float32]:
    """(samples,) at the configured sample rate."""
    return samples if rate == config.sample_rate else resample(samples, rate, config.sample_rate)


def _part(samples: NDArray[np.float32], start: int | None, config: MediaConfig) -> NDArray[np.float32]:
    """(T,) of the samples from `start` on, by default from `clip_start`, padded and scaled."""
    length = clip_length(config)
    if len(samples) > length:
        begin = clip_start(samples, config) if start is None else start
        samples = samples[begin : begin + length]
    before = 0 if config.clip_from == "start" else (length - len(samples)) // 2
    clip = np.pad(samples, (before, length - len(samples) - before)).astype(np.float32)
    peak = np.abs(clip).max(initial=0.0)
    return clip / peak if peak > 0 else clip


def clip_start(samples: NDArray[np.float32], config: MediaConfig) -> int:
    """The first of the samples that the model is given, for audio longer than a clip."""
    length = clip_length(config)
    if config.clip_from == "loudest":
        return loudest_stretch(samples, length)
    return (len(samples) - length) // 2 if config.clip_from == "center" else 0


def resample(samples: NDArray[np.float32], rate: int, target_rate: int) -> NDArray[np.float32]:
    """(samples,) at `target_rate`, by the resampler of librosa's "soxr_hq" without importing librosa, which takes
    seconds."""
    resampled: NDArray[np.float32] = soxr.resample(samples, rate, target_rate, quality="HQ")
    return resampled


def loudest_stretch(samples: NDArray[np.float32], length: int) -> int:
    """Start of the window of `length` samples with the largest sum of squares."""
    energy = np.concatenate([[0.0], np.cumsum(samples.astype(np.float64) ** 2)])
    return int(np.argmax(energy[length:] - energy[:-length]))
