"""Bytes -> network inputs for a whole pool, computed once per item and cached by content hash and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.config import AugmentationConfig, MediaConfig
from core.errors import InvalidInput
from core.media.audio import clip_length, decode_audio, to_clip
from core.media.decoding import Decoder, decode_pool
from core.media.images import decode_image, to_picture
from core.media.mel import log_mel
from core.media.windows import Windows, find_windows
from core.types import MediaKind, MediaReader, Progress, Report, RowCache, Rows, ignore

VERSIONS = {"image": 3, "audio": 2}  # of what is computed here; increase one when the same settings give other numbers
IMAGE_SETTINGS = ("image_size", "image_fit", "channels", "image_width")
AUDIO_CLIP_SETTINGS = ("sample_rate", "seconds", "clip_from", "audio_channel")
ADDED_LATER = {
    "image_width": 0,
    "clip_from": "loudest",
    "audio_channel": 0,
}  # keys do not contain these values, so that older rows stay valid
AUDIO_SETTINGS = (*AUDIO_CLIP_SETTINGS, "n_fft", "hop", "n_mels", "f_min", "f_max", "floor")
STATISTICS_SAMPLE = 4_096
CLIPS_AT_ONCE = 32  # fits into a CPU's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The network inputs of a pool; one row per snapshot row."""

    kind: MediaKind
    config: MediaConfig
    clean: Rows  # (n, H, W, C) float32, normalized: the kernel's input and the learner's clean view
    sources: Rows  # the input of augmentation: clips (n, T) float16, or pictures (n, H, W, C) uint8
    mean: NDArray[np.float32]  # (C,) of pictures in [0, 1]; 0 for audio
    scale: NDArray[np.float32]  # (C,)
    names: tuple[str, ...]  # (n,) the name each row is cached under: the content hash, or a mark of a missing item
    readable: NDArray[np.bool_]  # (n,)
    notes: tuple[str, ...]
    cache: RowCache
    key: str  # settings and statistics: a cache key for values that depend on `clean` alone
    windows: Windows | None = None  # of clips that are longer than an input, for predictions
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)  # of every view made of these items
    encoder: str = ""  # identity of the encoder whose features `clean` is, as (n, 1, 1, d); empty: inputs of a network

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of one input."""
        height, width, channels = self.clean.shape[1:]
        return height, width, channels


class NormalizedRows:
    """`Rows` of bytes, returned as float32, with mean 0 and deviation 1 per channel over the pool."""

    def __init__(self, pictures: Rows, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> None:
        self.pictures, self.mean, self.scale = pictures, mean, scale
        self.shape = pictures.shape
        self.dtype: np.dtype[Any] = np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.pictures)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return (self.pictures.take(rows).astype(np.float32) / np.float32(255) - self.mean) / self.scale


def media_key(config: MediaConfig, kind: MediaKind) -> str:
    """Names the settings that `prepare` depends on: equal keys mean equal inputs for equal bytes."""
    return _key(config, IMAGE_SETTINGS if kind == "image" else AUDIO_SETTINGS, kind)


def _key(config: MediaConfig, names: tuple[str, ...], prefix: str) -> str:
    values = {name: getattr(config, name) for name in names}
    named = {name: value for name, value in values.items() if name not in ADDED_LATER or value != ADDED_LATER[name]}
    settings = ";".join(f"{name}={value!r}" for name, value in named.items())
    version = VERSIONS["image" if names is IMAGE_SETTINGS else "audio"]
    return f"{prefix}-{hashlib.sha256(f'{version};{settings}'.encode()).hexdigest()[:16]}"


def prepare(  # noqa: PLR0913 - one call with all inputs of preparation
    hashes: Sequence[str],
    read: MediaReader,
    kind: MediaKind,
    config: MediaConfig,
    cache: RowCache,
    report: Report = ignore,
    *,
    held_out: NDArray[np.bool_] | None = None,
) -> Inputs:
    """Inputs for the items behind `hashes`; only items missing from the cache are read. The statistics that normalize
    pictures are those of the items that are not `held_out` (n,)."""
    if not hashes:
        raise InvalidInput("The pool is empty: import some items first.")
    decoded = decode_pool(hashes, read, _decoder(kind, config), cache, report)
    sources, readable = decoded.rows, decoded.readable
    if kind == "image":
        mean, scale = channel_statistics(sources, readable if held_out is None else readable & ~held_out)
        key = f"{media_key(config, kind)}-{hashlib.sha256(mean.tobytes() + scale.tobytes()).hexdigest()[:8]}"
        clean: Rows = NormalizedRows(sources, mean, scale)
    else:
        mean, scale = np.zeros(1, np.float32), np.ones(1, np.float32)
        key = media_key(config, kind)
        clean = _spectrograms(sources, decoded.names, config, cache, report)
    several = kind == "audio" and config.predict_windows > 1
    windows = find_windows(hashes, read, config, media_key(config, kind), cache, report) if several else None
    return Inputs(
        kind=kind, config=config, clean=clean, sources=sources, mean=mean, scale=scale, names=decoded.names,
        readable=readable, notes=decoded.notes, cache=cache, key=key, windows=windows,
    )  # fmt: skip


def _decoder(kind: MediaKind, config: MediaConfig) -> Decoder:
    if kind == "image":
        return Decoder(
            key=_key(config, IMAGE_SETTINGS, "picture"),
            decode=lambda data: to_picture(decode_image(data), config),
            blank=np.zeros((*config.picture_size, config.channels), np.uint8),
        )
    return Decoder(
        key=_key(config, AUDIO_CLIP_SETTINGS, "clip"),
        decode=lambda data: to_clip(*decode_audio(data, channel=config.audio_channel), config).astype(np.float16),
        blank=np.zeros(clip_length(config), np.float16),
    )


def _spectrograms(sources: Rows, names: Sequence[str], config: MediaConfig, cache: RowCache, report: Report) -> Rows:
    def compute(positions: Sequence[int]) -> NDArray[np.float32]:
        clips = torch.from_numpy(sources.take(np.asarray(positions, np.int64)).astype(np.float32))
        return torch.cat([log_mel(part, config) for part in clips.split(CLIPS_AT_ONCE)])[..., None].numpy()

    return cache.rows(media_key(config, "audio"), names, compute, _follow(report, "spectrograms"))


def _follow(report: Report, note: str) -> Callable[[int, int], None]:
    return lambda done, total: report(Progress("prepare", done, total, note))


def channel_statistics(pictures: Rows, counted: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and deviation (C,) over evenly spaced pictures among those `counted` (n,), in [0, 1] and rounded to 1/100,
    so that a pool that grows with similar images keeps its cached features."""
    rows = np.flatnonzero(counted)
    if len(rows) == 0:
        channels = pictures.shape[-1]
        return np.full(channels, 0.5, np.float32), np.full(channels, 0.25, np.float32)
    sample = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), STATISTICS_SAMPLE)).round().astype(np.int64))]
    values = pictures.take(sample).reshape(-1, pictures.shape[-1]) / 255.0
    mean = values.mean(0).round(2).astype(np.float32)
    return mean, np.maximum(values.std(0).round(2), 0.05).astype(np.float32)
