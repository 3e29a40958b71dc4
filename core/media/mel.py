"""Waveforms -> log-mel pictures, on whatever device the waveforms are.

    P[m, t] = mel power (Slaney filters), S = log10 P - max log10 P, clamped below at `floor`
    picture = (S - floor/2) / (-floor/3), so values run from -1.5 (the floor) to 1.5 (the loudest bin)

The maximum is taken per clip, so a clip's level does not matter. Silence gives the floor everywhere.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from core.config import MediaConfig
from core.media.torchaudio_clean import transforms

SILENCE = 1e-10  # power


def n_frames(config: MediaConfig) -> int:
    """Columns of the picture: one frame per hop, the first and the last centered on the clip's ends."""
    return 1 + round(config.seconds * config.sample_rate) // config.hop


@lru_cache(maxsize=8)
def _mel_transform(config: MediaConfig, device: str) -> torch.nn.Module:
    transform = transforms.MelSpectrogram(
        sample_rate=config.sample_rate, n_fft=config.n_fft, hop_length=config.hop, n_mels=config.n_mels,
        f_min=config.f_min, f_max=min(config.f_max, config.sample_rate / 2),
        power=2.0, norm="slaney", mel_scale="slaney", pad_mode="constant",
    )  # fmt: skip
    for module in transform.modules():  # both parts hold only buffers: the window and the filters
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    return transform


def mel_power(waveforms: Tensor, config: MediaConfig) -> Tensor:
    """(B, T) -> (B, n_mels, frames) mel power."""
    power: Tensor = _mel_transform(config, str(waveforms.device))(waveforms)
    return power


def log_mel(waveforms: Tensor, config: MediaConfig) -> Tensor:
    """(B, T) -> (B, n_mels, frames), normalised as the module says."""
    log_power = mel_power(waveforms, config).clamp_min(SILENCE).log10()
    loudest = log_power.amax(dim=(1, 2), keepdim=True)
    floored = (log_power - loudest).clamp_min(config.floor)
    silent = loudest < math.log10(SILENCE) + 1e-3
    floored = torch.where(silent, config.floor, floored)
    return (floored - config.floor / 2) / (-config.floor / 3)
