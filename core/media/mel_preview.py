"""Log-mel spectrograms as in `core.media.mel`, in numpy: for drawings in a process without torch."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from core.config import MediaConfig

SILENCE = 1e-10  # power
LINEAR_STEP, LOG_FROM, LOG_STEP = 200.0 / 3, 1_000.0, math.log(6.4) / 27.0  # Slaney's mel scale


def log_mel(clip: NDArray[np.float32], config: MediaConfig) -> NDArray[np.float32]:
    """(T,) -> (n_mels, frames), normalized as in `core.media.mel`."""
    padded = np.pad(np.asarray(clip, np.float64), config.n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, config.n_fft)[:: config.hop]  # (frames, n_fft)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(config.n_fft) / config.n_fft)
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    logs = np.log10(np.maximum(mel_filters(config) @ power.T, SILENCE))
    loudest = logs.max()
    silent = loudest < math.log10(SILENCE) + 1e-3
    floored = np.full_like(logs, config.floor) if silent else np.maximum(logs - loudest, config.floor)
    return np.asarray((floored - config.floor / 2) / (-config.floor / 3), np.float32)


@lru_cache(maxsize=4)
def mel_filters(config: MediaConfig) -> NDArray[np.float64]:
    """(n_mels, n_fft / 2 + 1) triangles of equal area on Slaney's mel scale."""
    hertz = np.linspace(0, config.sample_rate // 2, config.n_fft // 2 + 1)
    ends = to_mel(np.array([config.f_min, config.f_top]))
    edges = to_hertz(np.linspace(ends[0], ends[1], config.n_mels + 2))
    rising = (hertz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - hertz) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(triangles * (2 / (edges[2:] - edges[:-2]))[:, None])


def to_mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear up to 1 kHz, logarithmic above (Slaney, 1998)."""
    above = LOG_FROM / LINEAR_STEP + np.log(np.maximum(hertz, 1e-9) / LOG_FROM) / LOG_STEP
    return np.where(hertz < LOG_FROM, hertz / LINEAR_STEP, above)


def to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = LOG_FROM * np.exp(LOG_STEP * (mel - LOG_FROM / LINEAR_STEP))
    return np.where(mel < LOG_FROM / LINEAR_STEP, mel * LINEAR_STEP, above)
