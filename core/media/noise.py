"""Background noise for augmentation: generated white, pink and brown noise, or the clips in a folder."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.config import MediaConfig
from core.errors import InvalidInput
from core.media.audio import clip_length, decode_audio, resample

NOISE_SECONDS = 10.0
MAX_FILES = 64
EXPONENTS = (0.0, 0.0, 1.0, 1.0, 2.0, 2.0)  # power falls as 1/f^exponent: white, pink, brown


def colored_noise(exponent: float, length: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(length,) of unit power whose power spectrum falls as 1/f^exponent."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    frequency = np.fft.rfftfreq(length)
    frequency[0] = frequency[1]  # no pole at zero
    shaped = np.fft.irfft(spectrum * frequency ** (-exponent / 2), n=length)
    return np.asarray(shaped / np.sqrt(np.mean(shaped**2)), np.float32)


def noise_length(config: MediaConfig) -> int:
    return max(round(NOISE_SECONDS * config.sample_rate), 2 * clip_length(config))


@lru_cache(maxsize=4)
def noise_clips(config: MediaConfig) -> NDArray[np.float32]:
    """(m, L) noise of unit power at the configured rate: the same array for the same settings (and folder)."""
    length = noise_length(config)
    if not config.noise_folder:
        rng = np.random.default_rng(20_210_000)
        return np.stack([colored_noise(exponent, length, rng) for exponent in EXPONENTS])
    return np.stack([_noise_from(path, length, config.sample_rate) for path in noise_files(config.noise_folder)])


def noise_files(folder: str) -> list[Path]:
    """The audio files directly in `folder`, by name."""
    if not Path(folder).is_dir():
        raise InvalidInput(f"The noise folder {folder} does not exist. Choose another, or none for generated noise.")
    endings = {".wav", ".flac", ".ogg", ".mp3"}
    files = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in endings and path.is_file())
    if not files:
        raise InvalidInput(f"The noise folder {folder} contains no WAV, FLAC, OGG, MP3 or AIFF file.")
    return files[:MAX_FILES]


def _noise_from(path: Path, length: int, sample_rate: int) -> NDArray[np.float32]:
    try:
        samples, rate = decode_audio(path.read_bytes())
    except InvalidInput as error:
        raise InvalidInput(f"Background noise {path.name}: {error}") from error
    samples = resample(samples, rate, sample_rate)[:length]
    repeated = np.resize(samples, length)
    power = float(np.mean(repeated.astype(np.float64) ** 2))
    if power <= 0:
        raise InvalidInput(f"Background noise {path.name} is silent.")
    return np.asarray(repeated / np.sqrt(power), np.float32)


def noise_key(config: MediaConfig) -> str:
    """Changes when the noise changes: the folder's files by content, or the generator's version."""
    if not config.noise_folder:
        return "generated-1"
    digest = hashlib.sha256()
    for path in noise_files(config.noise_folder):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
