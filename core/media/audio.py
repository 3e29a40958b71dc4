"""Audio bytes -> a mono clip of fixed length.

The type is decided by the first bytes, before any decoder runs: WAV, FLAC, OGG and MP3 only. Rate, length and
channels are capped, so that a small file cannot cause unbounded work.
"""

from __future__ import annotations

import io

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from core.config import MediaConfig
from core.errors import InvalidInput

MIN_RATE, MAX_RATE = 2_000, 384_000  # Hz
MAX_SECONDS = 600.0
MAX_CHANNELS = 8
FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3", "MPEG")


def audio_type(data: bytes) -> str | None:
    """ "wav", "flac", "ogg" or "mp3" by the first bytes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if data[:4] == b"OggS":
        return "ogg"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 == 0x02  # MPEG layer III
    return "mp3" if data[:3] == b"ID3" or is_frame else None


def decode_audio(data: bytes) -> tuple[NDArray[np.float32], int]:
    """(samples,) mono in float32, and the sample rate. InvalidInput with the reason when it cannot be used."""
    if audio_type(data) is None:
        raise InvalidInput("Not a WAV, FLAC, OGG or MP3 file by its first bytes.")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _require_sane(file)
            samples = file.read(frames=int(MAX_SECONDS * file.samplerate) + 1, dtype="float32", always_2d=True)
            rate = int(file.samplerate)
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        raise InvalidInput(f"The audio cannot be decoded: {error}") from error
    if len(samples) == 0:
        raise InvalidInput("The audio contains no samples.")
    if len(samples) > MAX_SECONDS * rate:
        raise InvalidInput(f"The audio is longer than {MAX_SECONDS:.0f} s; cut it into shorter clips.")
    if not np.isfinite(samples).all():
        raise InvalidInput("The audio contains samples that are not numbers (NaN or infinity).")
    return samples.mean(axis=1), rate


def _require_sane(file: soundfile.SoundFile) -> None:
    if file.format not in FORMATS:
        raise InvalidInput(f"The audio format {file.format} is not supported; use WAV, FLAC, OGG or MP3.")
    if not MIN_RATE <= file.samplerate <= MAX_RATE:
        raise InvalidInput(f"A sample rate of {file.samplerate} Hz is outside {MIN_RATE:,} to {MAX_RATE:,} Hz.")
    if file.channels > MAX_CHANNELS:
        raise InvalidInput(f"The audio has {file.channels} channels; at most {MAX_CHANNELS} are supported.")


def clip_length(config: MediaConfig) -> int:
    """Samples in every clip: seconds x sample rate."""
    return round(config.seconds * config.sample_rate)


def to_clip(samples: NDArray[np.float32], rate: int, config: MediaConfig) -> NDArray[np.float32]:
    """(T,) at the configured rate: shorter audio is centered in silence, longer audio is cropped to the stretch with
    the most energy, and the largest absolute sample is scaled to 1 (levels carry no class information; half precision
    then suffices).
    """
    length = clip_length(config)
    if rate != config.sample_rate:
        samples = resample(samples, rate, config.sample_rate)
    if len(samples) > length:
        start = loudest_stretch(samples, length)
        samples = samples[start : start + length]
    before = (length - len(samples)) // 2
    clip = np.pad(samples, (before, length - len(samples) - before)).astype(np.float32)
    peak = np.abs(clip).max(initial=0.0)
    return clip / peak if peak > 0 else clip


def resample(samples: NDArray[np.float32], rate: int, target_rate: int) -> NDArray[np.float32]:
    """(samples,) at `target_rate`, by the resampler of librosa's "soxr_hq" without importing librosa, which takes
    seconds."""
    resampled: NDArray[np.float32] = soxr.resample(samples, rate, target_rate, quality="HQ")
    return resampled


def loudest_stretch(samples: NDArray[np.float32], length: int) -> int:
    """Start of the window of `length` samples with the largest sum of squares."""
    energy = np.concatenate([[0.0], np.cumsum(samples.astype(np.float64) ** 2)])
    return int(np.argmax(energy[length:] - energy[:-length]))
