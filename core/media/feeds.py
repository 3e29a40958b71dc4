"""Batches for training steps on the training device, clean or augmented with one of four strengths.

                audio                                             images
    weak        the clean clip, lightly warped                    shift and flip
    standard    the paper's waveform augmentation, lightly warped shift and flip
    strong      the paper's waveform augmentation, warped         shift and flip, distortion, a masked rectangle
    varied      the same                                          random crop, color jitter

`AugmentationConfig` has the strengths of the warps; without a light warp, "standard" is the paper's augmentation alone.

A feed takes rows (B,) and uniform draws (B, n_draws). Small pools are kept on the device; larger ones are read row by
row through their memory map, so memory stays bounded for any pool size.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.media.augment_audio import WARP_DRAWS, WAVEFORM_DRAWS, view_pictures, warp_pictures
from core.media.augment_images import (
    STRONG_DRAWS,
    VARIED_DRAWS,
    WEAK_DRAWS,
    crop_and_jitter,
    distort,
    shift_and_flip,
)
from core.media.inputs import Inputs
from core.media.views import noise_on, view_bank
from core.types import Report, Rows, ignore

RESIDENT_BYTES = 1 << 30  # pools up to this size are kept on the device
LOAD_BLOCK = 1_024


class Feed(Protocol):
    """Batches (B, C, H, W) float32 on the device, normalized."""

    n_draws: int

    def clean(self, rows: NDArray[np.int64]) -> Tensor: ...

    def weak(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor: ...

    def standard(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor: ...

    def strong(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor: ...

    def varied(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor: ...


class DeviceRows:
    """`Rows` as tensors on a device: all of them when they fit the budget, else only the requested ones."""

    def __init__(self, rows: Rows, device: torch.device) -> None:
        self.rows, self.device = rows, device
        n_bytes = int(np.prod(rows.shape)) * rows.dtype.itemsize
        self.resident = self._load() if n_bytes <= RESIDENT_BYTES else None

    def _load(self) -> Tensor:
        starts = range(0, len(self.rows), LOAD_BLOCK)
        blocks = [np.arange(start, min(start + LOAD_BLOCK, len(self.rows))) for start in starts]
        return torch.cat([torch.from_numpy(self.rows.take(block)).to(self.device) for block in blocks])

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        if self.resident is not None:
            return self.resident[on_device(rows, self.device)]
        return on_device(self.rows.take(rows), self.device)

    def take_part(self, rows: NDArray[np.int64], parts: NDArray[np.int64]) -> Tensor:
        """`rows[i][parts[i]]`: one of several arrays per row, without moving the others."""
        if self.resident is not None:
            return self.resident[on_device(rows, self.device), on_device(parts, self.device)]
        return on_device(self.rows.take(rows)[np.arange(len(rows)), parts], self.device)


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An asynchronous copy on the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class AudioFeed:
    """Log-mel pictures of clips. Waveforms are augmented once, as a bank of views; pictures in every step."""

    def __init__(self, inputs: Inputs, device: torch.device, bank_views: int, report: Report = ignore) -> None:
        self.device, self.config, self.augmentation = device, inputs.config, inputs.augmentation
        self._clean = DeviceRows(inputs.clean, device)
        self.n_views = bank_views
        if bank_views:
            self._source = DeviceRows(view_bank(inputs, bank_views, device=device, report=report), device)
        else:
            self._source = DeviceRows(inputs.sources, device)
            self._noise = noise_on(device, inputs)
        self.n_draws = (1 if bank_views else WAVEFORM_DRAWS) + WARP_DRAWS

    def clean(self, rows: NDArray[np.int64]) -> Tensor:
        return self._clean.take(rows).permute(0, 3, 1, 2)

    def weak(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        return self._warped(self.clean(rows), draws, self.augmentation.light_warp)

    def standard(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        return self._warped(self._view(rows, draws), draws, self.augmentation.light_warp)

    def strong(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        return self._warped(self._view(rows, draws), draws, self.augmentation.strong_warp)

    varied = strong

    def _warped(self, pictures: Tensor, draws: NDArray[np.float32], strength: float) -> Tensor:
        if strength == 0:
            return pictures
        return warp_pictures(pictures, on_device(draws[:, -WARP_DRAWS:], self.device), strength)

    def _view(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        """(B, 1, M, W): a view of the bank, or freshly augmented waveforms."""
        if self.n_views:
            view = np.minimum((draws[:, 0] * self.n_views).astype(np.int64), self.n_views - 1)
            return self._source.take_part(rows, view).float().permute(0, 3, 1, 2)
        first = on_device(draws[:, :WAVEFORM_DRAWS], self.device)
        clips = self._source.take(rows).float()
        return view_pictures(clips, first, self._noise, self.config, self.augmentation)[:, None]


class ImageFeed:
    """Pictures, normalized with the pool's statistics and augmented in every step."""

    def __init__(self, inputs: Inputs, device: torch.device) -> None:
        self.device, self.flip = device, inputs.config.flip
        self._source = DeviceRows(inputs.sources, device)
        self._mean = on_device(inputs.mean, device)
        self._scale = on_device(inputs.scale, device)
        self.n_draws = WEAK_DRAWS + STRONG_DRAWS

    def clean(self, rows: NDArray[np.int64]) -> Tensor:
        return self._normalized(self._source.take(rows).float() / 255)

    def _normalized(self, pictures: Tensor) -> Tensor:
        return ((pictures - self._mean) / self._scale).permute(0, 3, 1, 2)

    def weak(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        return shift_and_flip(self.clean(rows), on_device(draws[:, :WEAK_DRAWS], self.device), self.flip)

    standard = weak

    def strong(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        return distort(self.weak(rows, draws), on_device(draws[:, WEAK_DRAWS:], self.device))

    def varied(self, rows: NDArray[np.int64], draws: NDArray[np.float32]) -> Tensor:
        pictures = (self._source.take(rows).float() / 255).permute(0, 3, 1, 2)
        part = crop_and_jitter(pictures, on_device(draws[:, :VARIED_DRAWS], self.device), self.flip)
        return self._normalized(part.permute(0, 2, 3, 1))


def open_feed(inputs: Inputs, device: torch.device, bank_views: int, report: Report = ignore) -> Feed:
    return AudioFeed(inputs, device, bank_views, report) if inputs.kind == "audio" else ImageFeed(inputs, device)
