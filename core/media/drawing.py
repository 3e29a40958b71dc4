"""Spectrograms for people: drawn by librosa as PNG, without torch, so that any process may call it."""

from __future__ import annotations

import io

import librosa
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from core.config import MediaConfig
from core.media.audio import decode_audio

DYNAMIC_RANGE_DB = 80.0
SHADES = np.array([[13, 17, 38], [68, 35, 110], [170, 58, 95], [236, 122, 60], [252, 240, 180]], np.float32)


def mel_power_of(samples: NDArray[np.float32], rate: int, config: MediaConfig) -> NDArray[np.float32]:
    """(n_mels, frames) mel power by librosa, with the settings of `core.media.mel`."""
    power: NDArray[np.float32] = librosa.feature.melspectrogram(
        y=samples, sr=rate, n_fft=config.n_fft, hop_length=config.hop, n_mels=config.n_mels,
        fmin=config.f_min, fmax=min(config.f_max, rate / 2), power=2.0, pad_mode="constant",
    )  # fmt: skip
    return power


def draw_spectrogram(data: bytes, width: int = 640, height: int = 160) -> bytes:
    """PNG of the whole clip, low frequencies at the bottom; InvalidInput when the audio cannot be decoded."""
    samples, rate = decode_audio(data)
    hop = max(64, len(samples) // width)
    config = MediaConfig(sample_rate=max(1_000, min(rate, 192_000)), n_fft=max(1024, 2 * hop), hop=hop, n_mels=96)
    decibels = librosa.power_to_db(mel_power_of(samples, rate, config), ref=np.max, top_db=DYNAMIC_RANGE_DB)
    level = np.clip(decibels / DYNAMIC_RANGE_DB + 1, 0, 1)[::-1]
    place = level * (len(SHADES) - 1)
    lower = np.minimum(place.astype(np.int64), len(SHADES) - 2)
    share = (place - lower)[..., None]
    colors = SHADES[lower] * (1 - share) + SHADES[lower + 1] * share
    image = Image.fromarray(colors.astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
