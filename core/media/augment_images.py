"""Augmentation of images (B, C, H, W), batched on the device of its input, with one row of uniform draws per image.

Weak    a shift by up to 4 pixels of 32 (mirrored at the border) and, optionally, a horizontal flip.
Strong  the weak one, then rotation, scale and shear, contrast and brightness, and one masked rectangle.
Varied  a random crop of a fifth to all of the image, resized, with color jitter or in gray (Chen et al., 2020).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

WEAK_DRAWS = 3
STRONG_DRAWS = 13
VARIED_DRAWS = 11  # at most as many as the other two together
LUMA = (0.299, 0.587, 0.114)  # of red, green, blue
PADDING = 4 / 32  # of the side


def shift_and_flip(pictures: Tensor, draws: Tensor, flip: bool) -> Tensor:
    """Whole-pixel shifts U(-4, 4) of 32, draws (B, 3); flipped with probability 0.5 when `flip`."""
    height, width = pictures.shape[2:]
    reach = [max(1, round(PADDING * side)) for side in (height, width)]
    rows = torch.arange(height, device=pictures.device)
    columns = torch.arange(width, device=pictures.device)
    down, right = ((draws[:, k] * (2 * reach[k] + 1)).long().clamp_max(2 * reach[k]) - reach[k] for k in (0, 1))
    y = _mirrored(rows - down[:, None], height)  # (B, H)
    x = _mirrored(columns - right[:, None], width)  # (B, W)
    if flip:
        x = torch.where(draws[:, 2:3] < 0.5, width - 1 - x, x)
    batch = torch.arange(len(pictures), device=pictures.device)
    return pictures[batch[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def _mirrored(place: Tensor, size: int) -> Tensor:
    place = place.abs()
    return torch.where(place > size - 1, 2 * (size - 1) - place, place)


def distort(pictures: Tensor, draws: Tensor) -> Tensor:
    """The strong part; draws (B, 13) in [0, 1). Values are normalized ones: contrast and brightness act on those."""
    u = 2 * draws - 1
    angle, scale, aspect, shear = 0.35 * u[:, 0], 1 + 0.15 * u[:, 1], 0.1 * u[:, 2], 0.2 * u[:, 3]
    theta = torch.zeros(len(pictures), 2, 3, device=pictures.device)
    theta[:, 0, 0] = angle.cos() * scale * (1 + aspect)
    theta[:, 0, 1] = shear - angle.sin()
    theta[:, 1, 0] = angle.sin()
    theta[:, 1, 1] = angle.cos() * scale * (1 - aspect)
    theta[:, 0, 2], theta[:, 1, 2] = 0.1 * u[:, 4], 0.1 * u[:, 5]
    grid = F.affine_grid(theta, list(pictures.shape), align_corners=False)
    warped = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    mean = warped.mean(dim=(2, 3), keepdim=True)
    gray = warped.mean(dim=1, keepdim=True)
    warped = gray + (warped - gray) * (1 + 0.5 * u[:, 6])[:, None, None, None]  # saturation; one channel: unchanged
    toned = mean + (warped - mean) * (1 + 0.4 * u[:, 7])[:, None, None, None] + 0.4 * u[:, 8, None, None, None]
    return mask_rectangle(toned, draws[:, 9:13])


def mask_rectangle(pictures: Tensor, draws: Tensor, widest: float = 0.4) -> Tensor:
    """Set one rectangle per image, each side up to `widest` of the picture's, to 0 (the pool's mean)."""
    inside = []
    for axis, (where, extent) in ((2, (0, 1)), (3, (2, 3))):
        size = pictures.shape[axis]
        length = draws[:, extent] * widest * size
        start = draws[:, where] * (size - length)
        place = torch.arange(size, device=pictures.device) + 0.5
        inside.append((place >= start[:, None]) & (place < (start + length)[:, None]))
    hidden = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return torch.where(hidden, 0.0, pictures)


def crop_and_jitter(pictures: Tensor, draws: Tensor, flip: bool) -> Tensor:
    """The varied augmentation of images with values in [0, 1]; draws (B, 11) in [0, 1). Colors are
    unchanged with probability 0.2, and gray with probability 0.2."""
    area, ratio = 0.2 + 0.8 * draws[:, 0], torch.exp((2 * draws[:, 1] - 1) * math.log(4 / 3))
    height, width = (area / ratio).sqrt().clamp_max(1), (area * ratio).sqrt().clamp_max(1)
    theta = torch.zeros(len(pictures), 2, 3, device=pictures.device)
    theta[:, 0, 0] = torch.where(draws[:, 2] < 0.5, -width, width) if flip else width
    theta[:, 1, 1] = height
    theta[:, 0, 2], theta[:, 1, 2] = (2 * draws[:, 3] - 1) * (1 - width), (2 * draws[:, 4] - 1) * (1 - height)
    grid = F.affine_grid(theta, list(pictures.shape), align_corners=False)
    part = F.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
    return jitter_colors(part, draws[:, 5:11])


def jitter_colors(pictures: Tensor, draws: Tensor) -> Tensor:
    """Brightness, contrast, hue and saturation of (B, C, H, W) in [0, 1]; draws (B, 6): whether, these four, gray."""
    u = torch.where(draws[:, :1] < 0.8, 2 * draws[:, 1:5] - 1, 0.0)[:, :, None, None, None]  # (B, 4, 1, 1, 1)
    bright = (pictures * (1 + 0.4 * u[:, 0])).clamp(0, 1)
    mean = _gray(bright).mean(dim=(2, 3), keepdim=True)
    contrasted = (mean + (bright - mean) * (1 + 0.4 * u[:, 1])).clamp(0, 1)
    if pictures.shape[1] != 3:
        return contrasted
    gray = _gray(contrasted)
    saturation = torch.where(draws[:, 5, None, None, None] < 0.2, 0.0, 1 + 0.4 * u[:, 3])
    turned = rotate_hue(contrasted, 0.2 * math.pi * u[:, 2, 0, 0, 0])
    return (gray + (turned - gray) * saturation).clamp(0, 1)


def _gray(pictures: Tensor) -> Tensor:
    """(B, 1, H, W): luma."""
    if pictures.shape[1] != 3:
        return pictures.mean(dim=1, keepdim=True)
    return sum(share * pictures[:, channel : channel + 1] for channel, share in enumerate(LUMA))  # type: ignore[return-value]


def rotate_hue(pictures: Tensor, angle: Tensor) -> Tensor:
    """Colors rotated about the gray axis by angles (B,): Rodrigues' formula with the axis (1, 1, 1) / sqrt 3."""
    share = (1 - angle.cos())[:, None, None, None] * pictures.mean(dim=1, keepdim=True)
    across = (pictures.roll(1, dims=1) - pictures.roll(-1, dims=1)) / math.sqrt(3)
    cos, sin = angle.cos()[:, None, None, None], angle.sin()[:, None, None, None]
    return share + cos * pictures + sin * across
