"""Waveforms -> log-mel spectrograms, on the device of the waveforms.

    P[m, t] = mel power (Slaney filters), S = log10 P - max log10 P, clamped below at `floor`
    picture = (S - floor/2) / (-floor/3), so values run from -1.5 (the floor) to 1.5 (the loudest bin)

The maximum is taken per clip, so the result does not depend on a clip's level. Silence gives the floor everywhere.
The power of a loud clip exceeds the range of float16, so all of it is computed in float32, also within mixed precision.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from core.config import MediaConfig
from core.media.torchaudio_import import functional, transforms
from core.runtime import in_float32

SILENCE = 1e-10  # power


def n_frames(config: MediaConfig) -> int:
    """Columns of the picture (`MediaConfig.n_frames`)."""
    return config.n_frames


@lru_cache(maxsize=8)
def _transform(config: MediaConfig) -> Any:
    return transforms.MelSpectrogram(
        sample_rate=config.sample_rate, n_fft=config.n_fft, hop_length=config.hop, n_mels=config.n_mels,
        f_min=config.f_min, f_max=config.f_top,
        power=2.0, norm="slaney", mel_scale="slaney", pad_mode="constant",
    )  # fmt: skip


def mel_tables(config: MediaConfig) -> tuple[Tensor, Tensor]:
    """The window (n_fft,) and the mel filters (n_fft / 2 + 1, n_mels), on the host."""
    transform = _transform(config)
    return transform.spectrogram.window, transform.mel_scale.fb


@lru_cache(maxsize=8)
def tables_on(device: torch.device, config: MediaConfig) -> tuple[Tensor, Tensor]:
    """The tables of `mel_tables`, computed on the host and cached on the device."""
    window, filters = mel_tables(config)
    return window.to(device), filters.to(device)


@in_float32
def mel_power(waveforms: Tensor, config: MediaConfig) -> Tensor:
    """(B, T) -> (B, n_mels, frames) mel power."""
    window, filters = tables_on(waveforms.device, config)
    spectrum = functional.spectrogram(
        waveforms, pad=0, window=window, n_fft=config.n_fft, hop_length=config.hop, win_length=config.n_fft,
        power=None, normalized=False, pad_mode="constant",
    )  # fmt: skip
    mel: Tensor = filters.T @ (spectrum.real.square() + spectrum.imag.square())  # |z|^2 without a square root
    return mel


def loudest(waveforms: Tensor, config: MediaConfig) -> Tensor:
    """(B, 1, 1) the largest log10 power of each clip."""
    return mel_power(waveforms, config).clamp_min(SILENCE).log10().amax(dim=(1, 2), keepdim=True)


@in_float32
def log_mel(waveforms: Tensor, config: MediaConfig, reference: Tensor | None = None) -> Tensor:
    """(B, T) -> (B, n_mels, frames), normalized as in the module docstring, or by the maximum `reference` (B, 1, 1)."""
    log_power = mel_power(waveforms, config).clamp_min(SILENCE).log10()
    maximum = log_power.amax(dim=(1, 2), keepdim=True) if reference is None else reference
    floored = (log_power - maximum).clamp_min(config.floor)
    silent = maximum < math.log10(SILENCE) + 1e-3
    floored = torch.where(silent, config.floor, floored)
    return (floored - config.floor / 2) / (-config.floor / 3)
