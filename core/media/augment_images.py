"""Augmentation of pictures (B, C, H, W), batched on the device of its input, one row of uniform draws per picture.

Weak    a shift by up to 4 pixels of 32 (mirrored at the border) and, as a setting, a horizontal flip.
Strong  the weak one, then rotation, scale and shear, contrast and brightness, and one hidden rectangle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WEAK_DRAWS = 3
STRONG_DRAWS = 13
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
    """The strong part; draws (B, 13) in [0, 1). Values are normalised ones: contrast and brightness act on those."""
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
    return hide_rectangle(toned, draws[:, 9:13])


def hide_rectangle(pictures: Tensor, draws: Tensor, widest: float = 0.4) -> Tensor:
    """Sets one rectangle per picture, each side up to `widest` of the picture's, to 0 (the pool's mean)."""
    inside = []
    for axis, (where, extent) in ((2, (0, 1)), (3, (2, 3))):
        size = pictures.shape[axis]
        length = draws[:, extent] * widest * size
        start = draws[:, where] * (size - length)
        place = torch.arange(size, device=pictures.device) + 0.5
        inside.append((place >= start[:, None]) & (place < (start + length)[:, None]))
    hidden = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return torch.where(hidden, 0.0, pictures)
