"""Augmentation of audio: of the waveform (the paper's four, once per view) and of the log-mel spectrogram (every step).

Draws and arithmetic are separate: uniform numbers come from a numpy generator on the host, so that CPU and GPU runs use
the same augmentations; the arithmetic is batched on the device of its input. Each function takes one row of draws per
clip, so a clip's result does not depend on the rest of its batch.

Waveform, in this order, each with probability 0.5 (the defaults of `AugmentationConfig`, the paper's):
    amplitude   x <- a x,            a ~ U(0.8, 1.2)
    speed       x(t) <- x(s t),      s ~ U(0.8, 1.2), about the clip's center, linear interpolation
    shift       x(t) <- x(t - d),    d ~ U(-250, 250) ms, filled with silence
    noise       x <- x + g n,        g so that the signal-to-noise ratio is U(0, 40) dB

A log-mel picture is normalized by its own maximum, which cancels the amplitude. With `level="kept"` the maximum is that
of the clip before augmentation (`view_pictures`), so a louder view has larger values. All of it is in float32, also
within mixed precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from core.config import AugmentationConfig, MediaConfig
from core.media.mel import log_mel, loudest
from core.runtime import in_float32

WAVEFORM_DRAWS = 10
WARP_DRAWS = 8
PAPER = AugmentationConfig()
FLOOR = -1.5  # the value of silence in a log-mel picture


def between(low: float, high: float, uniform: Tensor) -> Tensor:
    return low + (high - low) * uniform


@in_float32
def augment_waveforms(
    waveforms: Tensor, draws: Tensor, noise: Tensor, config: MediaConfig, ranges: AugmentationConfig = PAPER
) -> Tensor:
    """(B, T), draws (B, 10) in [0, 1), noise (m, L) of unit power -> (B, T)."""
    applied = draws[:, [0, 2, 4, 6]] < ranges.probability  # (B, 4)
    amplitude = torch.where(applied[:, 0], between(1 - ranges.amplitude, 1 + ranges.amplitude, draws[:, 1]), 1.0)
    speed = torch.where(applied[:, 1], between(1 - ranges.speed, 1 + ranges.speed, draws[:, 3]), 1.0)
    furthest = ranges.shift_seconds * config.sample_rate
    shift = torch.where(applied[:, 2], between(-furthest, furthest, draws[:, 5]), 0.0)
    moved = move_in_time(waveforms * amplitude[:, None], speed, shift)
    ratio = between(ranges.snr_low, ranges.snr_high, draws[:, 7])
    noisy = add_noise(moved, pick_noise(noise, draws[:, 8:10], moved.shape[1]), ratio)
    return torch.where(applied[:, 3, None], noisy, moved)


@in_float32
def view_pictures(
    waveforms: Tensor, draws: Tensor, noise: Tensor, config: MediaConfig, ranges: AugmentationConfig
) -> Tensor:
    """(B, T) clips -> (B, M, W) log-mel pictures of one augmented view each."""
    made = augment_waveforms(waveforms, draws, noise, config, ranges)
    return log_mel(made, config, loudest(waveforms, config) if ranges.level == "kept" else None)


def move_in_time(waveforms: Tensor, speed: Tensor, shift: Tensor) -> Tensor:
    """y(t) = x(c + speed (t - shift - c)), c the center; speed (B,), shift (B,) in samples, later is positive."""
    length = waveforms.shape[1]
    center = (length - 1) / 2
    time = torch.arange(length, device=waveforms.device, dtype=torch.float32)
    grid = torch.zeros(len(waveforms), 1, length, 2, device=waveforms.device)
    grid[:, 0, :, 0] = speed[:, None] * (time - shift[:, None] - center) / center  # -1 and 1 are the outer samples
    return F.grid_sample(waveforms[:, None, None, :], grid, align_corners=True)[:, 0, 0]


def pick_noise(noise: Tensor, draws: Tensor, length: int) -> Tensor:
    """(B, length) stretches of the (m, L) noise: which clip and where it starts from draws (B, 2)."""
    n_clips, n_samples = noise.shape
    clip = (draws[:, 0] * n_clips).long().clamp_max(n_clips - 1)
    start = (draws[:, 1] * (n_samples - length)).long()
    time = torch.arange(length, device=noise.device)
    return noise.flatten()[(clip * n_samples + start)[:, None] + time]


def add_noise(waveforms: Tensor, noise: Tensor, snr_db: Tensor) -> Tensor:
    """x + g n with 10 log10(|x|^2 / |g n|^2) = snr_db, over the whole clip. Silence stays silent."""
    signal_power = waveforms.square().mean(1)
    noise_power = noise.square().mean(1).clamp_min(1e-12)
    gain = (signal_power / (noise_power * 10 ** (snr_db / 10))).sqrt()
    return waveforms + gain[:, None] * noise


@in_float32
def warp_pictures(pictures: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Simulate other voices and rooms: (B, 1, M, W) log-mel, draws (B, 8) in [0, 1) -> the same shape.

    Frequencies and times are scaled and shifted (another vocal tract, another pace), a smooth curve over frequency is
    added (another microphone), and the dynamic range is stretched. `strength` scales all of it; 0 changes nothing.
    Masking of frequency bands and time intervals slowed learning with a small network and is not used.
    """
    u = (2 * draws - 1) * strength  # (B, 8) in [-strength, strength)
    grid = torch.empty(len(pictures), *pictures.shape[2:], 2, device=pictures.device)
    grid[..., 0] = ((1 + 0.2 * u[:, 0:1]) * _positions(pictures, 3) + 0.2 * u[:, 1:2])[:, None, :]
    grid[..., 1] = ((1 + 0.12 * u[:, 2:3]) * _positions(pictures, 2) + 0.12 * u[:, 3:4])[:, :, None]
    warped = F.grid_sample(pictures - FLOOR, grid, padding_mode="zeros", align_corners=False)  # silence is 0 here
    height = torch.linspace(-1, 1, pictures.shape[2], device=pictures.device)
    curves = torch.stack([height, (torch.pi * height).cos(), (torch.pi * height).sin()])  # (3, M)
    tone = 0.4 * u[:, 4:7] @ curves  # (B, M)
    sounding = warped * (1 + 0.2 * u[:, 7])[:, None, None, None] + tone[:, None, :, None]
    return torch.where(warped > 0, sounding.clamp_min(0), warped) + FLOOR


def _positions(pictures: Tensor, dim: int) -> Tensor:
    """(size,) centers of the pixels along a dimension, in coordinates from -1 to 1 between the edges."""
    n = pictures.shape[dim]
    return (2 * torch.arange(n, device=pictures.device) + 1) / n - 1
